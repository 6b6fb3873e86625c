"""Errors that a user can act on: what happened, and what to do about it."""

from __future__ import annotations

from loadgen.user_errors import BadInput, EnvironmentFailed, UserError

__all__ = [
    "BadInput",
    "EnvironmentFailed",
    "ModelError",
    "ShapeError",
    "UnsafeModel",
    "UnsupportedModel",
    "UserError",
]


class ModelError(BadInput):
    """The model file cannot be read: absent, damaged, or not ONNX."""


class UnsafeModel(ModelError):
    """The model file refers to files that it has no business with."""


class UnsupportedModel(ModelError):
    """A sound model that cannot be served or loaded here: an operator, an input's type, an opset."""


class ShapeError(BadInput):
    """An input's shape is missing, or the given one does not fit the model."""
