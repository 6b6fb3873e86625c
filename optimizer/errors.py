"""Errors that a user can act on, with the problem and its fix; and the error of a model that cannot be run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from loadgen.errors import BadInput, EnvironmentFailed, LoadError, UserError
from model_repo.errors import OF_THE_ENVIRONMENT, ServerError

WHEN_STOPPED = "optimize --resume RUN_DIR goes on with a run, and optimize runs lists them."
"""The advice after Ctrl-C, if no run had begun."""


class ModelError(BadInput):
    """The model file cannot be read: absent, damaged, or not ONNX."""


class UnsafeModel(ModelError):
    """The model file refers to other files in an unsafe way: outside its folder, by a link, or ambiguously."""


class UnsupportedModel(ModelError):
    """A valid model that cannot be served or loaded here: its operators, input types or opset do not allow it."""


class ExportFailed(ModelError):
    """The PyTorch model cannot be loaded or exported, or does not survive the export."""


class ShapeError(BadInput):
    """An input's shape is missing, or the given one does not fit the model."""


class RunFailed(Exception):
    """The model could not be loaded or run: `stage` is the step that failed, `reason` the library's message."""

    def __init__(self, stage: Literal["load", "run"], reason: str) -> None:
        super().__init__(stage, reason)
        self.stage = stage
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}"


@contextmanager
def explained(*, but: type[ServerError] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors of server and load into user errors of two lines, `but` for those that the caller explains."""
    try:
        yield
    except but:
        raise
    except (ServerError, LoadError) as error:
        what, _, fix = str(error).partition("\n")
        kind = EnvironmentFailed if isinstance(error, OF_THE_ENVIRONMENT) else UserError
        raise kind(what, fix or "The run's server.log and optimize.log have the details.") from error
