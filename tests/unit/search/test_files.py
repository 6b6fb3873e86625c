from pathlib import Path

from search.files import append_line, whole_lines


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
