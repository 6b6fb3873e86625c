import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from optimizer.machine import doctor
from optimizer.machine.doctor import Check, _http_answers, diagnose, diagnosis_table, show_diagnosis

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs may take minutes to answer, and the machine's stalls are watched for a moment only."""
    monkeypatch.setattr(doctor, "ASK_TIMEOUT_S", 240.0)
    monkeypatch.setattr(doctor, "START_TIMEOUT_S", 240.0)
    monkeypatch.setattr(doctor, "WATCHED_S", 0.05)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], None]:
    """Set PATH to an empty folder; return a function that adds programs to it."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def add(name: Any, script: Any) -> None:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return add


def by_name() -> dict[Any, Any]:
    """Return all checks by name. The check of the embedded Triton is faked; it has its own test."""
    return {check.name: check for check in diagnose(lambda: Check(name="Triton, embedded", state="ok", found=""))}


def test_everything_that_is_missing_can_be_added(only: Any) -> None:
    checks = by_name()
    for name in ("Triton, local", "Triton, docker", "kubectl"):
        assert checks[name].state == "missing"
        assert checks[name].add != ""
    assert checks["GPU"].state == "missing"


def test_installed_packages_are_told_by_their_version(only: Any) -> None:
    from importlib.metadata import version

    assert by_name()["ONNX Runtime"].found == f"onnxruntime-gpu {version('onnxruntime-gpu')}"


def test_programs_that_answer(only: Any) -> None:
    only("docker", "echo 27.1.1")
    only("kubectl", "echo '  gitVersion: v1.31.0'")
    only("tritonserver", "exit 0")
    checks = by_name()
    assert checks["Triton, docker"].found == "docker engine 27.1.1"
    assert checks["kubectl"].found == "v1.31.0"
    assert checks["Triton, local"].state == "ok"


def test_programs_that_do_not_answer_are_unknown(only: Any) -> None:
    only("docker", "exit 1")
    only("kubectl", "exit 1")
    only("nvidia-smi", "exit 9")
    checks = by_name()
    assert [checks[name].state for name in ("Triton, docker", "kubectl", "NVIDIA driver")] == ["unknown"] * 3


def test_a_gpu(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    only("nvidia-smi", "echo 'NVIDIA L4, 23034, 550.54.15, 8.9, GPU-1'")
    checks = by_name()
    assert checks["GPU"].found == "NVIDIA L4 (22 GiB, compute capability 8.9)"
    assert checks["NVIDIA driver"].found == "550.54.15"


def test_the_table_shows_every_check_and_its_command() -> None:
    checks = (
        Check(name="GPU", state="ok", found="NVIDIA [L4]"),
        Check(name="kubectl", state="missing", found="no kubectl", add="install [it]"),
    )
    written = io.StringIO()
    Console(width=70, file=written).print(diagnosis_table(checks))
    for word in ("GPU", "ok", "NVIDIA [L4]", "missing", "no kubectl", "install [it]"):
        assert word in written.getvalue()


def test_it_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnosis()
    written = capsys.readouterr()
    assert "ONNX Runtime" in written.out
    assert "it starts and runs models" in " ".join(written.out.split())
    assert written.err == ""


@pytest.mark.parametrize(("text", "state"), [("212992\n", "missing"), ("8388608\n", "ok"), (None, "unknown")])
def test_how_many_answers_may_wait(text: str | None, state: str, tmp_path: Path) -> None:
    if text is not None:
        path = tmp_path / "proc/sys/net/core/wmem_default"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    check = _http_answers(tmp_path)
    assert check.state == state
    assert ("some 277 answers" in check.found) is (state == "missing")
    assert ("sysctl" in check.add) is (state == "missing")
