"""What `loadtest` answers to arguments it cannot use: two lines on stderr, nothing on stdout, exit code 2."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from two_lines import refused

from loadgen.cli import run_command
from loadgen.command.app import run_app
from loadgen.errors import unforeseen

HERE = ["http://127.0.0.1:9", "--model", "m", "--rate", "10"]


def test_nothing_given_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "loadtest http://" in refused(capsys, run_command)[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["http://127.0.0.1:9", "--rate", "1"], "model"),
        (["http://127.0.0.1:9", "--model", "m"], "load"),
        ([*HERE, "--p99", "50", "parsecs"], "parsecs"),
        ([*HERE, "--no-such-option"], "--no-such-option"),
        ([*HERE, "--rate", "fast"], "--rate"),
        ([*HERE, "--header", "s3cret"], "--header number 1"),
        ([*HERE, "--header-env", "Authorization=NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        ([*HERE, "--output", "/proc/run.json"], "/proc/run.json"),
        ([*HERE, "--csv", "/proc/run"], "/proc/run"),
    ],
)
def test_what_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    what, _ = refused(capsys, run_command, *arguments)
    assert named in what
    assert "s3cret" not in what


@pytest.mark.parametrize(
    "option",
    ["config", "trace", "input-data", "compare", "ca-cert", "client-cert", "output", "html", "junit", "keep-log"],
)
def test_a_fifo_or_a_device_is_neither_waited_for_nor_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        assert str(path) in refused(capsys, run_command, *HERE, f"--{option}", str(path))[0]
    assert (tmp_path / "fifo").is_fifo()


def test_a_load_process_that_dies_is_the_clients_failure_and_a_bug_is_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import typer

    from loadgen.errors import WorkerDied

    app = typer.Typer()

    @app.command()
    def fail(kind: str, debug: bool = False) -> None:
        raise {"died": WorkerDied("a load process ended.\nIt said nothing."), "bug": KeyError("oops")}[kind]

    assert run_app(app, ["died"], name="x", when_stopped="") == 98
    assert "a load process ended" in capsys.readouterr().err
    assert run_app(app, ["bug"], name="x", when_stopped="") == 1
    assert "bug in tritune" in capsys.readouterr().err
    assert run_app(app, ["bug", "--debug"], name="x", when_stopped="") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["flags", "environment", "file"])
@pytest.mark.parametrize(("words", "code"), [([], 2), (["--rate", "10"], 2), (["--rate", "10"], 3)])
def test_an_error_is_written_where_a_result_was_asked_for(
    words: list[str], code: int, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Before the load is known, before an endpoint is found, and after the environment has failed."""
    if code == 3:
        limits = (2**29, resource.getrlimit(resource.RLIMIT_AS)[1])
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    record, junit = tmp_path / "new" / "r.json", tmp_path / "new" / "r.xml"
    asked = {"json": "true", "output": str(record), "junit": str(junit)}
    if source == "flags":
        words = [*words, "--json", "--output", str(record), "--junit", str(junit)]
    elif source == "environment":
        for name, value in asked.items():
            monkeypatch.setenv(f"TRITUNE_LOADTEST_{name.upper()}", value)
    else:
        (tmp_path / "c.yaml").write_text("".join(f"{name}: {value}\n" for name, value in asked.items()))
        words = [*words, "--config", str(tmp_path / "c.yaml")]
    assert run_command(["http://127.0.0.1:9/?key=s3cret", "--model", "m", *words]) == code
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert json.loads(record.read_text())["error"] == error
    case = ET.parse(junit).find("testsuite[@errors='1']/testcase/error")  # noqa: S314 - our own file
    assert [case.get("message"), case.text] == [error["what"], error["fix"]]
    assert error["exit_code"] == code
    assert error["what"] in err
    assert "s3cret" not in out + err + junit.read_text()


def test_debug_prints_the_traceback_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*HERE, "--header", "s3cret", "--debug"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert "error: --header number 1" in printed


@pytest.mark.parametrize("option", ["csv", "keep-log", "ask-output", "ca-cert"])
def test_what_is_not_utf_8_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert f"--{option}" in refused(capsys, run_command, *HERE, f"--{option}", "a\udcff")[0]


@pytest.mark.parametrize(
    "error", [UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "surrogates not allowed"), OSError(28, "full")]
)
def test_an_error_of_a_text_or_of_the_system_is_no_bug(error: Exception) -> None:
    assert unforeseen(error).status in ("bad_input", "environment_failed")


@pytest.mark.parametrize(("command", "gib"), [("loadtest", 1), ("optimize", 4)])
def test_a_limit_of_address_space_is_refused_before_libraries_fail_at_it(command: str, gib: int) -> None:
    program = f"from tritune.commands import {command}; {command}()"
    words = ["--model", "m", "--p99", "50ms", *(HERE[:1] if command == "loadtest" else ())]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (gib * 2**30 - 1,) * 2),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 2
