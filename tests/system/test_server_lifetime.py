"""No server outlives its owner, and whatever dies is told from what is well."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from engines import cnn_engine
from infer import infer
from waiting import wait_until

from model_repo.errors import ModelCrashed, ModelLoadFailed, ServerDied
from model_repo.repository import write
from model_repo.server.control import served_models
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server, serve
from model_repo.spec import ServingConfig

pytestmark = [pytest.mark.system, pytest.mark.long]

SHM = Path("/dev/shm")

OWNER = Path(__file__).parents[1] / "support" / "serving_owner.py"


def options(folder: Path, **changes: Any) -> ServerOptions:
    return ServerOptions(run_dir=folder, exit_grace_s=0.1, **changes)


@contextmanager
def serving_owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Any]]]:
    """A running serving_owner.py, in a process group of its own, with the pids of all that it started."""
    root = Path(write.__file__).parents[1]
    owner = subprocess.Popen(
        [sys.executable, OWNER, folder],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with owner:
        try:
            started = [int(pid) for pid in owner.stdout.readline().split()]
            family = [*started, *(child.pid for child in psutil.Process(started[0]).children(recursive=True))]
            assert len(family) == 4  # server, supervisor, two instances
            yield owner, family
        finally:
            owner.kill()


def assert_nothing_left(family: Any, folder: Path) -> None:
    """All those processes are gone or zombies, and so is the shared memory of the server that ran in `folder`."""
    wait_until(lambda: not any(runs(pid) for pid in family))
    assert [region.name for region in Path("/dev/shm").glob(f"{token_of(folder)}*")] == []


def runs(pid: Any) -> Any:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_an_instance(server: Server) -> None:
    victim = psutil.Process(server._host._process.pid).children()[0].pid  # type: ignore[attr-defined]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not runs(victim))


def token_of(folder: Path) -> str:
    """The name that the last server of this folder gave itself, out of its log."""
    lines = [line for line in (folder / "server.log").read_text().splitlines() if "| server_id" in line]
    return lines[-1].split("|")[2].strip()


def regions(folder: Path) -> list[Any]:
    return [path for path in SHM.glob(f"{token_of(folder)}*") if path.is_file()]


def test_kill_9_of_the_owner_leaves_nothing(tmp_path: Path) -> None:
    with serving_owner(tmp_path) as (owner, family):
        assert len(regions(tmp_path)) == 2
        owner.send_signal(signal.SIGKILL)
        assert_nothing_left(family, tmp_path)


def test_ctrl_c_reaches_the_owner_alone_and_then_leaves_nothing(tmp_path: Path) -> None:
    with serving_owner(tmp_path) as (owner, family):
        groups = {os.getpgid(pid) for pid in family}
        assert owner.pid not in groups
        # What a terminal does: the signal goes to the whole foreground group.
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.stdout.readline() == "stopped in order\n"
        assert_nothing_left(family, tmp_path)
        assert not list(tmp_path.glob("server-*"))


def test_kill_9_of_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with serving_owner(tmp_path) as (_, family):
        left = [*SHM.glob(f"{token_of(tmp_path)}*"), *SHM.glob(f".{token_of(tmp_path)}*")]
        assert left != []
        os.kill(family[1], signal.SIGKILL)
        wait_until(lambda: not any(runs(pid) for pid in family))
        # Nobody was there to remove them: whoever starts the next server does.
        (tmp_path / "next").mkdir()
        with serving_owner(tmp_path / "next"):
            assert [path for path in left if path.exists()] == []


def test_a_model_that_dies_in_service_is_told_and_a_restart_helps(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2, instance_count=2)
    with serve(options(tmp_path)) as server:
        server.load(config)
        server.check()
        kill_an_instance(server)
        with pytest.raises(ModelCrashed, match="cnn") as caught:
            server.check()
        assert "successfully loaded 'cnn'" in caught.value.log_tail
        assert server.alive()
        server.restart()
        server.load(config)
        server.check()


def test_a_crashed_model_can_be_loaded_again_without_a_restart(tmp_path: Path) -> None:
    """Not in place: the dead instance would stay dead."""
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        server.load(config)
        pid = server._host._process.pid  # type: ignore[attr-defined]
        kill_an_instance(server)
        server.load(config)
        server.check()
        assert server._host._process.pid == pid  # type: ignore[attr-defined]
        answer = infer(server.endpoint, "cnn", {"image": np.ones((2, 3, 32, 32), np.float32)})
        assert answer["logits"].shape == (2, 10)


def load_for(seconds: float, server: Server, config: ServingConfig) -> None:
    """The signal comes while the load is waited for: loading takes longer than that."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    server.load(config)


def test_an_interrupted_load_leaves_no_server_in_between(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                load_for(0.02, server, config)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        if not server.alive():
            server.restart()
        assert not served_models(server.endpoint)
        server.load(config)
        server.check()


def test_a_server_that_dies_is_told_and_a_restart_helps(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        server.load(config)
        os.kill(server._host._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        server._host._process._supervisor.wait(240)  # type: ignore[attr-defined]
        assert not server.alive()
        with pytest.raises(ServerDied) as caught:
            server.check()
        assert "successfully loaded 'cnn'" in caught.value.log_tail
        with pytest.raises(ServerDied):
            server.load(config)
        server.restart()
        server.load(config)
        server.check()


def test_a_server_that_hangs_in_service_is_told_ended_and_replaced(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        server.load(config)
        os.kill(server._host._process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        with pytest.raises(ServerDied, match="does not answer") as caught:
            server.check()
        assert "successfully loaded 'cnn'" in caught.value.log_tail
        assert not server.alive()
        server.restart()
        server.load(config)
        server.check()


def test_a_model_that_hangs_while_it_loads_is_given_up(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text(
        "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(600)\n"
    )
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        with pytest.raises(ModelLoadFailed, match=r"not ready after 0\.5 s"):
            server.load(replace(config, engine=replace(config.engine, code=hanging)), timeout_s=0.5)
        assert not server.alive()
        server.restart()
        server.load(config)
        server.check()


def test_a_model_that_dies_while_it_loads_leaves_the_server_well(tmp_path: Path) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nclass TritonPythonModel:\n    def initialize(self, args):\n        os._exit(3)\n")
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    with serve(options(tmp_path)) as server:
        with pytest.raises(ModelLoadFailed, match="died while it loaded"):
            server.load(replace(config, engine=replace(config.engine, code=dying)))
        server.load(config)
        server.check()
