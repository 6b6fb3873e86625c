"""Run a command that has to refuse what it is given, and return its two lines."""

from collections.abc import Callable

import pytest


def refused(
    capsys: pytest.CaptureFixture[str],
    run_command: Callable[[list[str]], int],
    *arguments: object,
) -> list[str]:
    """Return what happened and what to do, without the marks before them. Nothing else is printed."""
    assert run_command([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 2, captured.err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("       ")
    return [line[7:] for line in lines]
