"""Errors that a user can act on, with the problem and its fix; and the error of a model that cannot be run."""

from __future__ import annotations

from typing import Literal

from loadgen.errors import BadInput

WHEN_STOPPED = "Go on later with --resume and the run's directory."
"""The advice after Ctrl-C."""


class ModelError(BadInput):
    """The model file cannot be read: absent, damaged, or not ONNX."""


class UnsafeModel(ModelError):
    """The model file refers to other files in an unsafe way: outside its folder, by a link, or ambiguously."""


class UnsupportedModel(ModelError):
    """A valid model that cannot be served or loaded here: its operators, input types or opset do not allow it."""


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
