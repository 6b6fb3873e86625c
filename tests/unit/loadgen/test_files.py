import json
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from loadgen.files import copy_whole, whole_file, write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, "new" * 100)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_half_a_character_of_a_file_name_does_not_cost_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, '{"file": "\udce9.onnx"}')
    assert json.loads(path.read_text()) == {"file": "\udce9.onnx"}


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with whole_file(path) as file:
        file.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert list(path.parent.iterdir()) == [path]


def test_a_copy_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(300))
    target.write_text("old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        copy_whole(source, target)
    assert target.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [source, target]
    copy_whole(source, target)
    assert target.read_bytes() == bytes(300)
