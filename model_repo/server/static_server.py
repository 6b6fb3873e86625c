"""A finished model repository, served as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from model_repo.errors import AFTER_DEATH, ModelLoadFailed, ServerDied, ServerError, reason_of
from model_repo.server import control
from model_repo.server.hosts import ProcessHost
from model_repo.server.launchers import LAUNCHERS
from model_repo.server.options import ServerOptions
from model_repo.spec import Endpoint

_LOOK_EVERY_S = 0.5


class StaticServer:
    """A server with the models of one repository loaded. Made by `serve_repository`."""

    def __init__(self, host: ProcessHost, model_names: tuple[str, ...]) -> None:
        self._host = host
        self.model_names = model_names

    @property
    def endpoint(self) -> Endpoint:
        """The address of the server."""
        return self._host.endpoint

    def wait(self) -> None:
        """Wait without end. Raises ServerDied when the server ends by itself."""
        while self._host.alive():
            time.sleep(_LOOK_EVERY_S)
        raise ServerDied(f"The Triton server has died.\n{AFTER_DEATH}", log_tail=self._host.log_tail(20))


@contextmanager
def serve_repository(repository: Path, options: ServerOptions) -> Iterator[StaticServer]:
    """Serve all models in `repository`, on a server of the kind `options.kind`, until the block ends.

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
    try:
        for model in models:
            if not control.is_model_ready(host.endpoint, model.name):
                why = control.why_unavailable(host.endpoint, model.name)
                raise ModelLoadFailed(model.name, reason_of(why) or "the server gives no reason")
        yield StaticServer(host, tuple(model.name for model in models))
    finally:
        host.close()
