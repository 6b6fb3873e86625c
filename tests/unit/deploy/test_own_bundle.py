"""The bundle of a user's own model: its files, its text, and the server that was measured."""

from pathlib import Path
from typing import Any

import pytest
import recommendations
from own_repositories import BACKENDS, PYTHON, python_model, written

from deploy.bundle import bundle_from_recommendation, write_bundle
from deploy.images import imported_distributions
from deploy.plan import BundleOptions
from loadgen.errors import BadInput
from model_repo.repository.own_model import own_engine
from model_repo.server.options import DEFAULT_IMAGE
from model_repo.spec import Engine
from search.records.recommendation import RecommendationRecord, RuntimeRecord
from search.space import default_config


def found_on(server: str, **runtime: Any) -> RecommendationRecord:
    given = {"triton_version": "2.51.0", "runtime": "native", "python": None, "image": None, "packages": {}}
    record = RuntimeRecord(server=server, **{**given, **runtime})  # type: ignore[arg-type]
    found = recommendations.recommendation(runtime=record)
    return found.model_copy(
        update={"model": found.model.model_copy(update={"opset": None, "file": "users/forest"})}
    )


def forest(root: Path) -> Engine:
    folder = written(root, "forest", BACKENDS["fil"][1], {"1/xgboost.json": "{}"})
    return own_engine(folder, BACKENDS["fil"][1], on_gpu=False)


def test_a_container_that_was_measured_is_deployed(tmp_path: Path) -> None:
    config = default_config(forest(tmp_path))
    bundle = bundle_from_recommendation(found_on("docker", image="registry.example/triton:9"), config)
    assert bundle.plan.serving_image == "registry.example/triton:9"
    assert bundle.texts["model_repository/forest/config.pbtxt"] == BACKENDS["fil"][1]
    assert bundle.copies["model_repository/forest/1/xgboost.json"] == tmp_path / "forest" / "1" / "xgboost.json"
    assert "model_repository/forest/1/.keep" not in bundle.texts
    (tmp_path / "forest" / "2").mkdir()
    bundle = bundle_from_recommendation(found_on("docker", image="registry.example/triton:9"), config)
    assert bundle.texts["model_repository/forest/2/.keep"] == ""
    assert not [path for path in bundle.texts if "native" in path]


def test_a_program_stays_one_and_a_key_private(tmp_path: Path) -> None:
    config = default_config(forest(tmp_path / "users"))
    tool = tmp_path / "users" / "forest" / "1" / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o550)
    private = [tool.with_name("xgboost.json"), tool.parents[1] / "config.pbtxt"]
    for path in private:
        path.chmod(0o600)
    bundle = bundle_from_recommendation(found_on("docker", image="registry.example/triton:9"), config)
    write_bundle(bundle, tmp_path / "bundle")
    folder = tmp_path / "bundle" / "model_repository" / "forest"
    assert (folder / "1" / "tool").stat().st_mode & 0o777 == 0o750
    for path in private:
        copy = folder / path.relative_to(tmp_path / "users" / "forest")
        assert copy.stat().st_mode & 0o777 == 0o600


def test_the_image_of_another_server_is_asked_for_if_it_is_not_known(tmp_path: Path) -> None:
    config = default_config(forest(tmp_path))
    assert bundle_from_recommendation(found_on("local"), config).plan.serving_image == DEFAULT_IMAGE
    with pytest.raises(BadInput) as raised:
        bundle_from_recommendation(found_on("local", triton_version="2.60.0"), config)
    assert "--image" in raised.value.fix
    named = BundleOptions(image="registry.example/triton:9")
    found = found_on("local", triton_version=None)
    bundle = bundle_from_recommendation(found, config, options=named)
    assert bundle.plan.serving_image == "registry.example/triton:9"


def test_the_image_of_the_embedded_server_has_what_the_model_imports(tmp_path: Path) -> None:
    folder = python_model(tmp_path)
    (folder / "1" / "helper.py").write_text("from yaml import safe_load\nimport no.such, .wrong\n")
    (folder / "1" / "second.py").write_text("from yaml import safe_load\nfrom . import model\nimport no_such\n")
    engine = own_engine(folder, PYTHON, on_gpu=False)
    assert set(imported_distributions(engine)) == {"numpy", "PyYAML"}
    packages = {"numpy": "2.0.0", "nvidia-pytriton": "0.7.0", "pyyaml": "6.0"}
    found = found_on("embedded", runtime="python", python="3.11", packages=packages)
    bundle = bundle_from_recommendation(found, default_config(engine))
    assert bundle.plan.builds_image
    assert "pyyaml==6.0\n" in bundle.texts["images/constraints.txt"]
    assert "    pyyaml \\\n" in bundle.texts["images/triton.Dockerfile"]


def test_onnx_on_the_embedded_server_is_offered_with_triton_s_own_backend_too(tmp_path: Path) -> None:
    """Both repositories keep the user's text: the image of what was measured has our backend of that name."""
    text = BACKENDS["onnxruntime_onnx"][1]
    folder = written(tmp_path, "ranker", text, {"1/model.onnx": "onnx"})
    engine = own_engine(folder, text, on_gpu=False)
    assert "onnxruntime" in " ".join(imported_distributions(engine))
    found = found_on("embedded", runtime="python", python="3.11", packages={"onnxruntime": "1.23.0"})
    bundle = bundle_from_recommendation(found, default_config(engine))
    assert bundle.plan.builds_image
    assert "onnxruntime==1.23.0\n" in bundle.texts["images/constraints.txt"]
    assert "ONNX Runtime 1.23.0" in bundle.plan.runtime_words
    assert bundle.plan.image == DEFAULT_IMAGE
    for repository in ("model_repository", "model_repository_native"):
        assert bundle.texts[f"{repository}/ranker/config.pbtxt"] == text
        assert bundle.copies[f"{repository}/ranker/1/model.onnx"] == folder / "1" / "model.onnx"
    assert not [path for path in bundle.copies if path.endswith(".py")]
