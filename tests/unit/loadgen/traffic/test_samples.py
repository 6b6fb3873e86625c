"""Requests of the lengths in a file."""

from pathlib import Path

import pytest

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload
from loadgen.traffic.model_info import ModelInfo, Tensor
from loadgen.traffic.payloads import request_tensors
from loadgen.traffic.samples import MOST_LENGTHS, lengths_from_file, shapes_in_file


def tokens(*sizes: int, max_batch_size: int = 8) -> ModelInfo:
    inputs = tuple(Tensor(name=name, datatype="INT64", shape=(-1, *sizes)) for name in ("ids", "mask"))
    return ModelInfo(name="m", max_batch_size=max_batch_size, inputs=inputs, outputs=())


def written(folder: Path, text: str) -> Path:
    path = folder / "lengths.txt"
    path.write_text(text)
    return path


def test_requests_have_the_lengths_in_turn_in_all_free_dimensions(tmp_path: Path) -> None:
    path = written(tmp_path, "# tokens\n7\n3\n\n7 # again\n")
    pool = request_tensors(tokens(-1), Payload(data_file=path))
    assert [(one["ids"].shape, one["mask"].shape) for one in pool] == [((1, n), (1, n)) for n in (7, 3, 7)]
    again = request_tensors(tokens(-1), Payload(data_file=path, picked=(1,)))
    assert [one["ids"].tolist() for one in again] == [pool[1]["ids"].tolist()]
    assert request_tensors(tokens(2, -1), Payload(data_file=path))[0]["ids"].shape == (1, 2, 7)
    assert [dict(one)["length"] for one in shapes_in_file(path)] == [(7,), (3,), (7,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("7\nmany\n", "line 2: 'many' is no length"),
        ("0\n", "line 1"),
        ("1.5\n", "line 1"),
        ("", "empty"),
        ("1\n" * (MOST_LENGTHS + 1), "over 10,000"),
    ],
)
def test_files_that_hold_no_lengths(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PayloadError, match=says) as caught:
        request_tensors(tokens(-1), Payload(data_file=written(tmp_path, text)))
    assert str(caught.value).count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="cannot be read"):
        lengths_from_file(tmp_path / "none.txt")


def test_lengths_need_a_free_dimension_and_make_no_batch(tmp_path: Path) -> None:
    path = written(tmp_path, "7\n3\n")
    with pytest.raises(PayloadError, match="no input of m has a free dimension"):
        request_tensors(tokens(4), Payload(data_file=path))
    with pytest.raises(PayloadError, match="differ in shape"):
        request_tensors(tokens(-1), Payload(data_file=path, batch_size=2))
