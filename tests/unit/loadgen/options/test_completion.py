"""Tests of the completion scripts, in a real bash."""

import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

import loadgen.cli
import optimizer.cli
from loadgen.options.completion import completion_script
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


def test_a_file_name_with_a_space_is_one_word(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my model.onnx").touch()
    monkeypatch.chdir(tmp_path)
    call = 'COMP_WORDS=(optimize --model my); COMP_CWORD=2; _complete_optimize; echo "${#COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]


def test_loadtest_has_no_subcommands() -> None:
    its = completion_script("loadtest", typer.main.get_command(loadgen.cli.app), loadgen.cli.OPTIONS, "bash")
    assert completed(its, "loadtest", "--find") == {"--find-max"}
    assert completed(its, "loadtest", "--format", "j") == {"json"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_the_script(script: str) -> None:
    its = completion_script("optimize", typer.main.get_command(optimizer.cli.app), OPTIONS, "zsh")
    subprocess.run(["zsh", "-fc", its], check=True, capture_output=True)
