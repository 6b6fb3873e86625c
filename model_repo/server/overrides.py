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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from model_repo.errors import CredentialsRefused, ModelLoadFailed, RequestRefused, ServerError, reason_of
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


class ServerInUse(ServerError):
    """Another run is changing the models of this server."""


class OverridingServer(Server):
    """A running server with explicit model control, of whose models configurations are overridden.

    Made by `overriding`, which restores them. `problem` says at the end what could not be restored.
    """

    def __init__(self, host: RemoteHost, options: ServerOptions, journal: Path) -> None:
        super().__init__(host, options)
        self.problem: str | None = None
        self._journal = journal
        self._originals: dict[str, dict[str, Any]] = {}
        self._wanted: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, dict[str, Any]] = {}

    def load(self, config: ServingConfig, *, timeout_s: float | None = None) -> None:
        """Serve this configuration; models that have theirs already are not touched. Raises as `Server.load` does.

        A model that somebody else has loaded anew since the last time raises ServerError.
        """
        names = [model.engine.model_name for model in config.models]
        self.originals(names)
        seen, before = self._seen, self._wanted
        self._loaded, self._wanted, self._seen = None, {}, {}
        self._check_untouched(seen)
        wanted = {model.engine.model_name: self._changed(model) for model in config.models}
        changed = {name: one for name, one in wanted.items() if before.get(name) != one}
        try:
            _give(self.endpoint, wanted, changed, timeout_s=timeout_s or self._options.load_timeout_s)
        except RequestRefused as error:
            raise ModelLoadFailed(config.engine.model_name, reason_of(str(error))) from error
        self._seen = {name: control.model_config(self.endpoint, name) for name in names}
        self._loaded, self._wanted = config, wanted

    def originals(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the server's configurations of these models, and keep them on disk until they are restored.

        They are read once, and all before anything is changed. Raises ServerError: also for a model that is not
        loaded, is part of another ensemble, or may not be changed.
        """
        if not self._originals.keys() >= set(names):
            found = {name: self._served(name) for name in names}
            self._check_others(names)
            self._originals = found
            _write(self._journal, self.endpoint, found)
            main = names[-1]
            try:
                control.load_model(self.endpoint, main, timeout_s=self._options.load_timeout_s, config=found[main])
            except CredentialsRefused:
                raise
            except RequestRefused as error:
                raise ServerError(
                    f"{self.endpoint.http_url} does not let {main} be configured: {reason_of(str(error))}\n"
                    "Start the server with --model-control-mode=explicit."
                ) from error
        return {name: self._originals[name] for name in names}

    def unload(self) -> None:
        """Do nothing: the models are the server's own."""
        self._loaded = None

    def restart(self) -> None:
        """Wait until the server answers. It may be a new process, with the original configurations."""
        self._loaded, self._wanted, self._seen = None, {}, {}
        self._host.restart()

    def forget(self) -> None:
        """Restore what was changed. Raises ServerError."""
        restore(self._journal, self.endpoint, timeout_s=self._options.load_timeout_s)

    def _served(self, name: str) -> dict[str, Any]:
        try:
            return control.model_config(self.endpoint, name)
        except CredentialsRefused:
            raise
        except RequestRefused as error:
            raise ServerError(
                f"{name} is not served by {self.endpoint.http_url}: {reason_of(str(error))}\n"
                "Load it there first, or use a server with a folder of its own, --server-repository DIR."
            ) from error

    def _check_others(self, names: Sequence[str]) -> None:
        """Raise ServerError if an ensemble outside of the run has one of these models: it would stop serving."""
        for other in control.served_models(self.endpoint) - set(names):
            steps = self._served(other).get("ensemble_scheduling", {}).get("step", ())
            shared = next((step["model_name"] for step in steps if step["model_name"] in names), None)
            if shared is not None:
                raise ServerError(
                    f"{shared} is a member of {other}, too, which {self.endpoint.http_url} serves.\n"
                    "Other batch sizes would stop it: use another server, or unload it there first."
                )

    def _changed(self, model: ServingConfig) -> dict[str, Any]:
        """Return the original configuration of a model, changed as this one says."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        message = parse_own(render_config_pbtxt(model), CHANGED)
        mine = json_format.MessageToDict(message, preserving_proto_field_name=True)
        original = self._originals[model.engine.model_name]
        return {**{name: value for name, value in original.items() if name not in CHANGED}, **mine}

    def _check_untouched(self, seen: Configs) -> None:
        for name, config in seen.items():
            if _config_or_none(self.endpoint, name) != config:
                raise ServerError(
                    f"{name} was loaded with another configuration while it was measured, by somebody else.\n"
                    "What was measured since is not sure; run again while nobody changes the server."
                )


def _config_or_none(endpoint: Endpoint, name: str) -> dict[str, Any] | None:
    try:
        return control.model_config(endpoint, name)
    except RequestRefused:
        return None


def _give(endpoint: Endpoint, wanted: Configs, changed: Configs, *, timeout_s: float) -> None:
    """Load the changed ones of these configurations, in an order in which each is valid. Raises ServerError.

    An ensemble may never take more rows than its members: it is lowered before them, and raised after them. Triton
    may load its members with it as their files have them, if these were written to.
    """
    load = partial(control.load_model, endpoint, timeout_s=timeout_s)
    ensembles = {name: one for name, one in wanted.items() if "ensemble_scheduling" in one}
    for name, one in ensembles.items():
        now = _config_or_none(endpoint, name) if name in changed else None
        if now is not None and now["max_batch_size"] > one["max_batch_size"]:
            load(name, config={**now, "max_batch_size": one["max_batch_size"]})
    for name in changed.keys() - ensembles.keys():
        load(name, config=changed[name])
    given = {name: control.model_config(endpoint, name) for name in wanted.keys() - ensembles.keys()}
    for name in ensembles.keys() & changed.keys():
        load(name, config=changed[name])
    for name, one in given.items():
        if control.model_config(endpoint, name) != one:
            load(name, config=wanted[name])


def restore(journal: Path, endpoint: Endpoint | None = None, *, timeout_s: float = 120.0) -> list[str]:
    """Give the models of a journal their configurations back, and return their names; [] without a journal.

    `endpoint` None: that of the journal, without credentials. What one model lacks stays in the journal, and the
    others have theirs. Raises ServerError.
    """
    if not journal.exists():
        return []
    known, originals = _read(journal)
    endpoint = endpoint or known
    changed = {name: one for name, one in originals.items() if _config_or_none(endpoint, name) != one}
    problem = ""
    try:
        _give(endpoint, originals, changed, timeout_s=timeout_s)
    except ServerError:
        for name, one in changed.items():
            try:
                control.load_model(endpoint, name, timeout_s=timeout_s, config=one)
            except ServerError as error:
                problem = str(error).splitlines()[0]
    left = {name: one for name, one in changed.items() if problem and _config_or_none(endpoint, name) != one}
    if left:
        _write(journal, endpoint, left)
        raise ServerError(
            f"{', '.join(left)} on {endpoint.http_url} has not got its own configuration back: {problem}\n"
            "Run `optimize restore`, with --cache-dir and --header-env as in this run, when the server answers."
        )
    journal.unlink(missing_ok=True)
    return list(originals)


@contextmanager
def overriding(options: ServerOptions) -> Iterator[OverridingServer]:
    """Override configurations on the remote server until the block ends; first restore what a killed run left.

    What cannot be restored at the end is the server's `problem`: no answer is lost for it. Raises ServerInUse,
    ServerError.
    """
    assert options.remote is not None
    assert options.journals is not None
    with _locked(options.journals / f"{_digest(options.remote)}.json") as journal:
        host = RemoteHost(options.remote, Path(), wait_s=options.remote_wait_s)
        restore(journal, options.remote)
        server = OverridingServer(host, options, journal)
        try:
            yield server
        finally:
            try:
                server.forget()
            except ServerError as error:
                server.problem = str(error)


def restore_all(journals: Path, only: Endpoint | None = None) -> list[str]:
    """Restore what killed runs have left of any server, or of this one; return `MODEL on URL` texts.

    Raises ServerError.
    """
    found = []
    for path in sorted(journals.glob("*.json" if only is None else f"{_digest(only)}.json")):
        with _locked(path) as journal:
            url = (only or _read(journal)[0]).http_url
            found += [f"{name} on {url}" for name in restore(journal, only)]
    return found


def _read(journal: Path) -> tuple[Endpoint, dict[str, dict[str, Any]]]:
    try:
        document = json.loads(journal.read_text())
        endpoint = Endpoint(host=document["host"], http_port=document["port"], grpc_port=None, metrics_port=None)
        return endpoint, dict(document["models"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{journal} says how models of a server were configured, and cannot be read: {error}.\n"
            "See that they are configured as they should be, and remove the file."
        ) from error


def _write(journal: Path, endpoint: Endpoint, models: Configs) -> None:
    draft = journal.with_suffix(".draft")
    with draft.open("w") as file:
        json.dump({"host": endpoint.host, "port": endpoint.http_port, "models": models}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(journal)


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
    host = "127.0.0.1" if endpoint.host == "localhost" else endpoint.host
    return hashlib.sha256(f"{host}:{endpoint.http_port}".encode()).hexdigest()[:32]
