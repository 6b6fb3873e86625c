"""Unit: an error of any origin is shown without steering the terminal."""

import pytest
import typer

from loadgen.command.app import run_app
from loadgen.errors import TargetRefused


def _run(error: TargetRefused | OSError) -> int:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    return run_app(app, [], name="loadtest", when_stopped="Nothing was measured.")


def test_a_file_name_that_is_no_text_does_not_end_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(OSError(2, "gone", "\udce9.onnx")) == 3

    assert r"\udce9.onnx" in capsys.readouterr().err
