"""A server that others run, whose own models get other configurations: they have their own again in every case."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infer import get, infer
from own_repositories import ensemble
from server_kinds import open_server

from loadgen.spec.limits import LatencyLimit
from model_repo.errors import ModelLoadFailed, NotAsSent, ServerError
from model_repo.repository.own_config import with_value
from model_repo.server import control
from model_repo.server.options import ServerOptions
from model_repo.server.overrides import ServerInUse, overriding, restore_all
from model_repo.spec import Endpoint, ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.run.own_model import own_engines
from optimizer.run.serving import completed_configs
from search.space import default_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NAMES = ("first", "second", "pair")


class Theirs:
    """A server with the ensemble `pair` loaded, and how it is configured."""

    def __init__(self, endpoint: Endpoint, repository: Path, root: Path) -> None:
        self.endpoint, self.repository, self.root = endpoint, repository, root
        self.options = ServerOptions(run_dir=root, kind="remote", remote=endpoint, journals=root / "journals")

    def configs(self) -> dict[str, Any]:
        return {name: get(self.endpoint, f"/v2/models/{name}/config") for name in NAMES}

    def texts(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.repository.glob("*/config.pbtxt"))]

    def counts(self) -> list[int]:
        groups = [self.configs()[name]["instance_group"] for name in NAMES[:2]]
        return [sum(group["count"] for group in each) for each in groups]

    def read(self) -> ServingConfig:
        url = f"http://{self.endpoint.host}:{self.endpoint.http_port}"
        config = OptimizeConfig(
            limits=(LatencyLimit(limit_ms=50.0),),
            repository=self.repository,
            model="pair",
            output=self.root / "run",
            server="remote",
            server_url=url,
            cache_dir=self.root / "cache",
            yes=True,
        )
        config.output.mkdir()
        ask = partial(completed_configs, config)
        _, (engine,) = own_engines(config, self.root / "kept", on_gpu=False, ask=ask, on_event=print)
        return default_config(engine)


@pytest.fixture(params=["models that write", "models that only read"])
def start(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path], Theirs]]:
    with open_server(tmp_path_factory.mktemp("theirs")) as (endpoint, repository):
        ensemble(repository, second="dynamic_batching { }\n")
        if request.param == "models that only read":  # Triton takes the others for changed
            for code in repository.glob("*/1/model.py"):
                code.write_text(code.read_text().replace('NOTES.open("a")', 'open("/dev/null", "a")'))
        control.load_model(endpoint, "pair", timeout_s=60.0)
        yield lambda root: Theirs(endpoint, repository, root)


def test_an_ensemble_gets_other_configurations_and_its_own_again(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    before, texts = theirs.configs(), theirs.texts()
    as_it_is = theirs.read()
    assert theirs.configs() == before
    first, second = as_it_is.members
    smaller = replace(first, max_batch_size=2, preferred_batch_sizes=(), dynamic_batching=True)
    with overriding(theirs.options) as server:
        for members, counts, most in (
            ((first, second), [2, 2], 8),
            ((smaller, replace(second, instance_count=3)), [2, 3], 2),
            ((first, replace(second, instance_count=4)), [2, 4], 8),
            ((smaller, second), [2, 2], 2),
        ):
            server.load(replace(as_it_is, members=members))
            assert theirs.counts() == counts
            assert theirs.configs()["pair"]["max_batch_size"] == most
            x = np.arange(8, dtype=np.float32).reshape(2, 4)
            (y,) = infer(theirs.endpoint, "pair", {"x": x}).values()
            np.testing.assert_array_equal(y, 2 * (2 * x + 1) + 1)
        by_name = replace(theirs.options, remote=replace(theirs.endpoint, host="localhost"))
        for options in (theirs.options, by_name):
            with pytest.raises(ServerInUse), overriding(options):
                pass
    assert theirs.configs() == before
    assert theirs.texts() == texts
    assert not list((tmp_path / "journals").glob("*.json"))


def test_what_a_killed_run_left_is_restored(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    before = theirs.configs()
    as_it_is = theirs.read()
    first, second = as_it_is.members
    other = replace(as_it_is, members=(first, replace(second, instance_count=3)))
    restorations: list[Callable[[], object]] = [
        lambda: list(restore_all(tmp_path / "journals")),
        lambda: _enter(theirs),
    ]
    for in_the_load, restored in enumerate(restorations):
        killed = multiprocessing.get_context("fork").Process(
            target=_load_and_die, args=(theirs, other, in_the_load == 1)
        )
        killed.start()
        killed.join(120)
        assert killed.exitcode == -signal.SIGKILL
        assert theirs.counts() == [2, 3]
        restored()
        assert theirs.configs() == before
    assert list(restore_all(tmp_path / "journals")) == []


def _load_and_die(theirs: Theirs, config: ServingConfig, in_the_load: bool) -> None:
    with overriding(theirs.options) as server:
        server.load(config)
        if in_the_load:  # then the journal has what was sent, and not what the server made of it
            for name, sent in server._wanted.items():
                server._journal.models[name][1:] = [sent]
            server._journal.write()
        os.kill(os.getpid(), signal.SIGKILL)


def _enter(theirs: Theirs) -> None:
    with overriding(theirs.options):
        pass


def test_a_model_that_somebody_else_loads_meanwhile_is_noticed_and_stays(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    before = theirs.configs()
    as_it_is = theirs.read()
    problems: list[str] = []
    with overriding(theirs.options, problems.append) as server:
        server.load(as_it_is)
        other = {**before["first"], "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}
        control.load_model(theirs.endpoint, "first", timeout_s=60.0, config=other)
        set_since = theirs.configs()["first"]
        for _ in range(2):
            with pytest.raises(ServerError, match="first"):
                server.load(as_it_is)
    assert theirs.configs() == {**before, "first": set_since}
    assert "first" in problems[0]


def test_a_model_that_fails_leaves_the_others_to_the_next_configuration(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    before = theirs.configs()
    as_it_is = theirs.read()
    first, second = as_it_is.members
    assert first.engine.own is not None
    broken = replace(first.engine.own, text=first.engine.own.text.replace('"2"', '"two"'))
    problems: list[str] = []
    with overriding(theirs.options, problems.append) as server:
        server.load(as_it_is)
        engine = replace(as_it_is.engine, members=(replace(first.engine, own=broken), second.engine))
        members = (replace(first, engine=engine.members[0]), replace(second, instance_count=3))
        with pytest.raises(ModelLoadFailed, match="two"):
            server.load(replace(as_it_is, engine=engine, members=members))
        server.load(as_it_is)
        assert theirs.counts() == [2, 2]
    assert not problems
    assert theirs.configs() == before


def test_a_field_that_varies_arrives_and_what_a_model_sets_itself_fails_by_name(tmp_path: Path) -> None:
    with open_server(tmp_path / "theirs", completes_config=True) as (endpoint, repository):
        ensemble(repository)
        control.load_model(endpoint, "pair", timeout_s=60.0)
        _vary(Theirs(endpoint, repository, tmp_path))


def _vary(theirs: Theirs) -> None:
    before = theirs.configs()
    as_it_is = theirs.read()
    first, second = as_it_is.members
    own = second.engine.own
    assert own is not None
    with overriding(theirs.options) as server:
        for level in (1, 0):
            text = with_value(own.text, "optimization.graph.level", str(level))
            members = (first.engine, replace(second.engine, own=replace(own, text=text)))
            engine = replace(as_it_is.engine, members=members)
            server.load(replace(as_it_is, engine=engine, members=(first, replace(second, engine=members[1]))))
            assert theirs.configs()["second"]["optimization"]["graph"] == {"level": level}
        for change in ({"dynamic_batching": False}, {"max_batch_size": 2}):  # its code sets both
            changed = replace(second, preferred_batch_sizes=(), **change)
            with pytest.raises(NotAsSent, match=f"second .*{min(change)}"):
                server.load(replace(as_it_is, members=(first, changed)))
        server.load(as_it_is)
    assert theirs.configs() == before


def test_what_cannot_be_restored_stays_on_disk_and_the_rest_is_restored(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    before = theirs.configs()
    as_it_is = theirs.read()
    first, second = as_it_is.members
    code = theirs.repository / "first" / "1" / "model.py"
    text = code.read_text()
    problems: list[str] = []
    with overriding(theirs.options, problems.append) as server:
        members = (replace(first, instance_count=3), replace(second, instance_count=3))
        server.load(replace(as_it_is, members=members))
        code.write_text("raise ValueError('no license')\n")
    assert "first" in problems[0]
    assert theirs.counts() == [3, 2]
    code.write_text(text)
    assert len(list(restore_all(tmp_path / "journals"))) == 1
    assert theirs.configs() == before


def test_a_server_that_does_not_serve_the_model_is_left_alone(start: Any, tmp_path: Path) -> None:
    theirs = start(tmp_path)
    shutil.copytree(theirs.repository / "first", theirs.repository / "fourth", dirs_exist_ok=True)
    with overriding(theirs.options) as server:
        with pytest.raises(ServerError, match="fourth"):
            server.originals(["fourth"])
        with pytest.raises(ServerError, match="pair"):
            server.originals(["first"])  # which an ensemble outside of the run has, too
    assert control.model_state(theirs.endpoint, "fourth") is None
