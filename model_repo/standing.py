"""A finished model repository, served as it is."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from model_repo import control
from model_repo.errors import ModelLoadFailed, ServerDied, ServerError, reason_of
from model_repo.hosts import ProcessHost
from model_repo.launchers import LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from model_repo.options import ServerOptions
    from model_repo.spec import Endpoint

_LOOK_EVERY_S = 0.5


class Standing:
    """A server with the models of one repository loaded. Made by `serve_repository`."""

    def __init__(self, host: ProcessHost, model_names: tuple[str, ...]) -> None:
        self._host = host
        self.model_names = model_names

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        return self._host.endpoint

    def wait(self) -> None:
        """Return never; raises ServerDied when the server ends by itself."""
        while self._host.alive():
            time.sleep(_LOOK_EVERY_S)
        raise ServerDied(
            "The Triton server has died.\nIts last log lines say why.", log_tail=self._host.log_tail(20)
        )


@contextmanager
def serve_repository(repository: Path, options: ServerOptions) -> Iterator[Standing]:
    """All models in `repository`, on a server of the kind `options.kind` that we start, until the block ends.

    The log and all other files go to `options.run_dir`, and nothing to the repository. Raises ServerError: nothing
    to serve there, LauncherMissing, PortInUse, ModelLoadFailed.
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
            _require_ready(host, model.name)
        yield Standing(host, tuple(model.name for model in models))
    finally:
        host.close()


def _require_ready(host: ProcessHost, model_name: str) -> None:
    if not control.is_model_ready(host.endpoint, model_name):
        why = control.why_unavailable(host.endpoint, model_name)
        raise ModelLoadFailed(model_name, reason_of(why) or "the server does not say why")
