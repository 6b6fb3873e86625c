"""What every bundle keeps to, whatever the recommendation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import recommendations
import yaml
from bundles import ON_GPU, bundle, named, on_disk, on_gpu, recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bundle import bundle_from_recommendation, write_bundle
from deploy.plan import BundleOptions, plan_for
from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from model_repo.errors import RepositoryWriteFailed


def documents(texts: Mapping[str, str]) -> dict[Any, Any]:
    return {path: list(yaml.safe_load_all(text)) for path, text in texts.items() if path.endswith(".yaml")}


def contents(folder: Path) -> dict[Any, Any]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", [recorded, on_gpu, lambda: named("Ä b-c's: {x}")])
def test_the_autoscaler_asks_for_the_metric_that_the_adapter_makes_of_what_triton_counts(case: Any) -> None:
    """Between the two files only names connect: of the metric, and of the job by which Prometheus knows Triton."""
    folder = "kubernetes/components/autoscaling-hpa"
    read = documents(bundle_from_recommendation(*case(), options=ON_GPU).texts)
    (autoscaler,) = read[f"{folder}/horizontal-pod-autoscaler.yaml"]
    (values,) = read[f"{folder}/prometheus-adapter-values.yaml"]
    (rule,) = values["rules"]["external"]
    (asked,) = (metric["external"]["metric"] for metric in autoscaler["spec"]["metrics"])
    assert asked["name"] == rule["name"]["as"]
    assert f'job="{asked["selector"]["matchLabels"]["job"]}"' in rule["seriesQuery"]
    series = rule["seriesQuery"].partition("{")[0]
    assert f"{series}{{<<.LabelMatchers>>}}" in rule["metricsQuery"]


def test_a_new_bundle_replaces_the_old_one_whole(tmp_path: Path) -> None:
    found, config = on_disk(tmp_path)
    write_bundle(bundle_from_recommendation(found, config), tmp_path / "bundle")
    write_bundle(bundle_from_recommendation(found, config, targets=("compose",)), tmp_path / "bundle")  # type: ignore[arg-type]
    assert (tmp_path / "bundle" / "compose.yaml").is_file()
    assert not (tmp_path / "bundle" / "kubernetes").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".bundle")] == []


def test_a_bundle_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    found, config = on_disk(tmp_path)
    write_bundle(bundle_from_recommendation(found, config), tmp_path / "bundle")
    before = contents(tmp_path / "bundle")
    rendered = bundle_from_recommendation(found, config)
    config.engine.files[0][1].unlink()
    with pytest.raises(RepositoryWriteFailed):
        write_bundle(rendered, tmp_path / "bundle")
    assert contents(tmp_path / "bundle") == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".bundle")] == []


@pytest.mark.parametrize(
    ("target", "own", "others"),
    [
        ("kubernetes", "kubernetes/base/deployment.yaml", ("compose.yaml", "kserve/inference-service.yaml")),
        ("kserve", "kserve/inference-service.yaml", ("compose.yaml", "kubernetes/base/deployment.yaml")),
        ("compose", "compose.yaml", ("kserve/inference-service.yaml", "kubernetes/base/deployment.yaml")),
    ],
)
def test_a_target_alone(target: str, own: str, others: tuple[str, str]) -> None:
    texts = bundle(targets=(target,)).texts
    assert own in texts
    assert not set(others) & set(texts)
    assert {"prometheus-rules.yaml", "grafana-dashboard.json", "README.md"} <= set(texts)
    for path in others:
        assert f"`{path.split('/')[0]}" not in texts["README.md"]


@settings(max_examples=15)
@given(
    rate=st.floats(0.01, 1e5),
    growth=st.floats(1, 20),
    certified=st.floats(0.05, 1e5),
    start_s=st.floats(0, 3600) | st.none(),
)
def test_whatever_the_traffic_the_manifests_agree(
    rate: Any, growth: float, certified: float, start_s: Any
) -> None:
    found, config = recorded()
    winner = found.winner.model_copy(update={"certificate": recommendations.certificate(certified)})
    options = BundleOptions(
        rate_per_s=rate, peak_rate_per_s=growth * rate, ramp_s=600.0, start_s=start_s, max_replicas=10**9
    )
    texts = bundle_from_recommendation(found.model_copy(update={"winner": winner}), config, options=options).texts
    manifests = documents(texts)
    keda = manifests["kubernetes/components/autoscaling-keda/scaled-object.yaml"][0]["spec"]
    hpa = manifests["kubernetes/components/autoscaling-hpa/horizontal-pod-autoscaler.yaml"][0]["spec"]
    kserve = manifests["kserve/inference-service.yaml"][0]["spec"]["predictor"]
    for low, high in (
        (keda["minReplicaCount"], keda["maxReplicaCount"]),
        (hpa["minReplicas"], hpa["maxReplicas"]),
        (kserve["minReplicas"], kserve["maxReplicas"]),
    ):
        assert 2 <= low <= high
        assert low * certified >= rate
        assert high * certified >= growth * rate
    threshold = float(keda["triggers"][0]["metadata"]["threshold"])
    assert 0 < threshold < certified
    average = hpa["metrics"][0]["external"]["target"]["averageValue"]
    assert int(average.removesuffix("m")) == pytest.approx(1000 * threshold, abs=1.0)
    assert isinstance(kserve["scaleTarget"], int)
    assert kserve["scaleTarget"] >= 1


def test_without_a_certificate_there_is_no_bundle() -> None:
    found, config = recorded()
    winner = found.winner.model_copy(update={"certificate": None})
    with pytest.raises(BadInput, match="certified no rate"):
        plan_for(found.model_copy(update={"winner": winner}), config)


def test_an_engine_of_tensorrt_rtx_runs_on_an_image_of_ones_own() -> None:
    made = bundle_from_recommendation(*on_gpu("tensorrt_rtx"))
    assert {path.split("/")[0] for path in made.texts if path.endswith(".pbtxt")} == {"model_repository"}
    (deployment,) = documents(made.texts)["kubernetes/base/deployment.yaml"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    image = container["image"]
    assert image in made.texts["images/triton.Dockerfile"]
    assert "tensorrt-rtx" in made.texts["images/triton.Dockerfile"]
    assert not [path for path in made.texts if "native" in path]
    assert "triton.Dockerfile" in made.texts["README.md"]


def test_every_gpu_that_was_measured_is_asked_for() -> None:
    found, config = on_gpu()
    two = found.machine.model_copy(update={"gpus": ("NVIDIA L4", "NVIDIA L4")})
    plan = plan_for(found.model_copy(update={"machine": two}), config, ON_GPU)
    assert plan.resources.gpus == 2


def test_every_latency_limit_is_certified_watched_and_measured() -> None:
    found, config = recorded()
    slo = found.slo.model_copy(update={"limits": (*found.slo.limits, LatencyLimit(quantile=0.95, limit_ms=30))})
    texts = bundle_from_recommendation(found.model_copy(update={"slo": slo}), config).texts
    words = "p99 within 50 ms and p95 within 30 ms"
    for path in ("README.md", "prometheus-rules.yaml", "kubernetes/base/deployment.yaml"):
        assert words in texts[path], path
    groups = yaml.safe_load(texts["prometheus-rules.yaml"])["groups"]
    rules = {rule.get("record", rule.get("alert")): rule for group in groups for rule in group["rules"]}
    assert 'quantile="0.95"' in rules["model_instance:triton_latency_ms:p95"]["expr"]
    assert rules["TritonLatencyOverLimitP95"]["expr"].endswith("> 30")
    assert rules["TritonLatencyOverLimit"]["expr"].endswith("> 50")
    assert ",0.95:" in texts["kubernetes/base/deployment.yaml"]
    assert '"quantile 0.95"' in texts["grafana-dashboard.json"]
    assert "--p95=30ms" in texts["kubernetes/smoke/job.yaml"]


@pytest.mark.parametrize("caveat", [None, "it met the SLO once, but not again on a restarted server"])
def test_the_readme_shows_the_caveat(caveat: Any) -> None:
    found, config = recorded()
    certificate = found.winner.certificate.model_copy(update={"caveat": caveat})
    winner = found.winner.model_copy(update={"certificate": certificate})
    readme = bundle_from_recommendation(found.model_copy(update={"winner": winner}), config).texts["README.md"]
    assert (f"**Caveat**: {caveat}." in readme) is (caveat is not None)
    assert ("**Caveat**" in readme) is (caveat is not None)
    assert "over the limit).\n\n" in readme


@pytest.mark.parametrize("servers", [1, 2])
def test_a_provisional_rate_is_marked_where_it_is_deployed(servers: int) -> None:
    found, config = recorded()
    certificate = found.winner.certificate.model_copy(update={"servers": servers, "runs": servers})
    winner = found.winner.model_copy(update={"certificate": certificate})
    texts = bundle_from_recommendation(found.model_copy(update={"winner": winner}), config).texts
    for name in ("kubernetes/base/deployment.yaml", "kserve/inference-service.yaml"):
        marks = yaml.safe_load(texts[name])["metadata"]["annotations"]
        assert marks.get("tritune/provisional") == ("true" if servers == 1 else None)
    assert ("rovisional" in texts["README.md"]) is (servers == 1)
