"""Broken, hostile and odd models and arguments: each is refused in two lines with exit code 2, or works."""

import os
from pathlib import Path

import pytest
from malformed_models import CASES
from model_reader import ModelReader

from optimizer.cli import run_command

BY_COMMAND = (
    "a .pt2", "a shape", "inputs that", "an open axis", "a path", "a name", "an empty path", "a factory",
    "names with markup", "an input called", "an output called", "a terminal", "a link to", "flipped bits 1",
)  # fmt: skip
"""Cases that the whole command is run for, as more than the model's reader is concerned."""


def by_command(name: str) -> bool:
    return name.startswith(BY_COMMAND)


@pytest.fixture(scope="module")
def reader():
    with ModelReader() as found:
        yield found


def test_there_are_more_cases_than_were_asked_for():
    assert len(CASES) >= 115


@pytest.mark.parametrize("name", [name for name in CASES if not by_command(name)])
def test_the_reader_answers(name, reader, tmp_path):
    words = CASES[name](tmp_path)
    outcome = reader.read(Path(words[1]))
    assert outcome.told, f"{outcome.kind}\n{outcome.text}"


@pytest.mark.parametrize("name", [name for name in CASES if by_command(name)])
def test_the_command_answers(name, tmp_path, monkeypatch, capfd):
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
