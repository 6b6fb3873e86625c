"""The hosts of models: a server process of ours, also for a finished repository, and a server that others run."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from model_repo.errors import (
    AFTER_DEATH,
    CredentialsRefused,
    ModelLoadFailed,
    ServerDied,
    ServerError,
    ServerStartFailed,
    reason_of,
)
from model_repo.repository.own_model import NOT_PLAIN
from model_repo.repository.write import writing
from model_repo.server.control import (
    is_live,
    is_model_ready,
    model_state,
    server_says,
    why_unavailable,
)
from model_repo.server.launchers import LAUNCHERS, Launcher
from model_repo.server.options import (
    SHARED_MEMORY,
    ServerOptions,
    choose_endpoint,
    control_folder,
    make_control_folder,
    ports_in_use,
)
from model_repo.server.process import ServerProcess
from model_repo.server.supervisor import remove_shared_memory
from model_repo.spec import Endpoint

_START_ATTEMPTS = 5
_LOOK_S = 0.5
_LOG_READ_BYTES = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Host(ABC):
    """A server, wherever it runs; what we cannot see of it is None, or empty."""

    endpoint: Endpoint
    repository: Path
    """Its model repository, as we see it."""
    start_s: float | None = None
    """Seconds from its latest start to its first answer; None if we do not start it."""

    @abstractmethod
    def alive(self) -> bool:
        """True if the server still runs."""

    @abstractmethod
    def restart(self) -> None:
        """Provide a server that has loaded nothing of ours; `endpoint` may have changed."""

    @abstractmethod
    def free(self, model_names: Sequence[str]) -> None:
        """Return when the models are out of memory; their unloading has been requested before."""

    def stop(self) -> None:
        """End the server if it is ours. May be repeated."""
        return

    def count_instances(self, model_name: str) -> int | None:  # noqa: ARG002 - they are out of our reach
        """Return how many processes execute the model."""
        return None

    def memory_bytes(self) -> int | None:
        """Return the resident memory of the server and its models' processes."""
        return None

    def log_tail(self, lines: int) -> str:  # noqa: ARG002 - it is with those who run it
        """Return the last lines of the server's output."""
        return ""


class ProcessHost(Host):
    """A server that we start, and that ends with our process.

    With `models`, folders of a finished repository, it serves these and refuses to load anything else. Without, it
    serves the models that `control` loads, one after the other.
    """

    def __init__(self, options: ServerOptions, launcher: Launcher, models: Sequence[Path] = ()) -> None:
        self._options = options
        self.models = models
        self._launcher = launcher
        self._process: ServerProcess | None = None
        self._scratch = self._folder = self._new_folder()
        try:
            self.endpoint = self._start(previous=None)
        except BaseException:
            self.close()
            raise

    def alive(self) -> bool:
        """True if the server process runs."""
        return self._process is not None and self._process.runs

    def restart(self) -> None:
        """Start a new process, with an empty repository, on the same ports if they are still free."""
        self.close()
        self._scratch = self._new_folder()
        self.endpoint = self._start(previous=self.endpoint)

    def wait(self) -> None:
        """Wait without end. Raises ServerDied when the server ends by itself."""
        while self.alive():
            time.sleep(_LOOK_S)
        raise ServerDied(f"The Triton server has died.\n{AFTER_DEATH}", log_tail=self.log_tail(20))

    def stop(self) -> None:
        """End the process and all processes that it started."""
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """End the server and remove its files, except the log."""
        self.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def free(self, model_names: Sequence[str]) -> None:
        """Kill the models' processes: Triton takes over a second to end each of them, one after the other.

        They end before a model without processes is waited for, to which they may still send requests.
        """
        if self._process is None or not self.alive():
            return
        instances = {name: self._model_part(name) for name in model_names}
        others = [name for name, part in instances.items() if not self._process.children(part)]
        for name in instances.keys() - others:
            self._process.kill_children(instances[name])
        timeout_s = self._options.load_timeout_s
        for name in others:
            if not wait_until_unloaded(self.endpoint, name, timeout_s):
                what = f"{name} is not unloaded after {timeout_s:g} s."
                raise ServerError(f"{what}\nThe server needs a restart.")

    def count_instances(self, model_name: str) -> int | None:
        """Return the number of Python backend processes; None for a container, whose processes we cannot see."""
        if self._process is None or self._options.kind == "docker":
            return None
        return len(self._process.children(self._model_part(model_name)))

    def memory_bytes(self) -> int | None:
        """Return the memory of the process and all its children; None for a container, as we cannot see them."""
        if self._process is None or self._options.kind == "docker":
            return None
        return self._process.memory_bytes()

    def log_tail(self, lines: int) -> str:
        """Return the end of the log file."""
        try:
            with self._options.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - _LOG_READ_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(_COLOURS.sub("", text).splitlines()[-lines:])

    def _new_folder(self) -> Path:
        """Make a folder of our own, with a repository of `models` alone, and check that the log is writable."""
        parent = (self._options.scratch_dir or self._options.run_dir).absolute()
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            self._options.log_file.open("ab").close()
            folder = Path(tempfile.mkdtemp(prefix="server-", dir=parent))
            self.repository = folder / "repository"
            self.repository.mkdir()
            for model in self.models:
                (self.repository / model.name).symlink_to(model.absolute(), target_is_directory=True)
        return folder

    def _model_part(self, model_name: str) -> str:
        return f"{self._folder / 'repository' / model_name}/"

    def _start(self, previous: Endpoint | None) -> Endpoint:
        """Start on the previous ports if still free, else on others; retry if another process takes a port."""
        for attempt in range(_START_ATTEMPTS):
            started = time.monotonic()
            token = f"tritune-{secrets.token_hex(6)}"
            endpoint = choose_endpoint(
                self._options,
                previous if attempt == 0 else None,
                control_folder=None if self.models else control_folder(token),
            )
            self._process = self._launched(endpoint, token)
            try:
                self._wait_until_live(endpoint, token)
            except BaseException as error:
                self._process.stop()
                lost_port = isinstance(error, ServerStartFailed) and ports_in_use(endpoint)
                if not lost_port or attempt == _START_ATTEMPTS - 1:
                    raise
            else:
                self.start_s = time.monotonic() - started
                return endpoint
        raise AssertionError("unreachable")

    def _launched(self, endpoint: Endpoint, token: str) -> ServerProcess:
        try:
            if endpoint.control_folder is not None:
                make_control_folder(endpoint.control_folder)
            self._folder = _plain_path(self._scratch, token)
            launch = self._launcher(self._options, endpoint, self._folder, token)
            ours = replace(launch, shm_prefix=token)
            return ServerProcess(ours, self._options.log_file, grace_s=self._options.exit_grace_s)
        except BaseException:
            remove_shared_memory(token)  # no supervisor does it before the server runs
            raise

    def _wait_until_live(self, endpoint: Endpoint, token: str) -> None:
        deadline = time.monotonic() + self._options.start_timeout_s
        while self._process is not None and self._process.returncode is None:  # until its status is known
            # A server of another user may have taken the port: only ours knows the token.
            if is_live(endpoint, timeout_s=1.0) and server_says(endpoint, "name", timeout_s=1.0) == token:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        code = self._process.returncode if self._process is not None else None
        what = "is not ready in time" if code is None else f"ended with status {code} at its start"
        raise ServerStartFailed(
            f"The {self._options.kind} Triton server {what}.\nIts last words are in {self._options.log_file}.",
            log_tail=self.log_tail(20),
        )


class RemoteHost(Host):
    """A server that others run, with explicit model control, over a repository that we can write to."""

    def __init__(
        self, endpoint: Endpoint, repository: Path, *, wait_s: float = 0.0, unload_wait_s: float = 20.0
    ) -> None:
        self.endpoint = endpoint
        self.repository = repository
        self._wait_s = wait_s
        self._unload_wait_s = unload_wait_s
        self.restart()

    def alive(self) -> bool:
        """True if it answers."""
        return is_live(self.endpoint)

    def restart(self) -> None:
        """Wait until the server answers; we cannot start it. Raises ServerDied, CredentialsRefused."""
        deadline = time.monotonic() + self._wait_s
        while not is_live(self.endpoint, but=CredentialsRefused):
            if time.monotonic() > deadline:
                after = f" within {self._wait_s:g} s" if self._wait_s else ""
                raise ServerDied(
                    f"No Triton server answers at {self.endpoint.url('http')}{after}.\n"
                    "Start it, or check the address, then run again; --wait-ready 2m waits for it."
                )
            time.sleep(_LOOK_S)

    def free(self, model_names: Sequence[str]) -> None:
        """Wait for the server, whose processes are out of our reach; go on if it takes too long.

        Triton can lose answers of a long overload: thousands of closed connections, no work left, and the model is
        UNLOADING for ever. It loads the next model all the same; only the memory of the first may be missed.
        """
        for name in model_names:
            wait_until_unloaded(self.endpoint, name, self._unload_wait_s)


@contextmanager
def serve_repository(repository: Path, options: ServerOptions) -> Iterator[ProcessHost]:
    """Serve all models in a finished repository as they are, on a server of our own, until the block ends.

    The log and all other files go to `options.run_dir`, and nothing to the repository. Raises ServerError (nothing
    to serve there), LauncherMissing, PortInUse, ModelLoadFailed.
    """
    models = sorted(path.parent for path in repository.glob("*/config.pbtxt"))
    if not models:
        raise ServerError(
            f"{repository} is not a model repository: no folder in it has a config.pbtxt.\n"
            "Give the output directory of a run that found a configuration."
        )
    # The server answers as soon as all models are loaded.
    patience_s = options.start_timeout_s + len(models) * options.load_timeout_s
    host = ProcessHost(replace(options, start_timeout_s=patience_s), LAUNCHERS[options.kind], models)
    with closing(host):
        for model in models:
            if not is_model_ready(host.endpoint, model.name):
                why = why_unavailable(host.endpoint, model.name)
                raise ModelLoadFailed(model.name, reason_of(why) or "the server gives no reason")
        yield host


def wait_until_unloaded(endpoint: Endpoint, model_name: str, timeout_s: float) -> bool:
    """Return True when the server has released the model; False if that takes over `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while model_state(endpoint, model_name) not in (None, "UNAVAILABLE"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _plain_path(folder: Path, token: str) -> Path:
    """Return a path to `folder` that is plain for a shell (see NOT_PLAIN).

    If the path has some, the result is a link next to the server's shared memory, which is removed with it.
    """
    if not NOT_PLAIN.search(str(folder)):
        return folder
    link = SHARED_MEMORY / f"{token}-folder"  # a name that other users cannot guess
    link.symlink_to(folder, target_is_directory=True)
    return link
