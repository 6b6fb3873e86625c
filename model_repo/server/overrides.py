"""A server that others run, whose own models get other configurations while they are measured.

Triton takes a configuration with a load request, and keeps serving meanwhile. A load without one does not bring
the old configuration back (the files have not changed), so the original is kept, and sent at the end. It is on
disk before anything is changed, so that the next run can send it if this one is killed; and so is what was set: a
model that has another configuration since has it from somebody else, and keeps it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from model_repo.errors import BadServer, ModelLoadFailed, NotAsSent, RequestRefused, ServerError, reason_of
from model_repo.repository.config_pbtxt import config_json, config_message, differences, render_config_pbtxt
from model_repo.repository.own_config import BATCHER, WARMUP
from model_repo.server import control
from model_repo.server.hosts import RemoteHost
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server
from model_repo.spec import Endpoint, ServingConfig

MARK = "tritune_run"
"""The parameter that each override has, with digits that name its run: models may take parameters for numbers."""

Config = dict[str, Any]
"""The configuration of a model, as Triton's JSON has it."""


class ServerInUse(BadServer):
    """Another run is changing the models of this server, or has left its configurations there."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Each model's own configuration, then those that the server may have from the run; a file until none has."""

    path: Path
    endpoint: Endpoint
    models: dict[str, list[Config]]

    def write(self) -> None:
        """Replace the file in one step. Raises OSError."""
        draft = self.path.with_suffix(".draft")
        with draft.open("w") as file:
            json.dump({"host": self.endpoint.host, "port": self.endpoint.http_port, "models": self.models}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def load(self, name: str, config: Config, *, timeout_s: float) -> None:
        """Load a model with a configuration that is on disk before. Raises ServerError, OSError."""
        if name in self.models:
            self.models[name].append(config)
            self.write()
        control.load_model(self.endpoint, name, timeout_s=timeout_s, config=config)

    def of_others(self, *, loaded: bool = False) -> dict[str, Config | None]:
        """Return what models have from others; None: nothing. `loaded`: they had the run's, not their own."""
        found = {name: _config_or_none(self.endpoint, name) for name in self.models}
        ours = {name: known[loaded:] for name, known in self.models.items()}
        return {
            name: now
            for name, now in found.items()
            if now is None or all(differences(one, now, self.models[name][0]) for one in ours[name])
        }


class OverridingServer(Server):
    """A running server with explicit model control, of whose models `overriding` restores the configurations."""

    def __init__(self, host: RemoteHost, options: ServerOptions, journal: Journal) -> None:
        super().__init__(host, options)
        self._journal = journal
        self._mark = f"{time.strftime('%y%m%d%H%M%S', time.gmtime())}{secrets.randbelow(10**6):06}"
        self._wanted: dict[str, Config] = {}

    def load(self, config: ServingConfig, *, timeout_s: float | None = None) -> None:
        """Serve this configuration; models that have theirs already are not touched. Raises as `Server.load` does.

        A model that somebody else has loaded anew raises BadServer, and stays as it is.
        """
        names = [model.engine.model_name for model in config.models]
        self.originals(names)
        for name in self._journal.of_others(loaded=self._loaded is not None):
            raise BadServer(
                f"{name} was loaded with another configuration while it was measured, by somebody else.\n"
                "What was measured since is not sure; run again while nobody changes the server."
            )
        before, self._loaded, self._wanted = self._wanted, None, {}
        wanted = {model.engine.model_name: self._changed(model) for model in config.models}
        changed = {name: one for name, one in wanted.items() if before.get(name) != one}
        try:
            _give(self._journal, wanted, changed, timeout_s=timeout_s or self._options.load_timeout_s)
        except RequestRefused as error:
            raise ModelLoadFailed(config.engine.model_name, reason_of(str(error))) from error
        served = {name: control.model_config(self.endpoint, name) for name in names}
        for name, now in served.items():
            if self._mark in str(now.get("parameters")):  # else it is somebody else's
                self._journal.models[name][1:] = [now]
        self._journal.write()
        for name, now in served.items():
            if found := differences(wanted[name], now, self._journal.models[name][0]):
                raise NotAsSent(name, found)
        self._loaded, self._wanted = config, wanted

    def originals(self, names: Sequence[str]) -> dict[str, Config]:
        """Return the server's configurations of these models, and keep them on disk until they are restored.

        They are read once, and all before anything is changed. Raises BadServer: also for a model that is not
        loaded, has the configuration of another run, is part of another ensemble, or may not be changed.
        """
        url, known, main = self.endpoint.url("http"), self._journal.models, names[-1]
        if not known.keys() >= set(names):
            found = {name: self._served(name) for name in names}
            for name in (name for name, one in found.items() if MARK in (one.get("parameters") or {})):
                raise ServerInUse(
                    f"{name} on {url} has the configuration of another run, by its parameter {MARK}.\n"
                    "Wait for that to end; if it was killed, use `optimize restore` where it ran."
                )
            self._check_others(names)
            known.update((name, [one]) for name, one in found.items())
            with _explained(f"{url} lets nobody configure {main}", "Start it with --model-control-mode=explicit."):
                _give(self._journal, found, {main: found[main]}, timeout_s=self._options.load_timeout_s)
        return {name: known[name][0] for name in names}

    def unload(self) -> None:
        """Do nothing but forget what was loaded: the models are the server's own, and it may be a new process."""
        self._loaded, self._wanted = None, {}

    def forget(self) -> None:
        """Restore what was changed. Raises ServerError."""
        list(restore(self._journal.path, self.endpoint, timeout_s=self._options.load_timeout_s))

    def _served(self, name: str) -> Config:
        advice = "Load it there first, or use a server with a folder of its own, --server-repository DIR."
        with _explained(f"{name} is not served by {self.endpoint.url('http')}", advice):
            return control.model_config(self.endpoint, name)

    def _check_others(self, names: Sequence[str]) -> None:
        """Raise BadServer if an ensemble outside of the run has one of these models: it would stop serving."""
        for other in control.served_models(self.endpoint) - set(names):
            steps = config_message(self._served(other)).ensemble_scheduling.step
            shared = next((step.model_name for step in steps if step.model_name in names), None)
            if shared is not None:
                raise BadServer(
                    f"{shared} is a member of {other}, too, which {self.endpoint.url('http')} serves.\n"
                    "Other batch sizes would stop it: use another server, or unload it there first."
                )

    def _changed(self, model: ServingConfig) -> Config:
        """Return the configuration to be served, marked; what its text does not have is as in the original."""
        mine, original = config_json(render_config_pbtxt(model)), self._journal.models[model.engine.model_name][0]
        mine.setdefault("parameters", {})[MARK] = {"string_value": self._mark}
        return {**{name: value for name, value in original.items() if name not in (BATCHER, WARMUP)}, **mine}


def _config_or_none(endpoint: Endpoint, name: str) -> Config | None:
    try:
        return control.model_config(endpoint, name)
    except RequestRefused as error:
        if error.status not in (404, 400):  # it is not loaded; 400: in older versions of Triton
            raise
        return None


@contextmanager
def _explained(what: str, fix: str) -> Iterator[None]:
    """Put `what` before the reason of a refusal, unless that is the credentials, and `fix` after it."""
    try:
        yield
    except RequestRefused as error:
        if error.status in control.FOR_CREDENTIALS:
            raise
        raise BadServer(f"{what}: {reason_of(str(error))}\n{fix}") from error


def _give(journal: Journal, wanted: dict[str, Config], changed: dict[str, Config], *, timeout_s: float) -> None:
    """Load the changed ones of these configurations, in an order in which each is valid. Raises ServerError.

    An ensemble may never take more rows than its members: it is lowered before them, and raised after them. Triton
    may load its members with it as their files have them, if these were written to.
    """
    endpoint, load = journal.endpoint, partial(journal.load, timeout_s=timeout_s)
    ensembles = {name: one for name, one in wanted.items() if "ensemble_scheduling" in one}
    for name, one in ensembles.items():
        now = _config_or_none(endpoint, name) if name in changed else None
        if now is not None and now["max_batch_size"] > one["max_batch_size"]:
            load(name, {**now, "max_batch_size": one["max_batch_size"], "parameters": one.get("parameters") or {}})
    for name in changed.keys() - ensembles.keys():
        load(name, changed[name])
    given = {name: control.model_config(endpoint, name) for name in wanted.keys() - ensembles.keys()}
    for name in ensembles.keys() & changed.keys():
        load(name, changed[name])
    for name, one in given.items():
        if control.model_config(endpoint, name) != one:
            load(name, wanted[name])


def restore(path: Path, endpoint: Endpoint | None = None, *, timeout_s: float = 120.0) -> Iterator[str]:
    """Give the models of a journal their configurations back, and yield `MODEL on URL` texts.

    `endpoint` None: that of the journal, without credentials. What one model lacks stays in the journal, and the
    others have theirs. What somebody else has configured since stays as it is; its part of the journal is kept as
    `.left`. Raises ServerError for both, in the end.
    """
    if not path.is_file():
        return
    journal, errors = _read(path, endpoint), list[ServerError]()
    endpoint, models = journal.endpoint, journal.models
    others = journal.of_others()
    if others:
        left = path.with_suffix(f".{secrets.token_hex(4)}.left")
        replace(journal, path=left, models={name: models.pop(name) for name in others}).write()
        what = f"{', '.join(others)} on {endpoint.url('http')} stays as somebody else has configured it since"
        errors.append(BadServer(f"{what}.\nIts own configuration from before the run is in {left}."))
    own = {name: known[0] for name, known in models.items()}
    changed = {name: one for name, one in own.items() if _config_or_none(endpoint, name) != one}
    theirs = {name: now for name, now in others.items() if now is not None}
    problem = ""
    try:
        _give(journal, {**theirs, **own}, changed, timeout_s=timeout_s)
    except ServerError:
        for name, one in changed.items():
            try:
                journal.load(name, one, timeout_s=timeout_s)
            except ServerError as error:
                problem = str(error).splitlines()[0]
    lacking = [name for name, one in changed.items() if problem and _config_or_none(endpoint, name) != one]
    if lacking:
        replace(journal, models={name: models[name] for name in lacking}).write()
        what = f"{', '.join(lacking)} on {endpoint.url('http')} has not got its own configuration back: {problem}"
        fix = "Run `optimize restore`, with --cache-dir and --header-env as in this run, when the server answers."
        errors.append(BadServer(f"{what}\n{fix}"))
    else:
        path.unlink()
    yield from (f"{name} on {endpoint.url('http')}" for name in own if name not in lacking)
    _raise_all(errors)


@contextmanager
def overriding(options: ServerOptions, on_problem: Callable[[str], object] = id) -> Iterator[OverridingServer]:
    """Override configurations on the remote server until the block ends; first restore what a killed run left.

    `on_problem` gets what cannot be restored at the end: no answer is lost for it. Raises ServerError.
    """
    assert options.remote is not None
    assert options.journals is not None
    path = options.journals / _file_name(options.remote)
    with _locked(path):
        host = RemoteHost(options.remote, Path(), wait_s=options.remote_wait_s)
        list(restore(path, options.remote))
        server = OverridingServer(host, options, Journal(path, options.remote, {}))
        try:
            yield server
        finally:
            try:
                server.forget()
            except (ServerError, OSError) as error:
                on_problem(str(error))


def restore_all(journals: Path, only: Endpoint | None = None) -> Iterator[str]:
    """Restore what killed runs have left of any server, or of this one. Yields and raises as `restore` does."""
    errors = list[ServerError]()
    for path in sorted(journals.glob("*.json" if only is None else _file_name(only))):
        try:
            with _locked(path):
                yield from restore(path, only)
        except ServerError as error:
            errors.append(error)
    _raise_all(errors)


def _raise_all(errors: Sequence[ServerError]) -> None:
    if errors:
        whats, _, fixes = zip(*(str(error).partition("\n") for error in errors), strict=True)
        raise BadServer(f"{' '.join(whats)}\n{' '.join(dict.fromkeys(fixes))}")


def _read(path: Path, endpoint: Endpoint | None) -> Journal:
    """Read a journal, for its server with the credentials of `endpoint`, if that is given. Raises BadServer."""
    try:
        document = json.loads(path.read_text())
        known = Endpoint(host=document["host"], http_port=document["port"], grpc_port=None, metrics_port=None)
        if path.name != _file_name(known):
            raise ValueError("its name is that of another server")
        models = {name: [dict(own), *sent] for name, (own, *sent) in document["models"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadServer(
            f"{path} says how models of a server were configured, and cannot be read: {error}.\n"
            "See that they are configured as they should be, and remove the file."
        ) from error
    return Journal(path, endpoint or known, models)


@contextmanager
def _locked(journal: Path) -> Iterator[None]:
    """Let one run at a time change a server; the kernel frees the lock with its process. Raises ServerInUse."""
    journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(journal.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ServerInUse(
            "Another run on this machine is changing the models of the server.\nWait until it has ended."
        ) from error
    finally:
        os.close(descriptor)


def _file_name(endpoint: Endpoint) -> str:
    host = "127.0.0.1" if endpoint.host == "localhost" else endpoint.host
    return f"{hashlib.sha256(f'{host}:{endpoint.http_port}'.encode()).hexdigest()[:32]}.json"
