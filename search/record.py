"""The base of all records in a run's files, and the types of names and hashes in them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from loadgen.printable import printable, printable_json

MAX_CHARACTERS = 10_000
"""A longer text in a record is cut."""

LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = 1e15
"""Far above every figure of a run, and low enough that products of a few of them do not overflow."""

Rate = Annotated[float, Field(ge=1e-9)]
"""Requests per second; above 0, as it is a divisor."""

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=255)]
"""The name of a model and of its folder: valid in Triton, a URL and a file system."""

FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=255)]
"""A folder in the run's directory."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$", max_length=64)]
"""The version of a package by PEP 440."""


class Record(BaseModel):
    """Frozen; unknown keys are refused, and texts are printable.

    What is read from a file has finite numbers and integers of 64 bits, so that nothing computed from it overflows
    where the numbers of a run would not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    def model_dump_json(self, **options: Any) -> str:
        """Return the JSON of pydantic, safe to print on a terminal."""
        return printable_json(super().model_dump_json(**options))

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values of some fields, which are checked. Raises ValidationError."""
        return type(self)(**{**dict(self), **values})

    @field_validator("*", mode="after")
    @classmethod
    def _tamed(cls, value: object, info: ValidationInfo) -> object:
        return _tame(value, read=info.mode == "json")


def _tame(value: object, *, read: bool) -> object:
    """Return the value with printable texts. Raises ValueError for a number that no run writes."""
    match value:
        case str():
            return printable(value, most=MAX_CHARACTERS, lines=True)
        case float() if read and not abs(value) <= LARGEST_NUMBER:
            raise ValueError(f"must be a finite number up to {LARGEST_NUMBER:g}")
        case int() if read and abs(value) > LARGEST_INTEGER:
            raise ValueError("must be an integer of 64 bits")
        case tuple():
            return tuple(_tame(part, read=read) for part in value)
        case _ if read and is_dataclass(value):
            for part in fields(value):
                _tame(getattr(value, part.name), read=True)
        case dict():
            return {_tame(key, read=read): _tame(part, read=read) for key, part in value.items()}
    return value
