"""What `loadtest` answers to files and variables that it cannot use, and what it leaves to child processes."""

import os
from pathlib import Path

import pytest
from two_lines import refused

from loadgen.cli import run_command

WANTED = {"url": "http://127.0.0.1:9", "model": "m", "rate": "10"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "load.yaml"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("rtae: 5", "FILE:1: unknown option of loadtest: 'rtae'.", "Did you mean rate?"),
        ("[a]: 5", "FILE:1: unknown option of loadtest: a list or a mapping.", "See loadtest --help."),
        ("rate: fast", "FILE:1: rate is 'fast', and not a number.", "Write rate: 1.5"),
        ("p99: [50ms]", "FILE:1: p99 is a list, and not one value.", "Write p99: DURATION"),
        ("p99:", "FILE:1: p99 has no value.", "Write p99: DURATION, or remove the line."),
        (
            "rate: 5\np99: 1s\nrate: 6",
            "FILE:3: rate is given twice; first in FILE:1.",
            "Remove one of the two lines.",
        ),
        (
            "insecure: true",
            "FILE:1: insecure is taken from the command line only.",
            "Remove it, and give --insecure there.",
        ),
        ("- rate: 5", "--config FILE holds no options.", "Write one option per line, such as time_budget: 10m"),
        (
            "rate: [5",
            "FILE:2: this is not YAML: expected ',' or ']', but got '<stream end>'.",
            "Write one option per line, such as rate: 50",
        ),
    ],
)
def test_a_file_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], file: Path, text: str, what: str, fix: str
) -> None:
    file.write_text(text + "\n")
    assert refused(capsys, run_command, "--config", file) == [what.replace("FILE", str(file)), fix]


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.yaml"
    expected = [f"--config {nowhere} cannot be read: No such file or directory.", "Check the path."]
    assert refused(capsys, run_command, "--config", nowhere) == expected
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    assert "bytes.yaml: this is not YAML" in refused(capsys, run_command, "--config", tmp_path / "bytes.yaml")[0]


@pytest.mark.parametrize(
    ("variable", "value", "what", "fix"),
    [
        (
            "RTAE",
            "5",
            "Unknown variable NAME: loadtest has no such option.",
            "Did you mean TRITUNE_LOADTEST_RATE?",
        ),
        ("RATE", "fast", "NAME is 'fast', and not a number.", "Write NAME=1.5"),
        (
            "INSECURE",
            "1",
            "The variable NAME is taken from the command line only.",
            "Remove it, and give --insecure there.",
        ),
    ],
)
def test_a_variable_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    what: str,
    fix: str,
) -> None:
    name = f"TRITUNE_LOADTEST_{variable}"
    monkeypatch.setenv(name, value)
    assert refused(capsys, run_command) == [what.replace("NAME", name), fix.replace("NAME", name)]


def test_a_value_that_a_flag_replaces_is_checked_all_the_same(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text("rate: fast\n")
    assert "not a number" in refused(capsys, run_command, "--config", file, "--rate", "5")[0]


def test_an_error_says_where_the_value_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.write_text("url: http://127.0.0.1:9\nmodel: m\nrate: 10\np99: soon\n")
    what, fix = refused(capsys, run_command, "--config", file)
    assert what == "--p99 'soon' is not a duration."
    assert fix.endswith(f" (--p99 was given as p99 in {file}:4)")
    monkeypatch.setenv("TRITUNE_LOADTEST_P99", "later")
    assert refused(capsys, run_command, "--config", file)[1].endswith(" (--p99 was given as TRITUNE_LOADTEST_P99)")
    monkeypatch.setenv("TRITUNE_LOADTEST_P99", "later")
    assert refused(capsys, run_command, "--config", file, "--p99", "never")[1].endswith("--p99 50ms")


def test_a_path_is_relative_to_its_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path
) -> None:
    file.write_text("url: http://127.0.0.1:9\nmodel: m\nrate: 10\ninput_data: data/x.npz\n")
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    wanted = tmp_path / "data" / "x.npz"
    assert refused(capsys, run_command, "--config", file)[0] == f"--input-data {wanted} is not a file or folder."
    what, _ = refused(capsys, run_command, "--config", "../load.yaml")
    assert what == f"--input-data {away}/../data/x.npz is not a file or folder."
    monkeypatch.setenv("TRITUNE_LOADTEST_INPUT_DATA", "x.npz")
    assert refused(capsys, run_command, "--config", file)[0] == "--input-data x.npz is not a file or folder."


def test_an_address_in_a_file_is_no_permission_to_load_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**WANTED, "url": "http://192.0.2.1:8000"}.items():
        monkeypatch.setenv(f"TRITUNE_LOADTEST_{name.upper()}", value)
    assert "192.0.2.1 is not this machine" in refused(capsys, run_command)[0]


def test_a_worker_takes_nothing_from_files_and_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.write_text("rate: 5\n")
    what, fix = refused(capsys, run_command, "--worker", "127.0.0.1", "--config", file)
    assert what == f"--config {file} cannot be combined with --worker."
    assert fix == "Leave one of them out."
    monkeypatch.setenv("TRITUNE_LOADTEST_RTAE", "no option")
    monkeypatch.setenv("TRITUNE_LOADTEST_URL", "http://127.0.0.1:9")
    what, _ = refused(capsys, run_command, "--worker", "127.0.0.1", "--header", "Name: value")
    assert what == "A worker was given headers or a client certificate, and no server that they are for."


def test_variables_of_options_are_gone_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRITUNE_LOADTEST_RATE", "TRITUNE_OPTIMIZE_STORAGE"):
        monkeypatch.setenv(name, "5")
    assert refused(capsys, run_command)[0] == "No address was given."
    assert not [name for name in os.environ if name.startswith(("TRITUNE_LOADTEST_", "TRITUNE_OPTIMIZE_"))]
