"""Tests of the completion scripts, in a real bash and zsh."""

import os
import pty
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer.main

import loadgen.cli
import optimizer.cli
from loadgen.options.command import completion_script
from optimizer.call_options import OPTIONS


def completed(script: str, name: str, *words: str) -> set[str]:
    """Return what bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in (name, *words))
    call = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _complete_{name}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def script() -> str:
    return completion_script("optimize", typer.main.get_command(optimizer.cli.app), OPTIONS, "bash")


def test_options_values_and_subcommands_are_completed(script: str) -> None:
    assert completed(script, "optimize", "--price-") == {"--price-per-hour", "--price-file", "--price-term"}
    assert completed(script, "optimize", "--model", "m.onnx", "--server", "em") == {"embedded"}
    assert completed(script, "optimize", "exp") == {"explain"}
    assert completed(script, "optimize", "report", "--c") == {"--csv"}
    assert completed(script, "optimize", "report", "--model") == set()
    assert "doctor" not in completed(script, "optimize", "--model", "")


@contextmanager
def typed_in(shell: str, folder: Path) -> Iterator[Callable[[str, str], None]]:
    """Yield what types into an interactive shell in a terminal, and reads until it shows the expected text."""
    plain = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", shell, *plain],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"},
    )
    os.close(inside)

    def type_and_read(text: str, expected: str) -> None:
        os.write(terminal, text.encode())
        shown = ""
        while expected not in shown:
            shown += os.read(terminal, 4096).decode()

    try:
        yield type_and_read
    finally:
        os.close(terminal)  # hangs the shell up
        process.wait()


@pytest.mark.timeout(240)  # what is never shown is never completed
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_terminal_completes(shell: Any, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name, app, declared in (
        ("optimize", optimizer.cli.app, OPTIONS),
        ("loadtest", loadgen.cli.app, loadgen.cli.OPTIONS),
    ):
        its = completion_script(name, typer.main.get_command(app), declared, shell)
        (tmp_path / f"{name}.sh").write_text(its)
    (tmp_path / "my model.onnx").touch()
    with typed_in(shell, tmp_path) as typed:
        typed("PS1='rea''dy> '; source ./optimize.sh; source ./loadtest.sh\n", "ready> ")
        typed("optimize --model m.onnx --proto\t", "--protocol")
        typed("gr\t", "grpc")
        typed("--model my\t", "my\\ model.onnx")
        typed("\x15optimize exp\t", "explain")
        typed("\x15loadtest --forma\t", "--format")
        typed("js\t", "json")
