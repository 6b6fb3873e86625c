"""What of a server that others run is changed and restored, on a fake one; `tests/system` has a real Triton."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_remote import Remote, fake_remote, own
from own_repositories import PYTHON, python_model

from model_repo.errors import BadServer, NotAsSent, ServerError
from model_repo.repository.own_model import own_engine, with_members
from model_repo.server.options import ServerOptions
from model_repo.server.overrides import MARK, ServerInUse, overriding, restore_all
from model_repo.spec import ServingConfig

BY_HAND = [{"name": "first_0", "kind": "KIND_CPU", "count": 5, "gpus": []}]


@pytest.fixture
def remote() -> Iterator[Remote]:
    with fake_remote("first", "second") as server:
        yield server


def options(remote: Remote, root: Path) -> ServerOptions:
    return ServerOptions(run_dir=root, kind="remote", remote=remote.endpoint, journals=root / "journals")


def config(root: Path, count: int) -> ServingConfig:
    """`second`, which calls `first`, both with so many instances."""
    models = []
    for name in ("first", "second"):
        folder = root / "repository" / name
        if not folder.exists():
            python_model(folder.parent, name)
        engine = own_engine(folder, PYTHON, on_gpu=False)
        models.append(ServingConfig(engine=engine, max_batch_size=8, dynamic_batching=True, instance_count=count))
    first, second = models
    return replace(second, engine=with_members(second.engine, (first.engine,)), members=(first,))


def run_and_die(remote: Remote, root: Path, *, in_a_load: bool = False) -> None:
    """Set 3 instances of each from a process that is killed, in the load of the second if so."""

    def run() -> None:
        with overriding(options(remote, root)) as server:
            server.load(config(root, 2))
            server.load(config(root, 3))
            os.kill(os.getpid(), signal.SIGKILL)

    def die(name: str, given: dict[str, Any]) -> None:
        if in_a_load and sum(one["count"] for one in given["instance_group"]) == 3 and name == "second":
            os.kill(child.pid or 0, signal.SIGKILL)

    config(root, 2)
    remote.refuses = die
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    remote.refuses = lambda *_: None


def left(root: Path) -> dict[str, Any]:
    (found,) = (root / "journals").glob("*.left")
    return dict(json.loads(found.read_text())["models"])


def restored(root: Path) -> list[str]:
    return list(restore_all(root / "journals"))


def entered(given: ServerOptions) -> None:
    with overriding(given):
        pass


def journals(root: Path) -> list[Path]:
    return list((root / "journals").glob("*.json"))


def test_each_override_is_marked_and_the_own_configurations_come_back(remote: Remote, tmp_path: Path) -> None:
    before = dict(remote.models)
    problems: list[str] = []
    with overriding(options(remote, tmp_path), problems.append) as server:
        server.load(config(tmp_path, 3))
        assert set(remote.counts().values()) == {3}
        marks = {remote.models[name]["parameters"][MARK]["string_value"] for name in before}
        assert len(marks) == 1
        float(marks.pop())  # models may take each parameter for a number
    assert not problems
    assert remote.models == before
    assert not journals(tmp_path)


@pytest.mark.parametrize(
    ("level", "change", "field"),
    [
        (1, {}, None),
        (1, {"optimization": {"graph": {"level": 1}, "input_pinned_memory": {"enable": True}}}, "input_pinned"),
        (1, {"optimization": {}}, "optimization.graph is absent"),
        (0, {"optimization": {"graph": {"level": 1}}}, "optimization.graph.level is 1, not 0"),
        (0, {"dynamic_batching": {"max_queue_delay_microseconds": 7}}, "max_queue_delay_microseconds is 7, not 0"),
        (0, {"instance_group": BY_HAND}, "instance_group"),
        (0, {"response_cache": {"enable": True}}, "response_cache"),
        (0, {"max_batch_size": 4}, "max_batch_size is 4, not 8"),
        (0, {"parameters": {}}, "parameters.factor is absent"),
    ],
    ids=str,
)
def test_a_field_that_does_not_arrive_fails_the_load_by_name(
    remote: Remote, tmp_path: Path, level: int, change: dict[str, Any], field: str | None
) -> None:
    before, problems = dict(remote.models), list[str]()
    whole = config(tmp_path, 3)
    assert whole.engine.own is not None
    text = f"{whole.engine.own.text}optimization {{ graph {{ level: {level} }} }}\n"
    varied = replace(whole, engine=replace(whole.engine, own=replace(whole.engine.own, text=text)))
    with overriding(options(remote, tmp_path), problems.append) as server:
        server.load(config(tmp_path, 2))
        marks = remote.models["second"]["parameters"]
        kept = {"parameters": {MARK: marks[MARK]}} if "parameters" in change else change
        remote.takes = lambda sent: {**sent, **(kept if sent["name"] == "second" else {})}
        with nullcontext() if field is None else pytest.raises(NotAsSent, match=field) as failed:
            server.load(varied)
        if field is None:
            assert remote.models["second"]["optimization"] == {"graph": {"level": level}}
        else:
            assert len(str(failed.value).splitlines()) == 2
        remote.takes = dict
        server.load(config(tmp_path, 2))  # what it made of the other is not taken for somebody else's
        assert set(remote.counts().values()) == {2}
    assert not problems
    assert remote.models == before


@pytest.mark.parametrize("in_a_load", [False, True])
def test_what_a_killed_run_set_is_restored(remote: Remote, tmp_path: Path, in_a_load: bool) -> None:
    before = dict(remote.models)
    run_and_die(remote, tmp_path, in_a_load=in_a_load)
    assert remote.models != before
    assert len(restored(tmp_path)) == 2
    assert remote.models == before
    assert not journals(tmp_path)


@pytest.mark.parametrize("keeps_the_mark", [False, True])
@pytest.mark.parametrize("how", ["restore", "the next run"])
def test_what_the_owner_set_after_a_kill_stays(
    remote: Remote, tmp_path: Path, how: str, keeps_the_mark: bool
) -> None:
    run_and_die(remote, tmp_path)
    theirs = {**(remote.models["first"] if keeps_the_mark else own("first")), "instance_group": BY_HAND}
    remote.models["first"] = theirs
    act = partial(restored, tmp_path) if how == "restore" else partial(entered, options(remote, tmp_path))
    with pytest.raises(BadServer, match="first"):
        act()
    assert remote.models == {"first": theirs, "second": own("second")}
    assert left(tmp_path)["first"][0] == own("first")
    assert not journals(tmp_path)
    assert restored(tmp_path) == []


@pytest.mark.parametrize(
    "change", [{"dynamic_batching": {"preferred_batch_size": [2]}}, {"input": []}, None], ids=str
)
def test_any_difference_from_what_was_set_is_the_owners(
    remote: Remote, tmp_path: Path, change: dict[str, Any] | None
) -> None:
    run_and_die(remote, tmp_path)
    if change is None:
        del remote.models["first"]  # unloaded
    else:
        remote.models["first"] |= change
    theirs = remote.models.get("first")
    with pytest.raises(BadServer, match="first"):
        restored(tmp_path)
    assert remote.models.get("first") == theirs
    assert remote.models["second"] == own("second")


def test_what_the_owner_sets_in_mid_run_ends_it_and_stays(remote: Remote, tmp_path: Path) -> None:
    theirs = own("first", instance_group=BY_HAND)
    problems: list[str] = []
    with overriding(options(remote, tmp_path), problems.append) as server:
        server.load(config(tmp_path, 2))
        remote.models["first"] = theirs
        for again in range(2):
            with pytest.raises(BadServer, match="first"):
                server.load(config(tmp_path, 3 + again))
    assert remote.models == {"first": theirs, "second": own("second")}
    assert "first" in problems[0]
    assert left(tmp_path)["first"][0] == own("first")


def test_a_failed_trial_does_not_open_what_the_owner_set_then(remote: Remote, tmp_path: Path) -> None:
    theirs = own("first", instance_group=BY_HAND)
    with overriding(options(remote, tmp_path)) as server:
        server.load(config(tmp_path, 2))
        remote.refuses = lambda name, _: "no memory" if name == "second" else None
        with pytest.raises(ServerError, match="no memory"):
            server.load(config(tmp_path, 3))
        remote.refuses = lambda *_: None
        remote.models["first"] = theirs
        with pytest.raises(BadServer, match="first"):
            server.load(config(tmp_path, 4))
    assert remote.models == {"first": theirs, "second": own("second")}


def test_another_machine_refuses_while_a_run_lasts_and_after_its_kill(remote: Remote, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run_and_die(remote, here)
    marked = dict(remote.models)
    with overriding(options(remote, there)) as server, pytest.raises(ServerInUse, match="first") as refused:
        server.load(config(there, 2))
    assert len(str(refused.value).splitlines()) == 2
    assert remote.models == marked
    assert not journals(there)


def test_what_cannot_be_restored_stays_in_the_journal_and_the_rest_is_restored(
    remote: Remote, tmp_path: Path
) -> None:
    run_and_die(remote, tmp_path)
    remote.refuses = lambda name, _: "no license" if name == "first" else None
    texts = restore_all(tmp_path / "journals")
    assert next(texts).startswith("second ")
    with pytest.raises(BadServer, match=r"first.*no license"):
        next(texts)
    assert remote.counts() == {"first": 3, "second": 1}
    remote.refuses = lambda *_: None
    assert len(restored(tmp_path)) == 1
    assert set(remote.counts().values()) == {1}


def test_a_server_that_fails_does_not_keep_the_others_from_being_restored(tmp_path: Path) -> None:
    with fake_remote("first", "second") as well, fake_remote("first", "second") as other:
        for server in (well, other):
            run_and_die(server, tmp_path)
        other.answer = lambda *_: (200, b"<html>Sign in</html>")  # type: ignore[method-assign]
        with pytest.raises(BadServer, match=str(other.endpoint.http_port)):
            restored(tmp_path)
        assert set(well.counts().values()) == {1}
        (path,) = journals(tmp_path)
        assert json.loads(path.read_text())["port"] == other.endpoint.http_port


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 100_000, '{"host": "x", "port": 1, "models": {}}', "the same, of another server"],
    ids=lambda text: text[:20] or "empty",
)
def test_a_journal_that_cannot_be_used_is_named_and_stays(remote: Remote, tmp_path: Path, text: str) -> None:
    run_and_die(remote, tmp_path)
    (path,) = journals(tmp_path)
    before = dict(remote.models)
    if text.startswith("the same"):
        text = path.read_text().replace(str(remote.endpoint.http_port), "1")
    path.write_text(text)
    for act in (partial(restored, tmp_path), partial(entered, options(remote, tmp_path))):
        with pytest.raises(BadServer, match=path.name):
            act()
    assert path.read_text() == text
    assert remote.models == before


def test_a_run_refuses_while_another_changes_the_server(remote: Remote, tmp_path: Path) -> None:
    here = options(remote, tmp_path)
    by_name = replace(here, remote=replace(remote.endpoint, host="localhost"))
    with overriding(here) as server:
        server.load(config(tmp_path, 2))
        for act in (partial(entered, here), partial(entered, by_name), partial(restored, tmp_path)):
            with pytest.raises(BadServer):
                act()
        assert set(remote.counts().values()) == {2}
