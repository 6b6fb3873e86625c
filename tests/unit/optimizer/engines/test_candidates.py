"""Tests of the engines that compete, on invented machines: the test machine may have no GPU."""

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_models import node, write
from onnx_models import small_cnn

from model_repo.spec import Engine
from optimizer.cached import put_file
from optimizer.engines.builder import find_tensorrt
from optimizer.engines.cache import CacheWriteFailed, EngineCache
from optimizer.engines.candidates import EngineRace, onnxruntime_engine
from optimizer.engines.from_variant import engine_key, engine_of
from optimizer.engines.standalone import EngineRunner, StandaloneTimings
from optimizer.machine.hardware import Gpu, Hardware
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.weights import number_format
from optimizer.precision.variants import VariantOptions, variant_from_model
from search.records.recommendation import AccuracyRecord

pytestmark = pytest.mark.slow
needs_tensorrt_rtx = pytest.mark.skipif(
    find_tensorrt("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed"
)

WITHOUT_GPU = Hardware(
    cpu="some processor",
    logical_cores=4,
    physical_cores=4,
    memory_bytes=2**34,
    gpus=(),
    providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    cloud=None,
)
A10 = Gpu(name="NVIDIA A10", memory_bytes=24 * 2**30, driver="580.1", compute_capability="8.6", uuid="GPU-1")
WITH_GPU = dataclasses.replace(WITHOUT_GPU, gpus=(A10,))


def compete(
    machine: Hardware,
    tmp_path: Path,
    *,
    limit_ms: float = 50.0,
    may_build: bool = True,
    race: bool = True,
    excluded: Sequence[str] = (),
    judge: Callable[[EngineRunner, str], AccuracyRecord] | None = None,
    variants: list[Any] | None = None,
    failed: list[Any] | None = None,
) -> tuple[list[tuple[str, str]], tuple[Engine, ...], list[Any]]:
    said: list[Any] = []
    competing = variants or [("fp32", read_model(small_cnn(tmp_path / "cnn.onnx")))]
    unchanged = next((model for precision, model in competing if precision == "fp32"), None)
    with EngineRace(
        machine,
        precisions=[precision for precision, _ in competing],
        given="fp32" if unchanged is None else number_format(unchanged.graph.proto),
        cache=EngineCache(tmp_path / "cache"),
        max_batch_size=8,
        limit_ms=limit_ms,
        may_build=may_build,
        race=race,
        excluded=excluded,
        on_event=said.append,
    ) as engines_race:
        for precision, model in [*competing, *(failed or [])]:
            engines_race.begin(precision, model)
        engines = engines_race.engines(competing, judge)
    notes = [event.text for event in said if hasattr(event, "text")]
    return [(engine.backend, engine.device) for engine in engines], engines, notes


def test_without_a_gpu_onnx_runtime_is_alone(tmp_path: Path) -> None:
    assert compete(WITHOUT_GPU, tmp_path)[0] == [("onnxruntime", "cpu")]
    assert not (tmp_path / "cache").exists()


def test_a_gpu_that_says_too_little_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    silent = dataclasses.replace(WITH_GPU, gpus=(dataclasses.replace(A10, compute_capability=None),))
    kinds, _, notes = compete(silent, tmp_path)
    assert kinds == [("onnxruntime", "gpu")]
    assert any("does not report its compute capability" in note for note in notes)


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, and a cache with its engine and invented times of it on the A10."""
    tmp_path = tmp_path_factory.mktemp("built")
    library = find_tensorrt("tensorrt_rtx")
    if library is None:
        pytest.skip("tensorrt-rtx is not installed")
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    key = engine_key(model, "fp32", library=library, gpu=A10, max_batch_size=8)
    built = engine_of(key, model, cache=EngineCache(tmp_path / "cache"))
    plan = dict(built.engine.files)["model.plan"]
    write_times(plan, 2.0, 4.0)
    put_file(plan.with_name("kernels.cache"), b"kernels")
    return tmp_path


@pytest.fixture
def timed(built_once: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder which the test may change."""
    return shutil.copytree(built_once, tmp_path / "timed")


def tf32_and_fp16(model: Model, timed: Path, *, fp16_ms: tuple[float, float]) -> list[tuple[Any, Model]]:
    """Return two variants whose engines are in the cache, with times at batch 1 and 8: tf32 takes 2 and 4 ms."""
    half = variant_from_model(model, "fp16", VariantOptions(work_dir=timed / "fp16", device="gpu")).model
    variants: list[tuple[Any, Model]] = [("tf32", model), ("fp16", half)]
    compete(WITH_GPU, timed, variants=variants, may_build=True)
    for plan in (timed / "cache").rglob("model.plan"):
        built = json.loads(plan.with_name("engine.json").read_text())["key"]["precision"]
        if built != "fp32":
            write_times(plan, *(fp16_ms if built == "fp16" else (2.0, 4.0)))
    return variants


def write_times(plan: Path, one_ms: float, eight_ms: float) -> None:
    """Write invented times at batch 1 and 8 on the A10 next to a plan."""
    times = [{"batch_size": 1, "batch_ms": one_ms}, {"batch_size": 8, "batch_ms": eight_ms}]
    found = {"gpu": A10.name, "driver": "580.1", "times": times}
    put_file(plan.with_name("times.json"), json.dumps(found).encode())


def test_libraries_that_compute_fp32_in_tf32_build_one_of_the_two(timed: Any) -> None:
    model = read_model(timed / "cnn.onnx")
    alone, _, _ = compete(WITH_GPU, timed, variants=[("fp32", model)])
    both, _, notes = compete(WITH_GPU, timed, variants=[("fp32", model), ("tf32", model)], may_build=False)
    assert alone == [("onnxruntime", "gpu"), ("tensorrt_rtx", "gpu")]
    assert ("tensorrt_rtx", "gpu") not in both  # fp32 would be in the cache
    assert any("no tensorrt_rtx tf32 engine" in note for note in notes)


def test_an_engine_of_tensorrt_competes_with_its_kernels(timed: Any) -> None:
    kinds, engines, notes = compete(WITH_GPU, timed)
    assert kinds == [("onnxruntime", "gpu"), ("tensorrt_rtx", "gpu")]
    assert {name for name, _ in engines[1].files} == {"model.plan", "engine.json", "kernels.cache"}
    assert "tensorrt_rtx fp32 engine from the cache, 2.00 ms standalone at batch 1" in notes
    assert engines[1].alone_ms == ((1, 2.0), (8, 4.0))


def test_an_engine_that_the_user_excludes_is_not_built(timed: Any) -> None:
    kinds, _, notes = compete(WITH_GPU, timed, excluded=("tensorrt_rtx-fp32",))
    assert kinds == [("onnxruntime", "gpu")]
    assert not any("tensorrt_rtx" in note for note in notes)


def runs_once(runner: EngineRunner, _: str) -> Any:
    return runner.run([{"image": np.zeros((1, 3, 32, 32), np.float32)}])


@pytest.mark.parametrize(
    ("gpu", "options", "reason"),
    [
        ({}, {"limit_ms": 1.5}, "alone it takes 2.0 ms, over the limit"),
        ({"driver": "999"}, {}, "does not run on NVIDIA A10: "),  # has no times, and is tried; here is no such GPU
        ({}, {"judge": runs_once}, "does not run on NVIDIA A10: "),
    ],
)
def test_an_engine_that_cannot_be_served_is_left_out_with_the_reason(
    timed: Any, gpu: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    machine = dataclasses.replace(WITH_GPU, gpus=(dataclasses.replace(A10, **gpu),))
    kinds, _, notes = compete(machine, timed, **options)
    assert kinds == [("onnxruntime", "gpu")]
    assert any(reason in note for note in notes)


def test_a_dry_run_takes_what_is_in_the_cache_and_builds_nothing(
    timed: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("empty")
    kinds, _, notes = compete(WITH_GPU, elsewhere, may_build=False)
    assert kinds == [("onnxruntime", "gpu")]
    assert any("has not been built yet" in note for note in notes)
    assert not (elsewhere / "cache").exists()
    assert ("tensorrt_rtx", "gpu") in compete(WITH_GPU, timed, may_build=False)[0]


@needs_tensorrt_rtx
def test_an_operator_that_tensorrt_lacks_is_named_and_onnx_runtime_goes_on(tmp_path: Path) -> None:
    shapes = {"x": ["N", 3, 3]}, {"y": ["N"]}
    model = read_model(write(tmp_path / "det.onnx", [node("Det", "x", "y")], *shapes))  # type: ignore[arg-type]
    kinds, _, notes = compete(WITH_GPU, tmp_path, variants=[("fp32", model)])
    assert kinds == [("onnxruntime", "gpu")]
    (note,) = [note for note in notes if "no tensorrt_rtx fp32 engine" in note]
    assert "node the_Det_y (operator Det)" in note


@needs_tensorrt_rtx
def test_a_gpu_too_old_for_a_precision_loses_that_engine_alone(tmp_path: Path) -> None:
    turing = dataclasses.replace(WITH_GPU, gpus=(dataclasses.replace(A10, compute_capability="7.5"),))
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    kinds, _, notes = compete(turing, tmp_path, variants=[("tf32", model)])
    assert kinds == [("onnxruntime", "gpu")]
    assert any(
        "tf32 needs a GPU of compute capability 8.0 or newer, and this one has 7.5" in note for note in notes
    )


@needs_tensorrt_rtx
def test_a_cache_that_cannot_be_written_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    """The folder of the cache is a file: no user can write below it, not even root."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheWriteFailed, match="cannot be written below") as caught:
        compete(WITH_GPU, tmp_path)
    assert "--cache-dir" in caught.value.fix


def test_an_engine_whose_variant_turns_out_wrong_does_not_compete(timed: Any) -> None:
    model = read_model(timed / "cnn.onnx")
    (_, _), (_, half) = tf32_and_fp16(model, timed, fp16_ms=(1.0, 2.0))
    kinds, engines, notes = compete(WITH_GPU, timed, variants=[("tf32", model)], failed=[("fp16", half)])
    assert {engine.precision for engine in engines} == {"tf32"}
    assert ("tensorrt_rtx", "gpu") in kinds
    assert not any("fp16" in note for note in notes)


def test_an_engine_that_is_not_close_to_fp32_is_left_out(timed: Any) -> None:
    judged = []

    def judge(runner: Any, precision: Any) -> AccuracyRecord:
        judged.append((runner.name, precision))
        return AccuracyRecord.model_construct(passed=False, reason="output y at batch 1: SQNR 3.0 dB")

    kinds, _, notes = compete(WITH_GPU, timed, judge=judge)
    assert kinds == [("onnxruntime", "gpu")]
    assert judged == [(f"tensorrt_rtx-{find_tensorrt('tensorrt_rtx').version}", "fp32")]
    assert any("not close enough to fp32: output y at batch 1: SQNR 3.0 dB" in note for note in notes)


def test_engines_are_checked_together_and_each_keeps_its_own_answer(timed: Any) -> None:
    """Two engines of one model, one of them judged wrong; their order is that of the variants."""
    model = read_model(timed / "cnn.onnx")
    both = threading.Barrier(2, timeout=240)

    def judge(runner: Any, precision: Any) -> AccuracyRecord:
        both.wait()  # passes only if both are judged at the same time
        return AccuracyRecord.model_construct(passed=precision == "tf32", reason="SQNR 3.0 dB")

    variants = tf32_and_fp16(model, timed, fp16_ms=(2.0, 4.0))
    machine = dataclasses.replace(WITH_GPU, logical_cores=8)
    kinds, engines, notes = compete(machine, timed, judge=judge, variants=variants)
    assert kinds == [("onnxruntime", "gpu"), ("tensorrt_rtx", "gpu")]
    assert engines[1].precision == "tf32"
    assert [note for note in notes if "no tensorrt_rtx" in note] == [
        "no tensorrt_rtx fp16 engine: not close enough to fp32: SQNR 3.0 dB"
    ]


@pytest.mark.parametrize(
    ("fp16_ms", "right", "judged"),
    [
        ((2.0, 16.0), {"fp16", "tf32"}, ["tf32"]),
        ((2.0, 16.0), {"fp16"}, ["tf32", "fp16"]),
        ((1.9, 3.8), {"fp16", "tf32"}, ["fp16"]),
        ((1.9, 3.8), {"tf32"}, ["fp16", "tf32"]),
        ((1.9, 4.2), {"fp16", "tf32"}, ["tf32", "fp16"]),
    ],
)
def test_engines_far_behind_or_beaten_at_each_size_are_proven_only_if_the_fastest_is_wrong(
    timed: Any, fp16_ms: tuple[float, float], right: set[str], judged: list[str]
) -> None:
    """tf32 takes 2 and 4 ms."""
    found: list[str] = []

    def judge(runner: Any, precision: Any) -> AccuracyRecord:
        found.append(precision)
        return AccuracyRecord.model_construct(passed=precision in right, reason="SQNR 3.0 dB")

    variants = tf32_and_fp16(read_model(timed / "cnn.onnx"), timed, fp16_ms=fp16_ms)
    _, engines, notes = compete(WITH_GPU, timed, judge=judge, variants=variants)
    assert ({engine.precision for engine in engines[1:]}, found) == (right.intersection(judged), judged)
    slower = "tensorrt_rtx fp16 engine is left out: 25 % of the fastest standalone"
    assert (slower in notes) == (fp16_ms == (2.0, 16.0) and judged == ["tf32"])
    beaten = [note for note in notes if "left out" in note and "tensorrt_rtx fp16 is faster at each" in note]
    assert len(beaten) == (fp16_ms == (1.9, 3.8) and judged == ["fp16"])
    _, engines, _ = compete(WITH_GPU, timed, variants=variants, race=False)
    assert [engine.precision for engine in engines[1:]] == ["tf32", "fp16"]


def test_what_onnx_runtime_does_alone_is_taken_from_the_cache(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    alone = StandaloneTimings(
        gpu=A10, cache=EngineCache(tmp_path / "cache"), max_batch_size=8, may_run=False, memory_bytes=2**34
    )
    engine = onnxruntime_engine(model, "fp32", device="gpu")
    kept = alone.kept_file(engine, model, library_version=version("onnxruntime-gpu"))
    kept.parent.mkdir(parents=True)
    times = [{"batch_size": 8, "batch_ms": 6.0}, {"batch_size": 1, "batch_ms": 3.0}]
    put_file(kept, json.dumps({"gpu": A10.name, "driver": A10.driver, "times": times}).encode())
    _, engines, notes = compete(WITH_GPU, tmp_path)
    assert engines[0].alone_ms == ((1, 3.0), (8, 6.0))
    assert "onnxruntime fp32: 3.00 ms standalone at batch 1" in notes
    newer = dataclasses.replace(WITH_GPU, gpus=(dataclasses.replace(A10, driver="999"),))
    _, engines, _ = compete(newer, tmp_path, may_build=False)
    assert engines[0].alone_ms == ()


def test_of_onnx_runtime_only_the_baseline_competes_where_it_does_not_run_alone(tmp_path: Path) -> None:
    """This machine has no such GPU."""
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    kinds, engines, notes = compete(WITH_GPU, tmp_path, variants=[("fp32", model), ("bf16", model)])
    assert [kind for kind in kinds if kind[0] == "onnxruntime"] == [("onnxruntime", "gpu")]
    assert (engines[0].precision, engines[0].alone_ms) == ("fp32", ())
    assert any("no onnxruntime bf16 engine: it does not run on NVIDIA A10" in note for note in notes)
    kinds, _, _ = compete(WITH_GPU, tmp_path, variants=[("fp32", model), ("bf16", model)], may_build=False)
    assert [kind for kind in kinds if kind[0] == "onnxruntime"] == [("onnxruntime", "gpu")] * 2


def half_cnn(tmp_path: Path) -> Model:
    """A model that was exported in fp16."""
    whole = read_model(small_cnn(tmp_path / "cnn.onnx"))
    half = variant_from_model(whole, "fp16", VariantOptions(work_dir=tmp_path, io_precision="fp16")).model
    return read_model(half.path)


def test_a_model_that_was_given_in_fp16_is_called_fp16(tmp_path: Path) -> None:
    given = half_cnn(tmp_path)
    _, engines, _ = compete(WITHOUT_GPU, tmp_path, variants=[("fp32", given)])
    assert [engine.precision for engine in engines] == ["fp16"]


def test_precisions_that_are_the_same_as_the_given_one_are_left_out(tmp_path: Path) -> None:
    given = half_cnn(tmp_path)
    variants = [(precision, given) for precision in ("fp32", "tf32", "fp16", "int8")]
    _, engines, _ = compete(WITHOUT_GPU, tmp_path, variants=variants)
    assert [engine.precision for engine in engines] == ["fp16", "int8"]
