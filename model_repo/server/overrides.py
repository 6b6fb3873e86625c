"""A server that others run, whose own models get other configurations while they are measured.

Triton takes a configuration with a load request, and keeps serving meanwhile. A load without one does not bring
the old configuration back (the files have not changed), so the original is kept, and sent at the end. It is on
disk before anything is changed, so that the next run can send it if this one is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from model_repo.errors import ModelLoadFailed, RequestRefused, ServerError, reason_of
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_config import BATCHER, GROUPS, WARMUP
from model_repo.repository.own_model import parse_own
from model_repo.server import control
from model_repo.server.hosts import RemoteHost
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server
from model_repo.spec import Endpoint, ServingConfig

CHANGED = ("max_batch_size", GROUPS, BATCHER, WARMUP, "parameters")
"""The fields in which a configuration of the search may differ from the original."""

Configs = Mapping[str, dict[str, Any]]
"""Model -> its configuration, as Triton's JSON has it."""

Originals = dict[str, dict[str, Any] | None]
"""Model -> the configuration that the server had for it; None: it was not loaded."""


class ServerInUse(ServerError):
    """Another run is changing the models of this server."""


class OverridingServer(Server):
    """A running server with explicit model control, of whose models configurations are overridden.

    Made by `overriding`, which restores them.
    """

    def __init__(self, host: RemoteHost, options: ServerOptions, journal: Path) -> None:
        super().__init__(host, options)
        self._journal = journal
        self._originals: Originals = {}
        self._wanted: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, dict[str, Any]] = {}

    def load(self, config: ServingConfig, *, timeout_s: float | None = None) -> None:
        """Serve this configuration; models that have theirs already are not touched. Raises as `Server.load` does.

        A model that somebody else has loaded anew since the last time raises ServerError.
        """
        self._check_untouched()
        self._loaded = None
        wanted = {model.engine.model_name: self._changed(model) for model in config.models}
        before, self._wanted = self._wanted, {}
        changed = {name: one for name, one in wanted.items() if before.get(name) != one}
        try:
            _give(self.endpoint, wanted, changed, timeout_s=timeout_s or self._options.load_timeout_s)
        except RequestRefused as error:
            raise ModelLoadFailed(config.engine.model_name, reason_of(str(error))) from error
        self._seen = {name: self._config(name) for name in wanted}
        self._loaded, self._wanted = config, wanted

    def original(self, name: str) -> dict[str, Any]:
        """Return the server's configuration of a model, and keep it on disk until it is restored.

        Raises ModelLoadFailed.
        """
        known = self._originals.get(name)
        if known is not None:
            return known
        was_loaded = control.is_model_ready(self.endpoint, name)
        if not was_loaded:
            self._originals[name] = None
            self._keep()
            self._request_load(name, self._options.load_timeout_s)
        found = self._config(name)
        if was_loaded:
            self._originals[name] = found
            self._keep()
        return found

    def unload(self) -> None:
        """Do nothing: the models are the server's own."""
        self._loaded = None

    def restart(self) -> None:
        """Wait until the server answers. It may be a new process, with the original configurations."""
        self._loaded, self._wanted, self._seen = None, {}, {}
        self._host.restart()

    def forget(self) -> None:
        """Restore what was changed. Raises ServerError."""
        restore(self.endpoint, self._originals, timeout_s=self._options.load_timeout_s)
        self._journal.unlink(missing_ok=True)

    def _changed(self, model: ServingConfig) -> dict[str, Any]:
        """Return the original configuration of a model, changed as this one says."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        message = parse_own(render_config_pbtxt(model), CHANGED)
        mine = json_format.MessageToDict(message, preserving_proto_field_name=True)
        kept = {
            name: value for name, value in self.original(model.engine.model_name).items() if name not in CHANGED
        }
        return {**kept, **mine}

    def _config(self, name: str) -> dict[str, Any]:
        return control.model_config(self.endpoint, name)

    def _check_untouched(self) -> None:
        for name, seen in self._seen.items():
            if self._config(name) != seen:
                self._loaded, self._wanted, self._seen = None, {}, {}
                raise ServerError(
                    f"{name} was loaded with another configuration while it was measured, by somebody else.\n"
                    "What was measured since is not sure; run again while nobody changes the server."
                )

    def _keep(self) -> None:
        document = {"host": self.endpoint.host, "port": self.endpoint.http_port, "models": self._originals}
        draft = self._journal.with_suffix(".draft")
        draft.write_text(json.dumps(document))
        draft.replace(self._journal)


def _give(endpoint: Endpoint, wanted: Configs, changed: Configs, *, timeout_s: float) -> None:
    """Load the changed ones of these configurations, in an order in which each is valid. Raises ServerError.

    An ensemble may never take more rows than its members: it is lowered before them, and raised after them. Triton
    may load its members with it as their files have them, if these were written to.
    """
    load = partial(control.load_model, endpoint, timeout_s=timeout_s)
    ensembles = {name: one for name, one in wanted.items() if "ensemble_scheduling" in one}
    for name, one in ensembles.items():
        if name in changed and control.is_model_ready(endpoint, name):
            now = control.model_config(endpoint, name)
            if now["max_batch_size"] > one["max_batch_size"]:
                load(name, config={**now, "max_batch_size": one["max_batch_size"]})
    for name in changed.keys() - ensembles.keys():
        load(name, config=changed[name])
    given = {name: control.model_config(endpoint, name) for name in wanted.keys() - ensembles.keys()}
    for name in ensembles.keys() & changed.keys():
        load(name, config=changed[name])
    for name, one in given.items():
        if control.model_config(endpoint, name) != one:
            load(name, config=wanted[name])


def restore(endpoint: Endpoint, originals: Originals, *, timeout_s: float) -> None:
    """Give models their configurations back; those that were not loaded are unloaded. Raises ServerError."""
    own = {name: config for name, config in originals.items() if config is not None}
    changed = {
        name: config
        for name, config in own.items()
        if not control.is_model_ready(endpoint, name) or control.model_config(endpoint, name) != config
    }
    try:
        _give(endpoint, own, changed, timeout_s=timeout_s)
        for name in originals.keys() - own.keys():
            control.unload_model(endpoint, name)
    except ServerError as error:
        raise ServerError(
            f"Models on {endpoint.http_url} have not got their own configurations back: "
            f"{str(error).splitlines()[0]}\nRun `optimize restore` when the server answers."
        ) from error


@contextmanager
def overriding(options: ServerOptions) -> Iterator[OverridingServer]:
    """Override configurations on the remote server until the block ends; first restore what a killed run left.

    Raises ServerInUse, ServerError.
    """
    assert options.remote is not None
    assert options.journals is not None
    with _locked(options.journals / f"{_digest(options.remote)}.json") as journal:
        host = RemoteHost(options.remote, Path(), wait_s=options.remote_wait_s)
        restore_journal(journal, options.remote)
        server = OverridingServer(host, options, journal)
        try:
            yield server
        finally:
            server.forget()


def restore_journal(journal: Path, endpoint: Endpoint | None = None, *, timeout_s: float = 120.0) -> list[str]:
    """Restore what a killed run has left of a server, and return the models' names; [] if nothing is left.

    `endpoint` None: that of the journal, without credentials. Raises ServerError.
    """
    if not journal.exists():
        return []
    document = json.loads(journal.read_text())
    known = Endpoint(host=document["host"], http_port=document["port"], grpc_port=None, metrics_port=None)
    restore(endpoint or known, document["models"], timeout_s=timeout_s)
    journal.unlink(missing_ok=True)
    return list(document["models"])


def restore_all(journals: Path, headers: tuple[tuple[str, str], ...] = ()) -> list[str]:
    """Restore what killed runs have left of any server; return `MODEL on URL` texts. Raises ServerError."""
    found = []
    for path in sorted(journals.glob("*.json")):
        with _locked(path) as journal:
            document = json.loads(journal.read_text())
            endpoint = Endpoint(
                host=document["host"],
                http_port=document["port"],
                grpc_port=None,
                metrics_port=None,
                credentials=headers,
            )
            found += [f"{name} on {endpoint.http_url}" for name in restore_journal(journal, endpoint)]
    return found


@contextmanager
def _locked(journal: Path) -> Iterator[Path]:
    """Let one run at a time change a server; the kernel frees the lock with its process. Raises ServerInUse."""
    journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(journal.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield journal
    except BlockingIOError as error:
        raise ServerInUse(
            "Another run on this machine is changing the models of the server.\nWait until it has ended."
        ) from error
    finally:
        os.close(descriptor)


def _digest(endpoint: Endpoint) -> str:
    return hashlib.sha256(f"{endpoint.host}:{endpoint.http_port}".encode()).hexdigest()[:32]
