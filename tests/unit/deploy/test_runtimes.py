"""The runtime that was measured is the one that is deployed."""

import dataclasses
import shutil
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from bundles import ON_GPU, SOURCES, on_gpu, recorded

from deploy.bundle import bundle_from_recommendation
from deploy.plan import BundleOptions, plan_for
from deploy.smoke import check_for, smoke_for
from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from model_repo.repository.config_pbtxt import parse_config_pbtxt
from search.records.recommendation import RuntimeRecord

IMAGE = "nvcr.io/nvidia/tritonserver:25.01-py3"


def measured(**changes: Any) -> RuntimeRecord:
    known: dict[str, Any] = {
        "server": "embedded",
        "runtime": "python",
        "triton_version": "2.51.0",
        "python": "3.12",
        "image": None,
        "packages": {"nvidia-pytriton": "0.7.0", "onnxruntime-gpu": "1.30.0"},
    }
    return RuntimeRecord(**{**known, **changes})


def native() -> RuntimeRecord:
    return measured(
        server="docker", runtime="native", triton_version="2.54.0", python=None, image=IMAGE, packages={}
    )


def texts(runtime: RuntimeRecord, **options: Any) -> Mapping[str, str]:
    found, config = recorded()
    found = found.model_copy(update={"runtime": runtime})
    return bundle_from_recommendation(found, config, options=BundleOptions(**options)).texts


def pod(files: Mapping[str, str]) -> Any:
    return yaml.safe_load(files["kubernetes/base/deployment.yaml"])["spec"]["template"]["spec"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_bundle_of_our_own_backend_carries_its_library() -> None:
    found, config = on_gpu("tensorrt_rtx")
    found = found.model_copy(update={"runtime": measured(runtime="slots")})
    made = bundle_from_recommendation(found, config, options=ON_GPU, sources=SOURCES)
    folder = f"model_repository/{config.engine.model_name}"
    assert parse_config_pbtxt(made.texts[f"{folder}/config.pbtxt"]).backend == "tritune"
    names = {name.removeprefix(f"{folder}/1/") for name in made.copies}
    assert {"libtriton_tritune.so", "slots_model.py", "tritune_gpu/slots.py", "model.plan"} <= names
    assert "model.py" not in names
    assert "tritune's backend" in made.plan.runtime_words
    assert made.plan.builds_image


def test_a_native_backend_that_was_measured_is_the_default() -> None:
    files = texts(native())
    (container,) = pod(files)["containers"]
    assert container["image"] == IMAGE
    assert container["command"] == ["tritonserver"]
    assert parse_config_pbtxt(files["model_repository/small_cnn/config.pbtxt"]).backend == "onnxruntime"
    assert "images/triton.Dockerfile" not in files
    assert not [path for path in files if "native" in path]
    assert f"Triton 2.54.0 of {IMAGE}" in files["README.md"].partition("##")[0]


def test_shared_memory_is_for_the_python_backend() -> None:
    assert [volume["name"] for volume in pod(texts(measured()))["volumes"]] == ["models", "shm", "tmp"]
    assert [volume["name"] for volume in pod(texts(native()))["volumes"]] == ["models", "tmp"]
    assert "shm_size" not in texts(native())["compose.yaml"]


def test_images_have_the_registry_of_the_option() -> None:
    files = texts(measured(), registry="registry.example.org/team")
    (container,), (init,) = pod(files)["containers"], pod(files)["initContainers"]
    assert container["image"].startswith("registry.example.org/team/small-cnn-triton:")
    assert init["image"].startswith("registry.example.org/team/small-cnn-models:")
    assert f"docker push {container['image']}" in files["README.md"]
    with pytest.raises(BadInput, match="--registry"):
        texts(measured(), registry="not a registry")


def test_a_release_of_kube_prometheus_stack_is_a_label() -> None:
    paths = ("kubernetes/base/service-monitor.yaml", "kubernetes/base/prometheus-rule.yaml")
    for path in paths:
        assert "labels" not in yaml.safe_load(texts(measured())[path])["metadata"]
        found = yaml.safe_load(texts(measured(), prometheus_release="monitoring")[path])
        assert found["metadata"]["labels"] == {"release": "monitoring"}
    assert "--prometheus-release" in texts(measured())["README.md"]


@pytest.mark.parametrize(
    ("certified", "quantile", "checked", "rate"),
    [(900.0, 0.99, 0.99, 25.0), (900.0, 0.999, 0.95, 25.0), (10.0, 0.99, 0.95, 5.0), (0.5, 0.99, 0.5, 0.25)],
)
def test_the_check_asks_for_what_two_minutes_can_decide(
    certified: float, quantile: float, checked: float, rate: float
) -> None:
    found, config = recorded()
    slo = found.slo.model_copy(update={"limits": (LatencyLimit(limit_ms=50.0, quantile=quantile),)})
    check = check_for(smoke_for(found.model_copy(update={"slo": slo}), config), certified)
    assert (check.limits[0].quantile, check.rate_per_s) == (checked, rate)
    assert check.duration_s <= 100


def test_an_image_of_other_content_has_another_tag() -> None:
    found, config = recorded()
    others = (
        (found, config, SOURCES),
        (found, dataclasses.replace(config, instance_count=1), SOURCES),
        (found, config, dataclasses.replace(SOURCES, wheel=b"of another version")),
        (found, config, dataclasses.replace(SOURCES, server={"onnxruntime-gpu": "1.30.0"})),
    )
    plans = [plan_for(record, served, None, sources) for record, served, sources in others]
    assert len({plan.serving_image for plan in plans}) == len({plan.own_image("models") for plan in plans}) == 4
    assert plan_for(found, config, None, SOURCES).tag == plans[0].tag
