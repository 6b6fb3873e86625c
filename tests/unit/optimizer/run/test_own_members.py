"""Ensembles and models that call others: which models are read, what is varied of them, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_repositories import (
    ENSEMBLE,
    PYTHON,
    engines_of,
    ensemble,
    loaded,
    own_config,
    python_model,
    refused,
    written,
)

from loadgen.errors import BadInput
from model_repo.errors import ModelLoadFailed
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_model import own_engine, parse_own
from model_repo.spec import EnsembleStep
from optimizer.config import OptimizeConfig
from optimizer.run.prepare import prepare, read_inputs
from optimizer.run_file import slo_of
from optimizer.space_options import with_models_from_texts
from search.simulator.ensemble_surrogate import EnsembleSurrogate
from search.space import SearchSpace, default_config, knobs_of
from search.trials.trial import config_from_record, config_to_record
from search.workload import Workload

DIAMOND = """\
name: "diamond"
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "join" input_map { key: "a" value: "left" } input_map { key: "b" value: "right" }
         output_map { key: "y" value: "y" } }
  step { model_name: "left" input_map { key: "x" value: "cut" } output_map { key: "y" value: "left" } }
  step { model_name: "cut" input_map { key: "x" value: "x" } output_map { key: "y" value: "cut" } }
  step { model_name: "right" input_map { key: "x" value: "cut" } output_map { key: "y" value: "right" } }
}
"""


def space_of(config: OptimizeConfig) -> SearchSpace:
    return prepare(config, read_inputs(config, work_dir=config.output.parent / "kept"), ask_server=loaded).space


def test_steps_are_in_the_order_in_which_their_inputs_are_made(tmp_path: Path) -> None:
    engine = own_engine(written(tmp_path, "diamond", DIAMOND, {"1/.keep": ""}), DIAMOND, on_gpu=False)
    assert engine.own is not None
    assert engine.own.steps == (
        EnsembleStep(model="cut"),
        EnsembleStep(model="left", after=(0,)),
        EnsembleStep(model="right", after=(0,)),
        EnsembleStep(model="join", after=(1, 2)),
    )


def test_the_knobs_of_an_ensemble_are_those_of_its_members(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository", second="dynamic_batching { max_queue_delay_microseconds: 700 }\n")
    space = space_of(own_config(tmp_path, "pair"))
    varied = {name: values for name, values in space.axes().items() if len(values) > 1}
    assert varied["first.max_batch_size"] == (1, 2, 4, 8)
    assert 700 in varied["second.max_queue_delay_us"]
    assert varied.keys() == {
        f"{model}.{knob}"
        for model in ("first", "second")
        for knob in ("max_batch_size", "instance_count", "max_queue_delay_us")
    }
    as_it_is = space.baseline()
    assert [render_config_pbtxt(one) for one in as_it_is.models] == [
        own.text for one in as_it_is.models if (own := one.engine.own) is not None
    ]
    assert space.config(knobs_of(as_it_is)) == as_it_is
    assert space.has(knobs_of(as_it_is) | {"second.max_queue_delay_us": 700, "second.max_batch_size": 8})
    changed = space.config({**knobs_of(as_it_is), "first.max_batch_size": 4})
    assert changed.members[0].dynamic_batching
    assert changed.members[1] == as_it_is.members[1]
    assert config_from_record(config_to_record(changed), space.engines) == changed


def test_an_ensemble_takes_no_more_rows_than_its_members(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    space = space_of(own_config(tmp_path, "pair"))
    smaller = space.config({**knobs_of(space.baseline()), "second.max_batch_size": 2})
    first, second, pair = (render_config_pbtxt(one) for one in smaller.models)
    assert [parse_own(text).max_batch_size for text in (first, second, pair)] == [8, 2, 2]
    assert pair == ENSEMBLE.replace("max_batch_size: 8", "max_batch_size: 2")


def test_members_that_are_not_tuned_stay_as_they_are(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    space = space_of(own_config(tmp_path, "pair", tune=("second",)))
    assert all(name.startswith("second.") for name, values in space.axes().items() if len(values) > 1)
    assert space.size() == space.members[1].size()
    assert all(space.config(knobs).members[0] == space.baseline().members[0] for knobs in space.points())


def test_what_is_wanted_counts_for_the_members_that_are_tuned(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    wanted = {"instance_counts": (1, 3), "excluded": (("second.max_batch_size", "4"),)}
    axes = space_of(own_config(tmp_path, "pair", tune=("second",), **wanted)).axes()
    assert axes["second.instance_count"] == (1, 3)
    assert axes["second.max_batch_size"] == (1, 2, 8)
    assert len(axes["first.instance_count"]) == len(axes["first.max_batch_size"]) == 1


def test_what_is_excluded_without_a_name_counts_for_every_tuned_member(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    said: list[Any] = []
    config = own_config(
        tmp_path, "pair", tune=("second",), excluded=(("max_batch_size", "4"), ("first.instance_count", "7"))
    )
    work_dir = tmp_path / "kept"
    axes = prepare(
        config, read_inputs(config, work_dir=work_dir), ask_server=loaded, on_event=said.append
    ).space.axes()
    assert axes["second.max_batch_size"] == (1, 2, 8)
    warned = [event.text for event in said if getattr(event, "warning", False)]
    assert ["instance_count=7" in text for text in warned if "--exclude" in text] == [True]


def test_a_member_without_batches_has_no_queue_delay(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    first = tmp_path / "repository" / "first" / "config.pbtxt"
    first.write_text(first.read_text().replace("max_batch_size: 8", "max_batch_size: 0"))
    axes = space_of(own_config(tmp_path, "pair", queue_delays_us=(0, 3000))).axes()
    assert axes["second.max_queue_delay_us"] == (0, 3000)
    assert axes["first.max_queue_delay_us"] == (0,)


def test_a_member_that_is_excluded_and_not_there_is_refused(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    with pytest.raises(BadInput, match="third"):
        space_of(own_config(tmp_path, "pair", excluded=(("third.instance_count", "4"),)))


def test_models_that_members_call_are_tuned_too_and_limit_no_batch_of_the_ensemble(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    python_model(tmp_path / "repository", "third", PYTHON.replace("max_batch_size: 8 ", "max_batch_size: 2 "))
    space = space_of(config := own_config(tmp_path, "pair", calls=("third", "first")))
    assert [member.name for member in space.members] == ["first", "second", "third"]
    assert parse_own(render_config_pbtxt(space.baseline())).max_batch_size == 8
    assert space.axes()["third.max_batch_size"] == (1, 2)
    for one in (config, replace(config, calls=None)):
        surrogate = EnsembleSurrogate(space=space_of(one), slo=slo_of(one), seed=1, workload=Workload())
        assert surrogate.predictable == (one.calls is None)


def test_a_model_that_calls_others_is_tuned_with_them(tmp_path: Path) -> None:
    for name in ("scorer", "words"):
        python_model(tmp_path / "repository", name)
    (engine,) = engines_of(own_config(tmp_path, calls=("words",)))
    assert not engine.is_ensemble
    assert [member.model_name for member in engine.members] == ["words"]
    knobs = knobs_of(default_config(engine))
    assert (knobs["instance_count"], knobs["words.instance_count"]) == (2, 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('model_name: "first"', 'model_name: "third"', ("third", "pair")),
        ('key: "x" value: "x"', 'key: "x" value: "y"', ("wait for each other",)),
        ('key: "x" value: "between"', 'key: "x" value: "nothing"', ("nothing", "second")),
        ('model_name: "first"', 'model_name: "../secret"', ("../secret",)),
        ('model_name: "first"', 'model_name: "pair"', ("pair",)),
    ],
)
def test_an_ensemble_that_triton_would_not_load_is_refused(
    tmp_path: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    ensemble(tmp_path / "repository")
    path = tmp_path / "repository" / "pair" / "config.pbtxt"
    path.write_text(path.read_text().replace(old, new))
    error = refused(own_config(tmp_path, "pair"))
    assert all(word in error.what + error.fix for word in words)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("model_transaction_policy { decoupled: true }\n", "decoupled"),
        ("sequence_batching { }\n", "sequence"),
        ('ensemble_scheduling { step { model_name: "third" } }\n', "ensemble itself"),
    ],
)
def test_members_without_single_answers_are_refused(tmp_path: Path, more: str, word: str) -> None:
    ensemble(tmp_path / "repository", first=more)
    error = refused(own_config(tmp_path, "pair"))
    assert "first, which pair calls," in error.what
    assert word in error.what


def test_more_than_six_members_need_a_choice(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(7)]
    for name in ("scorer", *names):
        python_model(tmp_path / "repository", name)
    config = own_config(tmp_path, calls=tuple(names))
    assert "--tune" in refused(config).fix
    assert len(engines_of(replace(config, tune=("m3", "m5")))[0].members) == 7


def test_a_member_that_does_not_load_is_named(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")

    def fails(engine: Any) -> Any:
        raise ModelLoadFailed(engine.members[1].model_name, "no license")

    error = refused(own_config(tmp_path, "pair", server="embedded"), fails)
    assert "second does not load: no license" in error.what


def test_a_member_of_two_ensembles_is_tuned_for_the_one_that_is_named(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    written(tmp_path / "repository", "other", ENSEMBLE.replace('"second"', '"scorer"'), {"1/.keep": ""})
    python_model(tmp_path / "repository")
    (engine,) = engines_of(own_config(tmp_path, "other"))
    assert [member.model_name for member in engine.members] == ["first", "scorer"]


def test_text_of_a_member_without_a_configuration_is_completed(tmp_path: Path) -> None:
    ensemble(tmp_path / "repository")
    (tmp_path / "repository" / "second" / "config.pbtxt").unlink()

    def completes(engine: Any) -> Any:
        found = loaded(engine)
        return {**found, "second": {**found["first"], "name": "second"}}

    (engine,) = engines_of(own_config(tmp_path, "pair"), completes)
    own = engine.members[1].own
    assert own is not None
    assert parse_own(own.text).backend == "python"
    assert parse_own(PYTHON).max_batch_size == own.max_batch_size


WITH = with_models_from_texts(["words:p99=20ms,rate=90"])


def test_a_model_beside_it_is_served_as_it_is_unless_it_is_tuned(tmp_path: Path) -> None:
    for name in ("scorer", "words"):
        python_model(tmp_path / "repository", name)
    alone, config = own_config(tmp_path), own_config(tmp_path, with_models=WITH)
    space = space_of(config)
    assert [member.name for member in space.members] == ["words"]
    assert space.size() == space_of(alone).size()
    assert space.baseline().members[0].instance_count == 2
    tuned = space_of(replace(config, tune=("words",)))
    assert tuned.size() == space.size() * tuned.members[0].size() > space.size()
    assert slo_of(config).tested == (*config.limits, *WITH[0].limits)


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("scorer", {"with_models": with_models_from_texts(["scorer:p99=9ms,rate=1"])}, "scorer"),
        ("scorer", {"with_models": with_models_from_texts(["third:p99=9ms,rate=1"])}, "third, which --with-model"),
        ("scorer", {"with_models": with_models_from_texts(["pair:p99=9ms,rate=1"])}, "ensemble"),
        ("scorer", {"with_models": WITH, "calls": ("words",)}, "words"),
        ("pair", {"with_models": WITH}, "pair is an ensemble"),
        ("pair", {"tune": ("third",)}, "--tune"),
        ("pair", {"vary": (("parameters.factor", ("3",)),)}, "--vary"),
    ],
)
def test_options_that_do_not_go_with_a_model_or_an_ensemble_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], word: str
) -> None:
    ensemble(tmp_path / "repository")
    for other in ("scorer", "words"):
        python_model(tmp_path / "repository", other)
    assert word in refused(own_config(tmp_path, name, **changes)).what


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("words", "name and its settings"),
        (":p99=20ms,rate=1", "name and its settings"),
        ("words:p99=20ms,p99=30ms,rate=1", "name and its settings"),
        ("words:p99=20ms", "rate"),
        ("words:p99=20ms,rate=fast", "rate"),
        ("words:p99=20ms,rate=inf", "rate"),
        ("words:rate=5", "no latency limit"),
        ("words:p98=20ms,rate=5", "p98"),
        ("words:p99=20,rate=5", "20"),
        ("words:p99=20ms,rate=5,input_data=/nowhere", "/nowhere"),
        ("words:p99=9ms,rate=1 words:p50=5ms,rate=1", "twice"),
    ],
)
def test_a_model_beside_it_is_named_once_and_needs_a_rate_and_a_limit(text: str, word: str) -> None:
    with pytest.raises(BadInput) as raised:
        with_models_from_texts(text.split())
    assert word in raised.value.what
