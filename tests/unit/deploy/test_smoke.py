import dataclasses
from typing import Any

import pytest
import yaml
from bundles import recorded

from deploy.bundle import bundle_from_recommendation
from deploy.smoke import Smoke, smoke_file, smoke_for
from model_repo.spec import TensorSpec
from search.records.slo import WorkloadRecord


def smoke(**engine_changes: Any) -> Smoke:
    found, config = recorded()
    return smoke_for(
        found, dataclasses.replace(config, engine=dataclasses.replace(config.engine, **engine_changes))
    )


def test_free_dimensions_get_the_sizes_that_were_measured() -> None:
    tokens = TensorSpec(name="ids", datatype="INT64", shape=(-1,), sample_shape=(128,))
    assert "--shape=ids:128" in smoke(inputs=(tokens,)).arguments("http://here")


def test_the_smoke_test_sends_the_certified_traffic() -> None:
    found, config = recorded()
    bursts = found.model_copy(update={"workload": WorkloadRecord(arrivals="gamma:cv=2", rows_per_request=4)})
    arguments = smoke_for(bursts, config).arguments("http://here")
    assert {"--arrivals=gamma:cv=2", "--batch-size=4"} <= set(arguments)


def test_the_smoke_test_goes_over_the_certified_protocol() -> None:
    found, config = recorded()
    over_grpc = found.model_copy(update={"workload": WorkloadRecord(protocol="grpc")})
    texts = bundle_from_recommendation(over_grpc, config).texts
    compose = yaml.safe_load(texts["compose.yaml"])
    assert compose["services"]["smoke"]["command"][0] == "grpc://triton:8001"
    for path in ("kubernetes/smoke/job.yaml", "kubernetes/components/argo-rollouts/rollout.yaml"):
        assert "grpc://" in texts[path]
        assert ":8000" not in texts[path]


def test_a_trace_goes_into_the_bundle_beside_every_smoke_test() -> None:
    found, config = recorded()
    trace = WorkloadRecord(arrivals="trace day.txt", trace="trace.txt", trace_requests=3, recorded_rate_per_s=2.0)
    bundle = bundle_from_recommendation(found.model_copy(update={"workload": trace}), config, trace="0\n1\n2\n")
    for folder in ("compose", "kubernetes/smoke", "kubernetes/components/argo-rollouts"):
        assert bundle.texts[f"{folder}/trace.txt"] == "0\n1\n2\n"
    assert "./compose/trace.txt:/etc/loadtest/trace.txt:ro" in bundle.texts["compose.yaml"]
    for folder in ("kubernetes/smoke", "kubernetes/components/argo-rollouts"):
        (generated,) = yaml.safe_load(bundle.texts[f"{folder}/kustomization.yaml"])["configMapGenerator"]
        assert generated == {"name": "small-cnn-smoke-files", "files": ["trace.txt"]}
    pod = yaml.safe_load(bundle.texts["kubernetes/smoke/job.yaml"])["spec"]["template"]["spec"]
    assert pod["volumes"][-1] == {"name": "files", "configMap": {"name": "small-cnn-smoke-files"}}
    assert "--trace=/etc/loadtest/trace.txt" in pod["containers"][0]["args"]
    assert "trace day.txt, recorded at 2/s" in bundle.texts["README.md"]


def test_requests_of_several_lengths_are_loaded_as_such() -> None:
    found, config = recorded()
    mixed = WorkloadRecord(mixed_shapes=True, input_data="input-data.txt")
    bundle = bundle_from_recommendation(found.model_copy(update={"workload": mixed}), config, lengths="8\n64\n")
    for folder in ("compose", "kubernetes/smoke", "kubernetes/components/argo-rollouts"):
        assert bundle.texts[f"{folder}/lengths.txt"] == "8\n64\n"
    pod = yaml.safe_load(bundle.texts["kubernetes/smoke/job.yaml"])["spec"]["template"]["spec"]
    assert "--input-data=/etc/loadtest/lengths.txt" in pod["containers"][0]["args"]
    assert "./compose/lengths.txt:/etc/loadtest/lengths.txt:ro" in bundle.texts["compose.yaml"]


def test_values_are_not_part_of_the_bundle() -> None:
    found, config = recorded()
    values = WorkloadRecord(input_data="input-data.npz")
    bundle = bundle_from_recommendation(found.model_copy(update={"workload": values}), config)
    assert "input-data" not in bundle.texts["kubernetes/smoke/job.yaml"]


def test_of_a_long_trace_the_bundle_has_the_whole_lines_that_fit() -> None:
    text = "".join(f"{number}.25\n" for number in range(200_000))
    kept = smoke_file(text)
    assert len(kept) < 1_000_000
    assert kept.endswith(".25\n")
    assert text.startswith(kept)


@pytest.mark.parametrize(("datatype", "named"), [("BYTES", True), ("INT64", False)])
def test_the_check_of_a_model_of_texts_names_the_option_for_samples(datatype: str, named: bool) -> None:
    found, config = recorded()
    inputs = (
        TensorSpec(name="one", datatype="FP32", shape=(1,)),
        TensorSpec(name="two", datatype=datatype, shape=(1,)),
    )
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, inputs=inputs))
    check = bundle_from_recommendation(found, config).texts["README.md"].partition("### Check it")[2]
    assert ("--input-data" in check) is named
