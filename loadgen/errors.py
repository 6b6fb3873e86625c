"""Every error of loadgen in one place; each message says what happened and, on a second line, what to do."""

from __future__ import annotations


class LoadError(Exception):
    """The load could not be sent, or could not be planned. Base of all errors that loadgen raises on purpose."""


class PlanError(LoadError, ValueError):
    """The plan, the target or the payload contradicts itself or cannot be carried out by any client."""


class PayloadError(PlanError):
    """No request can be made for this model from what was given: a free dimension, a wrong name, a wrong shape."""


class TargetUnreachable(LoadError):
    """Nothing answers at the target's address, or its certificate is not accepted."""


class TargetRefused(LoadError):
    """The server answered, but not with an inference: no such model, a wrong request, a redirect."""


class WorkerDied(LoadError):
    """A load process ended by itself; the message carries the last lines it wrote to stderr."""
