import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from optimizer.machine import doctor
from optimizer.machine.doctor import Check, _http_answers, diagnose, diagnosis_view, show_diagnosis, verdict

pytestmark = pytest.mark.slow
EMBEDDED = Check(name="Triton, embedded", state="ok", found="")
L4 = "echo 'NVIDIA L4, 23034, 550.54.15, 8.9, GPU-1'"


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
    return {check.name: check for check in diagnose(lambda: EMBEDDED)}


def test_everything_that_is_missing_can_be_added(only: Any) -> None:
    checks = by_name()
    for name in ("Triton, local", "Triton, docker", "kubectl"):
        assert checks[name].state == "missing"
        assert checks[name].add != ""
        assert checks[name].optional
    assert not {"GPU", "TensorRT", "TensorRT-RTX"} & checks.keys()  # of no use on this machine


def test_installed_packages_are_told_by_their_version(only: Any) -> None:
    from importlib.metadata import version

    assert by_name()["ONNX Runtime"].found.startswith(f"onnxruntime-gpu {version('onnxruntime-gpu')},")


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
    assert [checks[name].state for name in ("Triton, docker", "kubectl", "GPU")] == ["unknown"] * 3


def test_a_gpu(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    only("nvidia-smi", L4)
    checks = by_name()
    assert checks["GPU"].found == "NVIDIA L4 (22 GiB, compute capability 8.9), driver 550.54.15"
    assert {"TensorRT", "TensorRT-RTX"} <= checks.keys()
    said, _ = verdict(list(checks.values()))
    assert said.startswith("Ready")
    assert "GPU" in said


@pytest.mark.parametrize(
    ("changed", "begins", "named", "command"),
    [
        ({}, "Ready", "CPU", ""),
        ({"Triton, embedded": "missing"}, "Not ready", "Triton, embedded", "add Triton, embedded"),
        ({"Triton, embedded": "missing", "Triton, docker": "ok"}, "Ready", "--server docker", ""),
        ({"ONNX Runtime": "missing"}, "Not ready", "ONNX Runtime", "add ONNX Runtime"),
        ({"Triton, local": "ok", "ONNX Runtime": "unknown"}, "Not ready", "ONNX Runtime", "add ONNX Runtime"),
    ],
)
def test_the_verdict_is_about_what_optimize_needs(
    changed: dict[str, Any], begins: str, named: str, command: str
) -> None:
    states: dict[str, Any] = {"ONNX Runtime": "ok", "Triton, embedded": "ok"}
    states |= {"Triton, local": "missing", "Triton, docker": "missing"} | changed
    said, mend = verdict(
        [
            Check(name=name, state=state, found="", add="" if state == "ok" else f"add {name}")
            for name, state in states.items()
        ]
    )
    assert said.startswith(begins)
    assert named in said
    assert mend == command


def test_the_screen_shows_every_check_and_its_command_in_80_columns(only: Any) -> None:
    only("nvidia-smi", L4.replace("L4", "[L4]"))
    checks = diagnose(lambda: EMBEDDED)
    written = io.StringIO()
    Console(width=80, file=written).print(diagnosis_view(checks))
    words = written.getvalue().split()
    assert words[0] in ("Ready:", "Not")
    assert {
        word for check in checks for word in f"{check.name} {check.state} {check.found} {check.add}".split()
    } <= {*words}
    assert max(map(len, written.getvalue().splitlines())) <= 80


def test_it_goes_to_stdout_and_begins_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnosis()
    written = capsys.readouterr()
    assert written.out.startswith("Ready")
    assert "it starts and runs models" in " ".join(written.out.split())
    assert written.err == ""


@pytest.mark.parametrize(("text", "state"), [("212992\n", "poor"), ("8388608\n", "ok"), (None, "unknown")])
def test_how_many_answers_may_wait(text: str | None, state: str, tmp_path: Path) -> None:
    if text is not None:
        path = tmp_path / "proc/sys/net/core/wmem_default"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    check = _http_answers(tmp_path)
    assert check.state == state
    assert (" 277 " in check.found) is (state == "poor")
    assert ("sysctl" in check.add) is (state == "poor")
