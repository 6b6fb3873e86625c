import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadgen.files import write_atomically


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk is to a process: its writes fail half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
