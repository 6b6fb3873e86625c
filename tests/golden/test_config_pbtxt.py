"""The config.pbtxt of typical configurations, letter by letter. UPDATE_GOLDENS=1 rewrites them, and fails."""

import dataclasses
import os
from pathlib import Path

import pytest
from engines import plain_engine

from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.spec import ServingConfig

GOLDEN = Path(__file__).with_name("config_pbtxt")
PLAN = (("model.plan", Path("somewhere/model.plan")),)
ONNX = ServingConfig(
    engine=plain_engine(), max_batch_size=4, instance_count=2, max_queue_delay_us=500, intra_op_threads=1
)
TENSORRT = dataclasses.replace(
    ONNX,
    engine=plain_engine(backend="tensorrt", device="gpu"),
    cuda_graph_batch_sizes=(1, 4),
    preferred_batch_sizes=(4,),
)
TENSORRT_RTX = dataclasses.replace(
    TENSORRT,
    engine=plain_engine(backend="tensorrt_rtx", device="gpu", model_file="model.plan", files=PLAN),
)
ONNX_GPU = dataclasses.replace(ONNX, engine=plain_engine(device="gpu"))
CASES = {
    "onnxruntime_python": (ONNX, "python"),
    "onnxruntime_native": (ONNX, "native"),
    "tensorrt_native": (TENSORRT, "native"),
    "tensorrt_rtx_python": (TENSORRT_RTX, "python"),
    "tensorrt_rtx_slots": (TENSORRT_RTX, "slots"),
    "onnxruntime_gpu_native": (ONNX_GPU, "native"),
}


@pytest.mark.parametrize("name", CASES)
def test_config_pbtxt(name: str) -> None:
    config, runtime = CASES[name]
    text, golden = render_config_pbtxt(config, runtime=runtime), GOLDEN / f"{name}.pbtxt"  # type: ignore[arg-type]
    if os.environ.get("UPDATE_GOLDENS"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
        pytest.fail(f"{golden.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert text == golden.read_text()
