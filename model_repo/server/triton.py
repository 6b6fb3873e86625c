"""A running Triton that serves one configuration at a time, and the check that it can run models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from model_repo.errors import (
    AFTER_DEATH,
    ModelCrashed,
    ModelLoadFailed,
    NotAsSent,
    RepositoryWriteFailed,
    RequestRefused,
    ServerDied,
    ServerError,
    ServerTimeout,
    reason_of,
)
from model_repo.native_library import NoBackend, native_library
from model_repo.repository.config_pbtxt import config_json, differences, render_config_pbtxt
from model_repo.repository.write import RUNTIME, remove_model, rewrite_config, write_repository
from model_repo.server import control
from model_repo.server.hosts import Host, ProcessHost, RemoteHost
from model_repo.server.launchers import LAUNCHERS
from model_repo.server.options import ServerOptions
from model_repo.server.process import WORDS, count_memory_kills
from model_repo.server.python_home import search_path
from model_repo.spec import Endpoint, Engine, ServingConfig, TensorSpec

_TAIL_LINES = 30
_ANSWERS_WITHIN_S = 5.0


class Server:
    """A running Triton with at most one configuration loaded, of a model and its members. Made by `serve`.

    After any ServerError: if `alive()` is False, `restart()` starts a fresh server with nothing loaded.
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
        """The server's address; may change with `restart`."""
        return self._host.endpoint

    @property
    def repository(self) -> Path:
        """The model repository it loads from."""
        return self._host.repository

    def load(self, config: ServingConfig, *, timeout_s: float | None = None) -> None:
        """Serve this configuration, and nothing else; return when it is ready and warmed up.

        A configuration that differs from the loaded one in its instance count alone is updated in place; else the
        loaded model is out of memory before the new one comes in. Triton loads the steps of an ensemble with it:
        had they been loaded before, it would load them again, as Python adds a file to their folders. `timeout_s`
        None means the options' time-out. Raises ModelLoadFailed (also for a load that hangs: the server is then
        stopped), ServerDied, RepositoryWriteFailed; NotAsSent for a server that others run.
        """
        changed = self._updated_in_place(config)
        if changed is None:
            self.unload()
            steps = {step.model for step in config.engine.steps}
            changed = tuple(model for model in config.models if model.engine.model_name not in steps)
            for model in config.models:
                self._claim(model.engine)
            write_repository(self.repository, config, runtime=self._options.runtime_or_default)
        else:
            for model in changed:
                rewrite_config(self.repository, model, runtime=self._options.runtime_or_default)
        self._loaded = None
        self._kills_before = self._memory_kills()
        for model in changed:
            try:
                self._request_load(model.engine.model_name, timeout_s or self._options.load_timeout_s)
            except ModelLoadFailed:
                with suppress(ServerError):  # that it did not load is the news
                    self._drop(config)
                raise
        self._loaded = config
        for model in (
            config.models if self._options.kind == "remote" and not self._options.completes_config else ()
        ):
            sent = config_json(render_config_pbtxt(model, runtime=self._options.runtime_or_default))
            if found := differences(sent, control.model_config(self.endpoint, model.engine.model_name)):
                raise NotAsSent(model.engine.model_name, found)

    def unload(self) -> None:
        """Unload the models, if some are loaded; return when they are out of memory."""
        if self._loaded is None:
            return
        config, self._loaded = self._loaded, None
        self._drop(config)

    def _drop(self, config: ServingConfig) -> None:
        """Unload and remove the models of a configuration; return when they are out of memory.

        An ensemble takes none, and stays until its members have answered, or failed, all that waits for them.
        """
        try:
            if self.alive():
                ensembles = {one.engine.model_name for one in config.models if one.engine.is_ensemble}
                with self._stopped_on_error():
                    for name in _names(config):
                        control.unload_model(self.endpoint, name)
                    self._host.free([name for name in _names(config) if name not in ensembles])
        finally:
            for name in _names(config):
                remove_model(self.repository, name)

    @property
    def is_our_process(self) -> bool:
        """True if it and its models descend from this process: not in a container, nor elsewhere."""
        return self._options.kind in ("embedded", "local")

    @property
    def start_s(self) -> float | None:
        """Seconds from its latest start to its first answer; None if we do not start it."""
        return self._host.start_s

    def memory_bytes(self) -> int | None:
        """Return the memory of the server and its models now; None if we cannot see it."""
        return self._host.memory_bytes()

    def alive(self) -> bool:
        """True if the server still runs. A model's own process may have died nevertheless: see `check`."""
        return self._host.alive()

    def check(self) -> None:
        """Check the server and the loaded model; return if both are well.

        Raises ServerDied or ModelCrashed, with the server's last log lines. A server that runs and does not answer
        is ended, so that the next trial gets a fresh one.
        """
        if not self.alive():
            raise self._died()
        try:
            models = () if self._loaded is None else self._loaded.models
            ill = next((model for model in models if not self._model_is_well(model)), None)
        except ServerDied as error:  # so recently that its process still exists
            raise self._died() from error
        if ill is not None:
            if not control.is_live(self.endpoint, timeout_s=_ANSWERS_WITHIN_S):
                self._host.stop()
                raise self._died(hung=True)
            why = self._killed_for_memory()
            raise ModelCrashed(ill.engine.model_name, why=why, log_tail=self.log_tail())

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the server's last log lines; "" for a remote server, whose log we do not have."""
        return self._host.log_tail(lines)

    def restart(self) -> None:
        """Start a fresh server with nothing loaded, whatever the state of this one. Raises ServerStartFailed."""
        if isinstance(self._host, RemoteHost):
            self.unload()  # a process takes its models with it; a remote server has to unload them
        self._loaded = None
        self._host.restart()

    def forget(self) -> None:
        """Unload, and leave nothing of ours in the repository, also of failed loads."""
        self.unload()
        while self._written:
            remove_model(self.repository, self._written.pop())

    def _claim(self, engine: Engine) -> None:
        """Raise RepositoryWriteFailed if the model's folder exists and is not ours, as on a remote server."""
        model_name = engine.model_name
        other = "give the model's file another name" if engine.own is None else "use a server without this model"
        if model_name not in self._written and os.path.lexists(self.repository / model_name):
            raise RepositoryWriteFailed(
                f"{self.repository / model_name} is there already, and not of this run.\nMove it away, or {other}."
            )
        self._written.add(model_name)

    def _updated_in_place(self, config: ServingConfig) -> tuple[ServingConfig, ...] | None:
        """Return the models of which the instance count alone has to change; None if anything else has to."""
        if self._loaded is None or _but_for_instances(self._loaded) != _but_for_instances(config):
            return None
        if not all(map(self._model_is_well, self._loaded.models)):
            return None
        pairs = zip(self._loaded.models, config.models, strict=True)
        return tuple(new for old, new in pairs if new.instance_count != old.instance_count)

    def _model_is_well(self, config: ServingConfig) -> bool:
        """True if the model is ready and all its processes live, as far as we can see them."""
        model_name = config.engine.model_name
        if config.engine.is_ensemble:
            return control.is_model_ready(self.endpoint, model_name)
        runtime = config.engine.served_by(self._options.runtime_or_default)
        if runtime != "native":
            living = self._host.count_instances(model_name)
            if living is not None and living < (1 if runtime == "slots" else config.instance_count):
                return False
        return control.is_model_ready(self.endpoint, model_name)

    def _request_load(self, model_name: str, timeout_s: float) -> None:
        try:
            with self._stopped_on_error():
                control.load_model(self.endpoint, model_name, timeout_s=timeout_s)
        except RequestRefused as error:
            reason = " ".join(filter(None, (reason_of(str(error)), self._killed_for_memory())))
            raise ModelLoadFailed(model_name, reason, log_tail=self.log_tail()) from error
        except ServerTimeout as error:
            reason = f"it is not ready after {timeout_s:g} s, and a load that hangs cannot be cancelled"
            raise ModelLoadFailed(model_name, reason, log_tail=self.log_tail()) from error
        except ServerDied as error:
            raise self._died() from error

    @contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        """Stop the server if a load or unload is cut short: its state would be unknown.

        A plain refusal is an answer, and leaves the server as it is.
        """
        try:
            yield
        except RequestRefused:
            raise
        except BaseException:
            self._host.stop()
            raise

    def _died(self, *, hung: bool = False) -> ServerDied:
        why = self._killed_for_memory() or AFTER_DEATH
        how = "does not answer any more" if hung else "has died"
        return ServerDied(f"The {self._options.kind} Triton server {how}.\n{why}", log_tail=self.log_tail())

    def _killed_for_memory(self) -> str:
        """Return the note for users if the kernel has killed a process since the latest load began; else ""."""
        before, now = self._kills_before, self._memory_kills()
        elsewhere = self._options.kind == "remote"
        return "" if elsewhere or before is None or now is None or now <= before else WORDS


def _names(config: ServingConfig) -> list[str]:
    """Return the names of the models of a configuration, each before its members."""
    return [model.engine.model_name for model in config.models[::-1]]


def _but_for_instances(config: ServingConfig) -> ServingConfig:
    return replace(config, instance_count=1, members=tuple(map(_but_for_instances, config.members)))


@contextmanager
def serve(options: ServerOptions) -> Iterator[Server]:
    """Run a server for the `with` block; only its log is left afterwards.

    Raises LauncherMissing, PortInUse, ServerStartFailed, ServerDied (nothing answers at a remote address).
    """
    if options.kind == "remote":
        assert options.remote is not None
        assert options.repository is not None
        remote = RemoteHost(options.remote, options.repository, wait_s=options.remote_wait_s)
        server = Server(remote, options)
        try:
            yield server
        finally:
            server.forget()
        return
    options = with_usable_runtime(options)
    with closing(ProcessHost(options, LAUNCHERS[options.kind])) as host:
        yield Server(host, options)


def with_usable_runtime(options: ServerOptions) -> ServerOptions:
    """Return the options, with the Python backend instead of ours if ours cannot be compiled here.

    One line of the server's log says so.
    """
    if options.runtime_or_default != "slots":
        return options
    try:
        native_library()
    except NoBackend as error:
        options.run_dir.mkdir(parents=True, exist_ok=True)
        with options.log_file.open("a") as log:
            log.write(f"Engines on a GPU run in Triton's Python backend, not in ours: {error}\n")
        return replace(options, runtime="python")
    return replace(options, runtime="slots")


class PackagesMissing(ServerError):
    """Triton's Python does not find the packages that our runtime imports."""


def check_runs_models(options: ServerOptions) -> None:
    """Check that a server of our Python runtime starts and finds its packages, which takes a second.

    Raises PackagesMissing, which names the module and the folders that were searched, and the errors of `serve`.
    """
    tensor = TensorSpec(name="x", datatype="FP32", shape=(-1,))
    engine = Engine(
        model_name="probe",
        backend="onnxruntime",
        precision="fp32",
        inputs=(tensor,),
        outputs=(tensor,),
        code=RUNTIME / "probe_model.py",
    )
    with serve(replace(options, exit_grace_s=0.0)) as server:  # it has nothing to finish; to end takes Triton 2 s
        try:
            server.load(ServingConfig(engine=engine, max_batch_size=0, dynamic_batching=False))
        except ModelLoadFailed as error:
            raise PackagesMissing(
                f"The {options.kind} Triton server cannot run models: {error.reason.rstrip('.')}. "
                f"Its Python looked in {search_path().in_words()}.\n"
                "Install tritune and its packages in one virtual environment, which only you may write to.",
                log_tail=error.log_tail,
            ) from error
