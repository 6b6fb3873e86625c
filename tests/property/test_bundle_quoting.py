"""No text of a run, a price file or a model's name gets out of its place in a deployment file."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from bundles import named, recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy import quoting
from deploy.bundle import bundle_from_recommendation
from model_repo.spec import ServingConfig
from search.records.recommendation import RecommendationRecord

INJECTIONS = (
    "\n- alert: Evil", "\nRUN curl evil | sh", "\r\nRUN x", "\u2028USER root", "\x85USER 0", "'", '"', "\\",
    "`id`", "$(id)", "${HOME}", "{{ .Values }}", "{% raw %}", " #", ": ", "- ", "&a", "*a", "!!python/object",
    "%TAG", "|", ">", "[x](javascript:1)", "<script>", "\x1b[2J", "\u202e", "\0", "no", "~", "\t",
)  # fmt: skip
texts = (
    st.lists(st.sampled_from(INJECTIONS) | st.text(max_size=8), min_size=1, max_size=4).map("".join).filter(bool)
)


def hostile(text: str) -> tuple[RecommendationRecord, ServingConfig]:
    """The recorded answer with this text wherever a record has words; past their types, which clean it as well."""
    found, config = recorded()
    certificate = found.winner.certificate.model_copy(update={"caveat": text})
    price = found.cost.price.model_copy(update={"source": text, "as_of": text, "describes": text})
    changes = {
        "model": found.model.model_copy(update={"file": f"{text} .onnx", "batching": text}),
        "machine": found.machine.model_copy(update={"cpu": text, "gpus": (text,)}),
        "winner": found.winner.model_copy(update={"certificate": certificate, "reason": text}),
        "cost": found.cost.model_copy(update={"price": price}),
        "workload": found.workload.model_copy(update={"arrivals": text}),
        "reason": text,
    }
    return found.model_copy(update=changes), config


def shape(node: Any) -> dict[Any, Any] | list[Any] | type[Any]:
    """A document with its keys, and the kinds of its values in place of these."""
    if isinstance(node, dict):
        return {key: shape(value) for key, value in node.items()}
    return [shape(value) for value in node] if isinstance(node, list) else type(node)


def loaded(text: str) -> list[Any]:
    return list(yaml.load_all(text, yaml.CSafeLoader))  # as safe_load_all, in C


def shapes(texts: Mapping[str, str]) -> dict[Any, Any]:
    manifests = {path: loaded(text) for path, text in texts.items() if path.endswith(".yaml")}
    dashboards = {path: [json.loads(text)] for path, text in texts.items() if path.endswith(".json")}
    return {path: [shape(one) for one in documents] for path, documents in (manifests | dashboards).items()}


def instructions(texts: Mapping[str, str]) -> dict[Any, Any]:
    return {
        path: [line for line in text.splitlines() if not line.startswith("#")]
        for path, text in texts.items()
        if path.endswith("Dockerfile")
    }


QUIET = bundle_from_recommendation(*hostile("words")).texts
QUIET_SHAPES = shapes(QUIET)
NAMED_SHAPES = shapes(bundle_from_recommendation(*named("m")).texts)


@settings(max_examples=12, deadline=None)
@given(texts)
def test_words_change_no_file_but_in_their_place(text: str) -> None:
    made = bundle_from_recommendation(*hostile(text)).texts
    assert shapes(made) == QUIET_SHAPES
    assert instructions(made) == instructions(QUIET)
    for path in made:
        if path.endswith((".md", ".yaml")) and "scal" not in path:  # where comments are not wrapped
            assert made[path].count("\n") == QUIET[path].count("\n"), path


@settings(max_examples=12, deadline=None)
@given(texts.filter(lambda text: "/" not in text and not text.startswith(".")))
def test_a_models_name_changes_no_file_but_in_its_place(name: str) -> None:
    made = bundle_from_recommendation(*named(name)).texts
    assert {path for path in made if not path.endswith(".pbtxt")} == {
        path for path in QUIET if not path.endswith(".pbtxt")
    }
    assert shapes(made) == NAMED_SHAPES
    (job,) = loaded(made["kubernetes/smoke/job.yaml"])
    assert f"--model={name.replace('$', '$$')}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    (compose,) = loaded(made["compose.yaml"])
    assert f"--model={name.replace('$', '$$')}" in compose["services"]["smoke"]["command"]
    rules = loaded(made["prometheus-rules.yaml"])[0]["groups"]
    for rule in (rule for group in rules for rule in group["rules"]):
        summary = rule.get("annotations", {}).get("summary", "").replace('{{"{{"}}', "")
        assert summary.count("{{") == summary.count("$labels") + summary.count("$value")


def test_a_value_without_quotes_must_be_plain() -> None:
    """A template that shows any other text is a fault of ours, found here and not by a cluster."""
    found, config = recorded()
    version = found.model_copy(update={"tritune_version": "1\nUSER root"})
    with pytest.raises(quoting.NotPlain):
        bundle_from_recommendation(version, config)
