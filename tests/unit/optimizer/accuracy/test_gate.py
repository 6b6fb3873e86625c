"""Tests of the precisions that remain after variants were made and judged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_models import string_input
from onnx_models import small_cnn

from loadgen.errors import BadInput
from optimizer.accuracy.gate import VariantRequest, usable_variants, variants_at_once
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.cached import ResultCache
from optimizer.errors import UnsupportedModel
from optimizer.model.onnx_model import Model, read_model
from optimizer.precision.variants import VariantOptions
from search.records.recommendation import AccuracyRecord
from search.trials.events import Note

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return read_model(small_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx", size=8))


def asked(tmp_path: Path, *precisions: str, **changes: Any) -> VariantRequest:
    made = {one: changes.pop(one) for one in ("device", "io_precision", "calibration_method") if one in changes}
    known: dict[str, Any] = {"precisions": precisions, "rule": accuracy_rule("strict")}
    return VariantRequest(options=VariantOptions(work_dir=tmp_path, **made), **{**known, **changes})


def tried(model: Model, request: VariantRequest) -> tuple[list[str], tuple[AccuracyRecord, ...], list[str]]:
    """Return (usable precisions, records, notes)."""
    notes: list[Any] = []
    usable = usable_variants(model, request, notes.append)
    texts = [event.text for event in notes if isinstance(event, Note)]
    return [variant.precision for variant in usable.variants], usable.accuracy, texts


def calibration(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, image=np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32))
    return path


def test_fp32_alone_is_not_judged(model: Model, tmp_path: Path) -> None:
    assert tried(model, asked(tmp_path, "fp32")) == (["fp32"], (), [])


def test_variants_are_handed_on_as_soon_as_they_are_made(model: Model, tmp_path: Path) -> None:
    handed: list[str] = []
    request = asked(tmp_path, "fp32", "fp16", rule=accuracy_rule("strict,sqnr_db=200"))
    usable = usable_variants(model, request, on_made=lambda precision, _: handed.append(precision))
    assert handed == ["fp32", "fp16"]
    assert [variant.precision for variant in usable.variants] == ["fp32"]


def test_several_at_once_give_the_same_in_the_same_order(model: Model, tmp_path: Path) -> None:
    data, seen = calibration(tmp_path), []
    for processors in (1, 8):
        folder = tmp_path / str(processors)
        folder.mkdir()
        request = asked(folder, "int8", "fp32", "fp16", calibration_data=data, processors=processors)
        seen.append(tried(model, request))
    assert seen[0] == seen[1]
    assert seen[0][0] == ["int8", "fp32", "fp16"]
    assert variants_at_once(model.size_bytes, 8) > variants_at_once(model.size_bytes, 7) == 1


def test_an_equal_run_takes_it_from_the_cache_and_another_one_does_not(model: Model, tmp_path: Path) -> None:
    data, cache, found = calibration(tmp_path), ResultCache(folder=tmp_path / "cache"), []

    def once(name: str, **changes: Any) -> tuple[Any, bool]:
        folder = tmp_path / name
        folder.mkdir()
        seen: list[Any] = []
        options = {"calibration_data": data, "cache": cache, **changes}
        usable = usable_variants(model, asked(folder, "int8", "fp32", "fp16", **options), seen.append)
        assert all(variant.model.path.is_file() for variant in usable.variants)
        return usable, any("fp32 on" in getattr(event, "detail", "") for event in seen)

    for name in ("first", "second"):
        found.append(once(name))
    (first, ran), (second, ran_again) = found
    assert (ran, ran_again) == (True, False)
    assert second.accuracy == first.accuracy
    assert [variant.precision for variant in second.variants] == ["int8", "fp32", "fp16"]
    assert [variant.model.sha256 for variant in second.variants] == [v.model.sha256 for v in first.variants]
    assert [variant.kept for variant in second.variants] == [variant.kept for variant in first.variants]
    assert second.variants[2].model.all_inputs == first.variants[2].model.all_inputs
    assert once("method", calibration_method="entropy")[1]
    assert once("inputs", io_precision="fp16")[1]
    assert once("processor", processor="another")[1]
    assert once("rule", rule=accuracy_rule("standard"))[1]


def test_fp32_is_compared_with_itself_at_another_batch_size_alone(model: Model, tmp_path: Path) -> None:
    _, (fp32, fp16), _ = tried(model, asked(tmp_path, "fp32", "fp16"))
    assert {output.batch_size for output in fp32.outputs} == {8}
    assert {output.batch_size for output in fp16.outputs} == {1, 8}


def test_given_data_calibrates_and_judges(model: Model, tmp_path: Path) -> None:
    request = asked(tmp_path, "fp32", "int8", calibration_data=calibration(tmp_path))
    usable, records, notes = tried(model, request)
    assert usable == ["fp32", "int8"]
    assert [(record.precision, record.inputs, record.input_source) for record in records] == [
        ("fp32", 8, "given"),
        ("int8", 8, "given"),
    ]
    assert "int8 is numerically close to fp32 on 8 given inputs" in notes[-1]


def test_what_was_judged_elsewhere_is_the_same_and_is_not_judged_again(model: Model, tmp_path: Path) -> None:
    """A worker makes the same variant files as the coordinator, so that the engines of both have one key."""
    data = calibration(tmp_path)
    made = []
    for judged in (True, False):
        folder = tmp_path / str(judged)
        folder.mkdir()
        request = asked(folder, "fp32", "fp16", "int8", calibration_data=data, judged=judged)
        made.append(usable_variants(model, request))
    first, again = made
    assert first.reference is not None
    assert len(first.accuracy) == 3
    assert again.reference is None
    assert again.accuracy == ()
    assert [variant.model.sha256 for variant in again.variants] == [v.model.sha256 for v in first.variants]


def test_the_inputs_of_the_load_judge_where_they_fit(model: Model, tmp_path: Path) -> None:
    data = calibration(tmp_path)
    _, records, _ = tried(model, asked(tmp_path, "fp32", "fp16", input_data=data))
    assert (records[0].inputs, records[0].input_source) == (32, "given")
    np.savez(data, picture=np.ones(3))
    _, records, notes = tried(model, asked(tmp_path, "fp32", "fp16", input_data=data))
    assert records[0].input_source == "synthetic"
    assert "judged on random inputs: --input-data" in notes[0]


def test_texts_are_computed_in_fp32_alone(tmp_path: Path) -> None:
    texts = read_model(string_input(tmp_path / "m.onnx"))
    for device in ("cpu", "gpu"):
        request = asked(tmp_path, "fp32", "fp16", "int8", device=device)
        usable, records, notes = tried(texts, request)
        assert (usable, records) == (["fp32"], ())
        assert [note.partition(" ")[0] for note in notes] == ["fp16", "int8"]
    with pytest.raises(BadInput) as caught:
        tried(texts, replace(request, calibration_data=calibration(tmp_path)))
    assert "--calibration-data" in caught.value.what
    assert "--input-data" in caught.value.fix


def test_what_needs_data_or_a_gpu_is_left_out_and_said(model: Model, tmp_path: Path) -> None:
    usable, _, notes = tried(model, asked(tmp_path, "fp32", "bf16", "int8"))
    assert usable == ["fp32"]
    assert notes == [
        "bf16 is left out: it needs a GPU.",
        "int8 is left out: it needs --calibration-data with typical inputs.",
    ]


def test_a_variant_that_fails_is_out_with_its_figure(model: Model, tmp_path: Path) -> None:
    rule = accuracy_rule("strict,sqnr_db=90")
    usable, records, notes = tried(model, asked(tmp_path, "fp32", "fp16", rule=rule))
    assert usable == ["fp32"]
    assert not records[-1].passed
    assert "fp16 is left out, not close enough to fp32 on 256 synthetic inputs" in notes[-1]
    assert "SQNR" in notes[-1]


def test_bf16_is_only_tried_if_fp16_is_not_usable(model: Model, tmp_path: Path) -> None:
    def judged(rule: str, only_if_needed: tuple[str, ...] = ("bf16",)) -> list[str]:
        kept = ResultCache(folder=tmp_path / "kept")
        options = {"device": "gpu", "if_fp16_fails": only_if_needed, "rule": accuracy_rule(rule), "cache": kept}
        _, records, _ = tried(model, asked(tmp_path, "fp32", "fp16", "bf16", **options))
        return [record.precision for record in records]

    assert judged("strict") == ["fp32", "fp16"]
    assert judged("strict,sqnr_db=90") == ["fp32", "fp16", "bf16"]
    assert judged("strict", only_if_needed=()) == ["fp32", "fp16", "bf16"]
    assert judged("strict") == ["fp32", "fp16"], "though it is kept from the run before"


def test_nothing_left(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="None of the precisions fp16"):
        tried(model, asked(tmp_path, "fp16", rule=accuracy_rule("strict,sqnr_db=200")))
    with pytest.raises(UnsupportedModel, match="None of the precisions tf32, int8"):
        tried(model, asked(tmp_path, "tf32", "int8"))
