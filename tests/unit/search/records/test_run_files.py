import errno
import json
import os
from pathlib import Path

import pytest

from loadgen.errors import BadInput
from search.record import Record
from search.records.run_files import append_line, read_outcome, read_records, whole_lines

RECORDED = Path(__file__).parents[3] / "data" / "recorded_runs"


class Line(Record):
    number: int


def test_a_line_cut_short_by_a_crash_is_left_out_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    append_line(path, "one")
    with path.open("a") as file:
        file.write('{"half": ')
    assert list(whole_lines(path)) == ["one"]
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"


def test_a_file_that_is_nothing_but_a_cut_line_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text("x" * 200_000)
    append_line(path, "one")
    assert path.read_text() == "one\n"


@pytest.mark.parametrize(("device", "code"), [("/dev/full", errno.ENOSPC), ("/dev/null", errno.EINVAL)])
def test_a_line_is_written_and_then_waited_for_until_it_is_on_the_disk(device: str, code: int) -> None:
    """`/dev/full` takes no byte: it was written first. `/dev/null` takes all, but is no disk to wait for."""
    with pytest.raises(OSError, match=device) as failed:
        append_line(Path(device), "one")
    assert failed.value.errno == code


def test_a_line_has_left_this_process_when_the_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wait = tmp_path / "lines.jsonl", os.fsync
    seen = []
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(path.read_text()), wait(fd)))
    append_line(path, "one")
    assert seen == ["one\n"]


def test_records_come_back_in_order_and_none_where_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert read_records(path, Line, what="a line") == ()
    for number in (2, 1):
        append_line(path, Line(number=number).model_dump_json())
    assert read_records(path, Line, what="a line") == (Line(number=2), Line(number=1))


def test_fields_that_an_earlier_version_wrote_are_passed_over(tmp_path: Path) -> None:
    old = json.loads((RECORDED / "failures" / "recommendation.json").read_text())
    old["accuracy"][0]["first_node"] = "conv1 (Conv)"
    old["queue_policy"] = {"quantile": 0.99, "rate_per_s": 60.0, "with_it": [], "without": []}
    old["front_ends"] = [{"protocol": "http"}]
    (tmp_path / "recommendation.json").write_text(json.dumps(old))
    assert read_outcome(tmp_path) == read_outcome(RECORDED / "failures")


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (b'{"number": "x"}', "Line 2 of {path} is not a line: number: "),
        (b'{"number": ', "Line 2 of {path} is not a line: Invalid JSON"),
        (b"\xff", "{path} cannot be read: 'utf-8' codec"),
    ],
)
def test_a_damaged_line_is_named_in_two_lines(tmp_path: Path, second: bytes, said: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"number": 1}\n' + second + b"\n")
    with pytest.raises(BadInput) as refused:
        read_records(path, Line, what="a line")
    assert refused.value.what.startswith(said.format(path=path))
    assert len(str(refused.value).splitlines()) == 2


def test_a_folder_in_place_of_the_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_records(tmp_path, Line, what="a line")
