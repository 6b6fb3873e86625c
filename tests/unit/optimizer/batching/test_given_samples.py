"""Samples that the user gave prove a batch where random inputs cannot: texts, and decisions far from 0."""

import json
from pathlib import Path
from typing import Any

import batch_models
import numpy as np
import onnx
import pytest
from batch_models import node, write
from foreign_models import string_input
from onnx_models import echo

from loadgen.errors import BadInput
from loadgen.spec.plan import Payload
from optimizer.batching.dynamic_batch import Batching
from optimizer.batching.kept import Settled, settled
from optimizer.cached import ResultCache
from optimizer.errors import ShapeError
from optimizer.model.onnx_model import read_model
from optimizer.model.samples import given_samples, requests_from_data

pytestmark = pytest.mark.slow

WORDS = [["a", "the", "of", "a"], ["of", "of", "a", "x"], ["the", "y", "a", "a"], ["x", "x", "a", "of"]]


def data(path: Path, name: str, samples: Any) -> Path:
    path.write_text(json.dumps({"data": [{name: sample} for sample in samples]}))
    return path


def known(folder: Path, model: Path, samples: Path | None, **more: Any) -> Settled:
    return settled(model, {}, folder / "work", input_data=samples, **more)


def batching(folder: Path, model: Path, samples: Path | None) -> Batching:
    return known(folder, model, samples).batching


def mixing_texts(path: Path) -> Path:
    """words (N, 4) string -> the largest code of a word in the whole batch."""
    string_input(path)
    proto = onnx.load_model(path)
    proto.graph.node[0].output[0] = "codes"
    proto.graph.node.insert(1, node("ReduceMax", "codes", "most", axes=[0], keepdims=1))
    proto.graph.node.insert(2, node("Max", "codes most", "ids"))
    path.write_bytes(proto.SerializeToString())
    return path


def languages_in_reverse(path: Path) -> Path:
    """The vocabulary, and a language (N, 1) string -> those of the batch from the last row to the first."""
    string_input(path)
    proto = onnx.load_model(path)
    proto.graph.node.append(node("Slice", "language last before_first axis back", "spoken"))
    for values, name in ((proto.graph.input, "language"), (proto.graph.output, "spoken")):
        values.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["N", 1]))
    for name, value in (("last", -1), ("before_first", -(2**31)), ("axis", 0), ("back", -1)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(batch_models.ints(value), name))
    path.write_bytes(proto.SerializeToString())
    return path


def mixes_above_1000(path: Path) -> Path:
    """y = x, but 0 once any value of the batch exceeds 1000: no ordinary random number does."""
    nodes = [
        node("ReduceMax", "x", "most", keepdims=1),
        node("Less", "most limit", "small"),
        node("Cast", "small", "factor", to=onnx.TensorProto.FLOAT),
        node("Mul", "x factor", "y"),
    ]
    return write(path, nodes, {"x": ["N", 1]}, {"y": ["N", 1]}, {"limit": np.array(1000, np.float32)})


def needs_a_length(path: Path) -> Path:
    """A row of a table for ids from 5 on: 0 and 1, the random ids, are outside of it."""
    nodes = [node("Sub", "ids five", "at"), node("Gather", "table at", "y")]
    constants = {"five": batch_models.ints(5), "table": batch_models.draw(4, 3)}
    return write(path, nodes, {"ids": ["N"]}, {"y": ["N", 3]}, constants, integers=("ids",))


def mixes_above_4(path: Path) -> Path:
    """A row of a table of eight, but 0 once any id of the batch exceeds 4: random ids are 0 and 1."""
    nodes = [
        node("Gather", "table ids", "found"),
        node("ReduceMax", "ids", "most", keepdims=0),
        node("Less", "most five", "small"),
        node("Cast", "small", "factor", to=onnx.TensorProto.FLOAT),
        node("Mul", "found factor", "y"),
    ]
    constants = {"five": batch_models.ints(5), "table": batch_models.draw(8, 3)}
    return write(path, nodes, {"ids": ["N", 8]}, {"y": ["N", 8, 3]}, constants, integers=("ids",))


def sums_without_zeros(path: Path) -> Path:
    """The sum of a row, whose zeros are taken out of the whole batch before it is split into rows again."""
    nodes = [
        node("Reshape", "x flat", "all"),
        node("Equal", "all zero", "zeros"),
        node("Not", "zeros", "others"),
        node("Compress", "all others", "left", axis=0),
        node("Shape", "x", "shape"),
        node("Gather", "shape first", "rows"),
        node("Concat", "rows flat", "parted", axis=0),
        node("Reshape", "left parted", "again"),
        node("ReduceSum", "again last", "y", keepdims=1),
    ]
    constants = {
        "flat": batch_models.ints(-1),
        "zero": np.array(0, np.float32),
        "first": batch_models.ints(0),
        "last": batch_models.ints(1),
    }
    return write(path, nodes, {"x": ["N", 5]}, {"y": ["N", 1]}, constants)


def large_or_not(path: Path) -> Path:
    """True for values over 1e6."""
    nodes = [node("Greater", "x edge", "over"), node("Cast", "over", "y", to=onnx.TensorProto.INT64)]
    edge = {"edge": np.array([[1e6]], np.float32)}
    return write(path, nodes, {"x": ["N", 1]}, {"y": ["N", 1]}, edge, integers=("y",))


def short_table(path: Path) -> Path:
    """Rows of a table of four."""
    constants = {"table": batch_models.draw(4, 3)}
    nodes = [node("Gather", "table ids", "y")]
    return write(path, nodes, {"ids": ["N", 8]}, {"y": ["N", 8, 3]}, constants, integers=("ids",))


WITH_ZEROS = [[1.0] * 5, [1.0] * 3 + [0.0] * 2, [2.0] * 4 + [0.0], [3.0] + [0.0] * 4]


@pytest.mark.parametrize(
    ("make", "name", "samples", "action", "reason"),
    [
        (string_input, "words", WORDS, "kept", ""),
        (echo, "words", [words[:2] for words in WORDS], "kept", ""),
        (mixing_texts, "words", WORDS, "unbatched", "comes out differently in a batch"),
        (string_input, "words", WORDS[:1], "unbatched", "(samples that differ more may help)"),
        (string_input, "words", WORDS[:1] * 4, "unbatched", "(samples that differ more may help)"),
        (needs_a_length, "ids", [5, 6, 8], "kept", ""),
        (needs_a_length, "ids", [99, 5, 99, 6, 8], "kept", ""),
        (needs_a_length, "ids", [5, 5], "unbatched", "samples that differ more"),
        (short_table, "ids", [[0] * 8, [99] * 8], "kept", ""),
        (batch_models.sixteen_rows_at_most, "z", [[1.0]], "kept", ""),  # the check of the load refuses it
        (large_or_not, "x", [[0.0], [2e6], [3.0], [4e6], [9e6]], "kept", ""),
        (mixes_above_1000, "x", [[1.0], [2e6], [3.0]], "unbatched", ""),
        (mixes_above_4, "ids", [[one] * 8 for one in (0, 99, 5, 1)], "unbatched", ""),
        (sums_without_zeros, "x", WITH_ZEROS, "unbatched", "batches of 2, 3, 4"),
    ],
)
def test_given_samples_show_whether_there_is_a_batch(
    tmp_path: Path, make: Any, name: str, samples: Any, action: str, reason: str
) -> None:
    done = batching(tmp_path, make(tmp_path / "m.onnx"), data(tmp_path / "x.json", name, samples))
    assert (done.action, done.model.batched) == (action, action == "kept")
    assert reason in done.reason


@pytest.mark.parametrize(
    ("make", "action"),
    [
        (large_or_not, "unbatched"),
        (mixes_above_1000, "kept"),
        (mixes_above_4, "kept"),
        (sums_without_zeros, "kept"),
    ],
)
def test_random_values_do_not_show_what_given_ones_do(tmp_path: Path, make: Any, action: str) -> None:
    assert batching(tmp_path, make(tmp_path / "m.onnx"), None).action == action


def test_each_text_has_to_differ(tmp_path: Path) -> None:
    def given(languages: str) -> Path:
        pairs = zip(WORDS, languages.split(), strict=True)
        document = {"data": [{"words": words, "language": [language]} for words, language in pairs]}
        (tmp_path / "texts.json").write_text(json.dumps(document))
        return tmp_path / "texts.json"

    path = languages_in_reverse(tmp_path / "m.onnx")
    done = batching(tmp_path, path, given("en en en en"))
    assert done.action == "unbatched"
    assert done.reason.startswith("Served without batching: language is the same")
    assert "output spoken differs" in batching(tmp_path, path, given("en de en fr")).reason


def test_several_texts_without_a_batch(tmp_path: Path) -> None:
    path, given = string_input(tmp_path / "m.onnx"), data(tmp_path / "words.json", "words", [WORDS[:2], WORDS[2:]])
    for shapes in ({}, {"words": (3, 4)}):  # not said to be no batch, and another number of texts
        with pytest.raises(BadInput) as caught:
            settled(path, shapes, tmp_path / "work", input_data=given)
        assert "--shape words:2,4" in caught.value.fix
    found = settled(path, {"words": (2, 4)}, tmp_path / "work", input_data=given).batching
    assert (found.action, found.model.inputs[0].shape) == ("unbatched", (-1, 4))
    loads = requests_from_data(Payload(data_file=given), found.model.inputs, batched=False)
    assert [load["words"].tolist() for load in loads] == [WORDS[:2], WORDS[2:]]


@pytest.mark.parametrize("lengths", [False, True])
def test_texts_need_samples(tmp_path: Path, lengths: bool) -> None:
    (tmp_path / "lengths.txt").write_text("4\n")
    path = string_input(tmp_path / "m.onnx")
    with pytest.raises(BadInput) as caught:
        known(tmp_path, path, tmp_path / "lengths.txt" if lengths else None)
    assert "'words'" in caught.value.what
    assert '--input-data FILE.json with {"data": [{"words": ["a text"]}, ...]}' in caught.value.fix


def test_samples_without_the_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no input words"):
        known(tmp_path, string_input(tmp_path / "m.onnx"), data(tmp_path / "x.json", "other", WORDS))


def test_a_model_that_runs_with_neither_is_refused(tmp_path: Path) -> None:
    path = needs_a_length(tmp_path / "m.onnx")
    with pytest.raises(ShapeError, match="does not run as it is") as caught:
        batching(tmp_path, path, None)
    assert "--input-data" in caught.value.fix
    with pytest.raises(ShapeError, match="the first of the given inputs"):
        batching(tmp_path, path, data(tmp_path / "ids.json", "ids", [99]))


def test_other_samples_are_another_proof(tmp_path: Path) -> None:
    path, given = string_input(tmp_path / "m.onnx"), data(tmp_path / "words.json", "words", WORDS)
    cache = ResultCache(folder=tmp_path / "cache")
    assert [known(tmp_path, path, given, cache=cache).cached for _ in range(2)] == [False, True]
    data(given, "words", WORDS[:1])
    assert known(tmp_path, path, given, cache=cache).batching.action == "unbatched"


def test_samples_of_the_commonest_shape_with_finite_values(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": ["N", "T"]}, {"y": ["N", "T"]})
    given = data(tmp_path / "x.json", "x", [[1.0], [1.0, 2.0], [float("nan"), 1.0], [3.0, 4.0], [5.0, 6.0]])
    samples = given_samples(read_model(path), given, 2)
    assert samples.arrays["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert samples.source == "given"


def test_texts_are_read_as_utf_8(tmp_path: Path) -> None:
    model, file = read_model(string_input(tmp_path / "m.onnx")), tmp_path / "words.npz"
    np.savez(file, words=np.array([[word.encode() for word in words] for words in WORDS]))
    samples = given_samples(model, file, 16)
    assert samples.arrays["words"].tolist() == WORDS
    np.savez(file, words=np.array([[b"\xff"] * 4]))
    with pytest.raises(BadInput, match="utf-8"):
        given_samples(model, file, 16)
