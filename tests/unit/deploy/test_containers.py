import pytest

from deploy.images import RELEASES, image_for
from loadgen.errors import BadInput
from model_repo.server.options import DEFAULT_IMAGE


def test_tensorrt_decides_the_release() -> None:
    image = image_for(backend="tensorrt", tensorrt_version="10.10.0.31", opset=17)
    assert image == "nvcr.io/nvidia/tritonserver:25.05-py3"


def test_of_releases_with_the_same_tensorrt_the_newest() -> None:
    assert image_for(backend="tensorrt", tensorrt_version="10.9.0.34", opset=17).endswith(":25.04-py3")


@pytest.mark.parametrize("version", ["9.3.0", "11.0.0.1", None])
def test_a_tensorrt_without_a_release_is_refused(version: str | None) -> None:
    with pytest.raises(BadInput) as refused:
        image_for(backend="tensorrt", tensorrt_version=version, opset=17)
    assert str(version or "this engine") in refused.value.what
    assert "--image" in refused.value.fix


def test_onnx_runtime_gets_the_release_that_was_measured() -> None:
    assert image_for(backend="onnxruntime", tensorrt_version=None, opset=17) == DEFAULT_IMAGE
    assert f":{RELEASES[0].tag}-py3" in DEFAULT_IMAGE


def test_a_newer_opset_needs_a_newer_release() -> None:
    assert image_for(backend="onnxruntime", tensorrt_version=None, opset=23).endswith(":25.05-py3")
    with pytest.raises(BadInput, match="opset 99"):
        image_for(backend="onnxruntime", tensorrt_version=None, opset=99)
