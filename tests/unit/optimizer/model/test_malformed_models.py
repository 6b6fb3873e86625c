"""Tests of broken, hostile and odd models and arguments: two error lines and exit code 2, or success."""

import os
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import pytest
from malformed_models import CASES
from model_reader import ModelReader

from loadgen.errors import BadInput, PayloadError
from loadgen.spec.plan import Payload
from loadgen.traffic.model_info import ModelInfo, Tensor
from loadgen.traffic.samples import samples_from_file, shapes_in_file
from optimizer.cli import run_command
from optimizer.model.onnx_model import read_model
from optimizer.model.samples import samples_from_data

pytestmark = pytest.mark.long

BY_COMMAND = (
    "a .pt2", "a shape", "an open axis", "a path", "a name", "an empty path", "a factory",
    "a link to", "inputs that are in a path", "names with markup", "an input called", "an output called",
)  # fmt: skip
"""Cases that run the whole command, because they concern more than the model's reader."""


INPUTS = ("inputs that", "calibration inputs that")
"""Cases of a valid model with inputs that are read after it."""


@pytest.fixture(scope="module")
def reader() -> Iterator[ModelReader]:
    with ModelReader() as found:
        yield found


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith((*BY_COMMAND, *INPUTS))])
def test_the_reader_answers(name: Any, reader: ModelReader, tmp_path: Path) -> None:
    words = CASES[name](tmp_path)
    outcome = reader.read(Path(words[1]))
    assert outcome.told, f"{outcome.kind}\n{outcome.text}"


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(BY_COMMAND)])
def test_the_command_answers(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = CASES[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    code = run_command([*words, "--p99", "50ms", "--dry-run", "--output", str(tmp_path / "run")])
    out, err = capfd.readouterr()
    assert code in {0, 2}, err
    if code == 2:
        assert len(err.splitlines()) == 2, err
        assert "cannot be prepared" not in err
        assert len(err) < 10_000 + len(os.fspath(words[1]))
    else:
        assert out


def lines_of(read: Callable[[], Sized], error: type[Exception]) -> int:
    """Return the number of lines of the error that `read` raises; 0 if it returns a result."""
    try:
        assert len(read()) > 0
    except error as refused:
        return len(str(refused).splitlines())
    return 0


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("inputs that")])
def test_inputs_of_the_load_are_read_or_refused(name: Any, tmp_path: Path) -> None:
    file = Path(CASES[name](tmp_path)[-1])
    x = Tensor(name="x", datatype="FP32", shape=(-1, 4))
    info = ModelInfo(name="m", inputs=(x,), outputs=(x,), max_batch_size=8)
    assert lines_of(lambda: shapes_in_file(file), PayloadError) in {0, 2}
    assert lines_of(lambda: samples_from_file(file, info, Payload()), PayloadError) in {0, 2}


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("calibration inputs that")])
def test_inputs_of_the_calibration_are_read_or_refused(name: Any, tmp_path: Path) -> None:
    model, _, file = CASES[name](tmp_path)[1:]
    read = read_model(Path(model))
    assert lines_of(lambda: samples_from_data(Path(file), read).arrays, BadInput) in {0, 2}
