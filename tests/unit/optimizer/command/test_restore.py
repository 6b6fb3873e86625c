"""`optimize restore`, and a search on a server that others run: exit codes, and two lines."""

import json
from pathlib import Path

import pytest
from fake_remote import Remote, fake_remote, own
from own_repositories import python_model

from model_repo.server.overrides import MARK, Journal, _file_name
from optimizer.cli import run_command


def left_by_a_run(remote: Remote, root: Path) -> None:
    """Leave the journal of a killed run, and what it set of `first`."""
    (root / "remote").mkdir(exist_ok=True)
    ours = own("first", parameters={MARK: {"string_value": "1"}})
    path = root / "remote" / _file_name(remote.endpoint)
    Journal(path, remote.endpoint, {"first": [remote.models["first"], ours]}).write()
    remote.models["first"] = ours


def test_a_server_that_fails_does_not_hide_one_that_is_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_remote("first") as well, fake_remote("first") as odd:
        for remote in (well, odd):
            left_by_a_run(remote, tmp_path)
        odd.answer = lambda *_: (200, b"<html>Sign in</html>")  # type: ignore[method-assign]
        assert run_command(["restore", "--cache-dir", str(tmp_path)]) == 3
        assert well.models["first"] == own("first")
        captured = capsys.readouterr()
        assert well.endpoint.url("http") in captured.out
        assert str(odd.endpoint.http_port) in captured.err
        assert len(captured.err.splitlines()) == 2
        del odd.answer
        assert run_command(["restore", "--cache-dir", str(tmp_path)]) == 0
        assert odd.models["first"] == own("first")


def test_what_the_owner_set_since_stays_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_remote("first") as remote:
        left_by_a_run(remote, tmp_path)
        theirs = remote.models["first"] = own("first", max_batch_size=4)
        assert run_command(["restore", "--cache-dir", str(tmp_path)]) == 3
        assert remote.models["first"] == theirs
    (left,) = (tmp_path / "remote").glob("*.left")
    what, fix = capsys.readouterr().err.splitlines()
    assert "first" in what
    assert left.name in fix
    assert json.loads(left.read_text())["models"]["first"][0] == own("first")


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"max_batch_size": "many"}, {"parameters": {MARK: {"string_value": "1"}}}],
    ids=str,
)
def test_a_search_on_an_odd_or_used_server_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    python_model(tmp_path / "repository", "first")
    with fake_remote("first") as remote:
        remote.models["first"] |= change
        options = ["--p99", "50ms", "--yes", "--despite-noise", "--quiet", "--server", "remote"]
        folders = ["--cache-dir", tmp_path, "--output", tmp_path / "run", "--repository", tmp_path / "repository"]
        where = ["--server-url", remote.endpoint.url("http"), "--model", "first"]
        assert run_command([*options, *map(str, folders), *where]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "first" in lines[0]
