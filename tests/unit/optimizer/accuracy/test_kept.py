"""Tests of judgments of earlier runs: each part of their key counts, and fewer inputs count only for less time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx_models import small_cnn
from recommendations import accuracy

from optimizer.accuracy.check import Reference
from optimizer.accuracy.gate import Usable
from optimizer.accuracy.kept import Judgments, digest_of, judgments_of, once
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.cached import ResultCache
from optimizer.machine.hardware import Gpu
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.samples import Samples
from optimizer.run.prepare import judged_engine

RECORD = accuracy()
OF = {"precision": "fp16"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return read_model(small_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx", size=8))


def samples(**changes: Any) -> Samples:
    known: dict[str, Any] = {"arrays": {"x": np.arange(256.0)[:, None]}, "source": "synthetic", "batched": True}
    return Samples(**{**known, **changes})


def judgments(folder: Path, model: Model, **changes: Any) -> Judgments:
    known: dict[str, Any] = {
        "samples": samples(),
        "rule": accuracy_rule("strict,sqnr_db=30"),
        "processor": "a processor",
        "budget_s": 5.0,
    }
    values = {**known, **changes}
    chosen, rule = values.pop("samples"), values.pop("rule")
    return judgments_of(model, chosen, rule, cache=ResultCache(folder=folder), **values)


def test_a_judgment_is_found_again(tmp_path: Path, model: Model) -> None:
    judgments(tmp_path, model).keep(OF, RECORD)
    assert judgments(tmp_path, model, budget_s=500.0).find(OF)[0] == RECORD
    assert judgments(tmp_path, model).find({"precision": "bf16"}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": samples(arrays={"x": np.arange(256.0)[:, None] + 1})},
        {"samples": samples(arrays={"x": np.arange(256.0)[:, None].astype(np.float32)})},
        {"samples": samples(arrays={"y": np.arange(256.0)[:, None]})},
        {"samples": samples(source="given")},
        {"samples": samples(batched=False)},
        {"rule": accuracy_rule("strict")},
        {"rule": accuracy_rule("standard,sqnr_db=30")},
        {"rule": accuracy_rule("strict,sqnr_db=31")},
        {"processor": "another"},
    ],
)
def test_each_part_of_the_key_counts(tmp_path: Path, model: Model, changes: dict[str, Any]) -> None:
    judgments(tmp_path, model).keep(OF, RECORD)
    assert judgments(tmp_path, model, **changes).find(OF) is None


def test_another_model_is_not_judged_by_it(tmp_path: Path, model: Model) -> None:
    judgments(tmp_path, model).keep(OF, RECORD)
    assert judgments(tmp_path, replace(model, sha256="0" * 64)).find(OF) is None


def test_fewer_inputs_count_if_there_was_as_much_time(tmp_path: Path, model: Model) -> None:
    few = RECORD.changed(inputs=30, note="30 instead of 256 inputs")
    judgments(tmp_path, model).keep(OF, few)
    assert judgments(tmp_path, model, budget_s=5.0).find(OF)[0] == few
    assert judgments(tmp_path, model, budget_s=4.0).find(OF)[0] == few
    assert judgments(tmp_path, model, budget_s=5.1).find(OF) is None
    judgments(tmp_path, model, budget_s=5.1).keep(OF, RECORD)
    assert judgments(tmp_path, model, budget_s=50.0).find(OF)[0] == RECORD


def test_a_record_of_another_form_is_not_believed(tmp_path: Path, model: Model) -> None:
    judgments(tmp_path, model).keep(OF, RECORD)
    (entry,) = tmp_path.glob("results/*/entry.json")
    entry.write_text(entry.read_text().replace('\\"inputs\\":256', '\\"inputs\\":\\"many\\"'))
    assert "many" in entry.read_text()
    assert judgments(tmp_path, model).find(OF) is None


def test_no_samples_are_unlike_any() -> None:
    assert digest_of(None) is None
    assert digest_of(samples()) == digest_of(samples())


GPU = Gpu(name="NVIDIA A10", memory_bytes=None, driver="580.1", compute_capability="8.6", uuid=None)


class Doubling:
    """An engine x -> 2 x, and the runs that were asked of it."""

    def __init__(self, plan: Path, *, name: str = "tensorrt_rtx-1.4") -> None:
        self.name = name
        self.engine = SimpleNamespace(model_file="model.plan", files=(("model.plan", plan),))
        self.runs = 0

    def run(self, feeds: Any) -> list[Any]:
        self.runs += 1
        return [{"y": 2 * feed["x"]} for feed in feeds]


def test_an_engine_is_judged_once_per_plan_library_precision_gpu_and_driver(tmp_path: Path, model: Model) -> None:
    plans = [tmp_path / name for name in ("one.plan", "two.plan")]
    for plan in plans:
        plan.write_bytes(plan.name.encode())
    few = samples().first(16)
    rows = tuple(Doubling(plans[0]).run(few.feeds(1)))
    reference = once(lambda: Reference(samples=few, rows=rows, classifying=frozenset(), note="few"))
    kept = judgments(tmp_path / "cache", model, samples=few)
    usable = Usable(variants=(), reference=reference, judgments=kept)

    def runs(runner: Any, precision: Any = "fp16", gpu: Gpu = GPU) -> int:
        assert judged_engine(runner, precision, usable, gpu, accuracy_rule("strict")).passed
        return runner.runs

    assert runs(Doubling(plans[0])) == 1
    assert runs(Doubling(plans[0])) == 0
    assert runs(Doubling(plans[1])) == 1
    assert runs(Doubling(plans[0], name="tensorrt_rtx-1.5")) == 1
    assert runs(Doubling(plans[0]), precision="bf16") == 1
    assert runs(Doubling(plans[0]), gpu=replace(GPU, name="NVIDIA L4")) == 1
    assert runs(Doubling(plans[0]), gpu=replace(GPU, driver="999")) == 1


def test_a_value_is_computed_once_also_by_threads() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    first = once(make)
    with ThreadPoolExecutor(max_workers=8) as pool:
        assert set(pool.map(lambda _: first(), range(32))) == {1}
