"""A running Triton that serves one model at a time, whoever keeps it running."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from model_repo import control
from model_repo.errors import (
    ModelCrashed,
    ModelLoadFailed,
    RepositoryWriteFailed,
    RequestRefused,
    ServerDied,
    ServerTimeout,
    reason_of,
)
from model_repo.hosts import Host, ProcessHost, RemoteHost
from model_repo.launchers import LAUNCHERS
from model_repo.layout import remove_model, rewrite_config, write_repository
from model_repo.memory_kills import WORDS, count_memory_kills

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from model_repo.options import ServerOptions
    from model_repo.spec import Endpoint, ServingConfig

_TAIL_LINES = 30
_ANSWERS_WITHIN_S = 5.0


class Server:
    """A running Triton, as the search sees it. Made by `serve`; at most one model is loaded at a time.

    After any ServerError: where `alive()` is False, `restart()` gives a fresh server with nothing loaded.
    """

    def __init__(
        self,
        host: Host,
        options: ServerOptions,
        *,
        memory_kills: Callable[[], int | None] = count_memory_kills,
    ) -> None:
        self._host = host
        self._memory_kills = memory_kills
        self._kills_before = memory_kills()
        self._options = options
        self._loaded: ServingConfig | None = None
        self._written: set[str] = set()  # models in the repository that are ours to replace and remove

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers; may change with `restart`."""
        return self._host.endpoint

    @property
    def repository(self) -> Path:
        """The model repository it loads from."""
        return self._host.repository

    @property
    def loaded(self) -> ServingConfig | None:
        """What is loaded now; None: nothing."""
        return self._loaded

    def load(self, config: ServingConfig, *, timeout_s: float | None = None) -> None:
        """Serve this configuration, and nothing else; returns when it is ready and warmed up.

        A configuration that differs from the loaded one in its instance count alone is updated in place; else the
        loaded model is out of memory before the new one comes in. `timeout_s` None means the options' time-out.
        Raises ModelLoadFailed (also for a load that hangs: the server is then stopped), ServerDied,
        RepositoryWriteFailed.
        """
        if self._can_update_in_place(config):
            rewrite_config(self.repository, config, runtime=self._options.runtime_or_default)
        else:
            self.unload()
            self._claim(config.engine.model_name)
            write_repository(self.repository, config, runtime=self._options.runtime_or_default)
        self._loaded = None
        self._kills_before = self._memory_kills()
        self._request_load(config.engine.model_name, timeout_s or self._options.load_timeout_s)
        self._loaded = config

    def unload(self) -> None:
        """Serve nothing; returns when the model is out of memory. Does nothing where none is loaded."""
        if self._loaded is None:
            return
        model_name = self._loaded.engine.model_name
        self._loaded = None
        if self.alive():
            with self._stopped_on_error():
                control.unload_model(self.endpoint, model_name)
                self._host.free(model_name)
        remove_model(self.repository, model_name)

    @property
    def is_our_process(self) -> bool:
        """Whether it and its models descend from this process: not in a container, nor elsewhere."""
        return self._options.kind in ("embedded", "local")

    @property
    def start_s(self) -> float | None:
        """How long its latest start took until it answered; None where it is not ours to start."""
        return self._host.start_s

    def memory_bytes(self) -> int | None:
        """What the server and its models take now; None where that cannot be seen from here."""
        return self._host.memory_bytes()

    def alive(self) -> bool:
        """Whether the server still runs. A model's own process may have died nevertheless: see `check`."""
        return self._host.alive()

    def check(self) -> None:
        """Return quietly where the server and the loaded model are well.

        Raises ServerDied or ModelCrashed, with the server's last log lines. A server that runs and does not answer
        is ended, so that the next trial gets a fresh one.
        """
        if not self.alive():
            raise self._died()
        try:
            well = self._loaded is None or self._model_is_well(self._loaded)
        except ServerDied as error:  # so lately that its process is still there
            raise self._died() from error
        if self._loaded is not None and not well:
            if not control.is_live(self.endpoint, timeout_s=_ANSWERS_WITHIN_S):
                self._host.stop()
                raise self._died(hung=True)
            why = self._killed_for_memory()
            raise ModelCrashed(self._loaded.engine.model_name, why=why, log_tail=self.log_tail())

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The server's last log lines; "" for a remote server, whose log we do not have."""
        return self._host.log_tail(lines)

    def restart(self) -> None:
        """A fresh server with nothing loaded, whatever state this one is in. Raises ServerStartFailed."""
        if isinstance(self._host, RemoteHost):
            self.unload()  # a process takes its models with it, a remote server has to be asked
        self._loaded = None
        self._host.restart()

    def forget(self) -> None:
        """Unload, and leave nothing of ours in the repository, of failed loads either."""
        self.unload()
        while self._written:
            remove_model(self.repository, self._written.pop())

    def _claim(self, model_name: str) -> None:
        """Make sure that no model of somebody else's is replaced; a remote server's repository may hold any."""
        if model_name not in self._written and os.path.lexists(self.repository / model_name):
            raise RepositoryWriteFailed(
                f"{self.repository / model_name} is there already, and not of this run.\n"
                "Move it away, or give the model's file another name."
            )
        self._written.add(model_name)

    def _can_update_in_place(self, config: ServingConfig) -> bool:
        return (
            self._loaded is not None
            and replace(self._loaded, instance_count=config.instance_count) == config
            and self._model_is_well(self._loaded)
        )

    def _model_is_well(self, config: ServingConfig) -> bool:
        """Whether the model is ready and all its processes live, as far as they can be seen from here."""
        model_name = config.engine.model_name
        if self._options.runtime_or_default == "python":
            living = self._host.count_instances(model_name)
            if living is not None and living < config.instance_count:
                return False
        return control.is_model_ready(self.endpoint, model_name)

    def _request_load(self, model_name: str, timeout_s: float) -> None:
        try:
            with self._stopped_on_error():
                control.load_model(self.endpoint, model_name, timeout_s=timeout_s)
        except RequestRefused as error:
            remove_model(self.repository, model_name)
            reason = " ".join(filter(None, (reason_of(str(error)), self._killed_for_memory())))
            raise ModelLoadFailed(model_name, reason, log_tail=self.log_tail()) from error
        except ServerTimeout as error:
            reason = f"it is not ready after {timeout_s:g} s, and a load that hangs cannot be cancelled"
            raise ModelLoadFailed(model_name, reason, log_tail=self.log_tail()) from error
        except ServerDied as error:
            raise self._died() from error

    @contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        """A load or unload that is cut short leaves the server in between: then it is better dead than unknown.

        A plain refusal is an answer, and leaves it well.
        """
        try:
            yield
        except RequestRefused:
            raise
        except BaseException:
            self._host.stop()
            raise

    def _died(self, *, hung: bool = False) -> ServerDied:
        why = self._killed_for_memory() or "Its last log lines say why."
        how = "does not answer any more" if hung else "has died"
        return ServerDied(f"The {self._options.kind} Triton server {how}.\n{why}", log_tail=self.log_tail())

    def _killed_for_memory(self) -> str:
        """The words for it where the kernel has killed anything since the latest load began; else empty."""
        before, now = self._kills_before, self._memory_kills()
        elsewhere = self._options.kind == "remote"
        return "" if elsewhere or before is None or now is None or now <= before else WORDS


@contextmanager
def serve(options: ServerOptions) -> Iterator[Server]:
    """A server for as long as the `with` block lasts; nothing of it is left afterwards but its log.

    Raises LauncherMissing, PortInUse, ServerStartFailed, ServerDied (nothing answers at a remote address).
    """
    if options.kind == "remote":
        assert options.remote is not None
        assert options.repository is not None
        remote = RemoteHost(options.remote, options.repository, unload_timeout_s=options.load_timeout_s)
        server = Server(remote, options)
        try:
            yield server
        finally:
            server.forget()
        return
    host = ProcessHost(options, LAUNCHERS[options.kind])
    try:
        yield Server(host, options)
    finally:
        host.close()
