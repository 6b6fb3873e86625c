"""Tests of engines that run on a virtual GPU: those with a fault are left out, and the others go on."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_gpu
from batch_models import ints, node, write

from optimizer.accuracy.check import OnnxCpuRunner, reference_of
from optimizer.accuracy.gate import Usable
from optimizer.accuracy.kept import judgments_of, once
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.cached import NO_CACHE
from optimizer.engines.cache import EngineCache
from optimizer.engines.candidates import EngineRace
from optimizer.engines.from_variant import engine_key, engine_of
from optimizer.engines.standalone import EngineRunner, StandaloneTimings, Times, beaten_by
from optimizer.machine.hardware import Gpu, Hardware
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.samples import synthetic_samples
from optimizer.precision.names import Precision
from optimizer.run.prepare import judged_engine
from search.records.recommendation import AccuracyRecord
from search.trials.events import Note

pytestmark = pytest.mark.slow

GPU = Gpu(name="NVIDIA H100", memory_bytes=80 * 2**30, driver="580.1", compute_capability="9.0", uuid="GPU-1")
MACHINE = Hardware(
    cpu="some processor", logical_cores=8, physical_cores=8, memory_bytes=2**34, gpus=(GPU,),
    providers=("CUDAExecutionProvider", "CPUExecutionProvider"), cloud=None,
)  # fmt: skip
RULE = accuracy_rule("strict")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """y = 2 x, and the sums of x."""
    nodes = [node("MatMul", "x two", "y"), node("ReduceSum", "x axis", "sums", keepdims=0)]
    constants = {"two": 2 * np.eye(3, dtype=np.float32), "axis": ints(1)}
    path = tmp_path_factory.mktemp("model") / "double.onnx"
    return read_model(write(path, nodes, {"x": ["N", 3]}, {"y": ["N", 3], "sums": ["N"]}, constants))


FAULTS: dict[Precision, dict[str, int]] = {
    "tf32": {},
    "fp16": {"wrong_at": 24},
    "bf16": {"memory_for": 0},  # for no context
    "int8": {"memory_for": 1},  # not for the largest batch, of 2
    "fp8": {"memory_for": 48},  # not for all sizes at which it is judged
}


def test_engines_that_fail_on_the_gpu_are_left_out_and_the_others_go_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual_gpu.install(monkeypatch, FAULTS)
    samples = synthetic_samples(model, 16, seed=0)
    usable = Usable(
        variants=(),
        reference=once(partial(reference_of, OnnxCpuRunner(model=model).run_within, samples, classifying=())),
        judgments=judgments_of(model, samples, RULE, cache=NO_CACHE, processor="", budget_s=60.0),
    )
    wrong: dict[str, set[int]] = {}
    seen: list[Any] = []

    def judge(runner: EngineRunner, precision: Precision) -> AccuracyRecord:
        record = judged_engine(runner, precision, usable, GPU, RULE)
        wrong[precision] = {output.batch_size for output in record.outputs if not output.passed}
        return record

    with EngineRace(
        MACHINE, precisions=FAULTS, cache=EngineCache(tmp_path), max_batch_size=2, limit_ms=6e4, race=False,
        on_event=seen.append,
    ) as race:  # fmt: skip
        engines = race.engines([(precision, model) for precision in FAULTS], judge)
    on_tensorrt = [engine for engine in engines if engine.backend == "tensorrt_rtx"]
    assert [engine.precision for engine in on_tensorrt] == ["tf32"]
    assert [size for size, _ in on_tensorrt[0].alone_ms] == [1, 2]
    assert [engine.precision for engine in engines if engine.backend == "onnxruntime"] == list(FAULTS)
    assert wrong == {"tf32": set(), "fp16": {24}}
    warnings = [event.text for event in seen if isinstance(event, Note) and event.warning]
    left_out = {text.split()[2]: text for text in warnings if "tensorrt_rtx" in text}
    reasons = {"fp16": "batch 24", **dict.fromkeys(("bf16", "int8", "fp8"), "CUDA_ERROR_OUT_OF_MEMORY")}
    assert left_out.keys() == reasons.keys()
    assert not any("model_repo" in text for text in left_out.values()), "of an error in a child, not its module"
    assert [precision for precision, reason in reasons.items() if reason not in left_out[precision]] == []


@pytest.mark.parametrize("memory_bytes", [2**34, 1])
def test_a_race_compiles_the_kernels_of_its_batch_sizes_and_the_proof_those_of_the_others(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    virtual_gpu.install(monkeypatch, {"tf32": {}})
    cache = EngineCache(tmp_path)
    key = engine_key(model, "tf32", library=virtual_gpu.library(), gpu=GPU, max_batch_size=16)
    alone = StandaloneTimings(gpu=GPU, cache=cache, max_batch_size=16, may_run=True, memory_bytes=memory_bytes)

    built, times = alone.of_plan(model, key, partial(engine_of, key, model, cache=cache))
    kernels = dict(built.engine.files)["model.plan"].with_name("kernels.cache")
    assert [size for size, _ in times] == [1, 8, 16]
    assert json.loads(kernels.read_bytes()) == [1, 8, 16]
    alone.complete(model, built)
    alone.merge(built.engine)
    assert json.loads(kernels.read_bytes()) == [1, 2, 4, 8, 16]
    assert not list(kernels.parent.glob("*.part"))


@pytest.mark.parametrize(
    ("times", "won"),
    [
        (((1, 0.9), (8, 1.9)), True),
        (((1, 0.9), (4, 1.5), (8, 1.9)), True),
        (((1, 0.9), (8, 2.0)), False),
        (((1, 0.9), (4, 1.5)), False),
        (((1, 0.9), (4, 1.5), (8, 2.4)), False),
        ((), False),
    ],
)
def test_times_of_the_same_batch_sizes_are_compared(times: Times, won: bool) -> None:
    assert ("quick" in beaten_by([("quick", times)], ((1, 1.0), (8, 2.0)))) is won
    assert not beaten_by([("quick", times)], ())
