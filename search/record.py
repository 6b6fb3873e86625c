"""The base of all records in a run's files, and the types of names and hashes in them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from loadgen.printable import printable, printable_json

MAX_CHARACTERS = 10_000
"""A longer text in a record is cut."""

Rate = Annotated[float, Field(ge=1e-9)]
"""Requests per second; above 0, as it is a divisor."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$", max_length=64)]
"""The version of a package by PEP 440."""


def passing_over(*fields: str) -> Any:
    """Return a validator that leaves out fields which earlier versions wrote into a record."""

    def without(given: Any) -> Any:
        return {key: given[key] for key in given if key not in fields} if isinstance(given, dict) else given

    return model_validator(mode="before")(without)


class Record(BaseModel):
    """Frozen; unknown keys are refused, and texts are printable: they may come from a server or a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def model_dump_json(self, **options: Any) -> str:
        """Return the JSON of pydantic, safe to print on a terminal."""
        return printable_json(super().model_dump_json(**options))

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values of some fields, which are checked. Raises ValidationError."""
        return type(self)(**{**dict(self), **values})

    @field_validator("*", mode="after")
    @classmethod
    def _made_printable(cls, value: object) -> object:
        return _printable(value)


def _printable(value: object) -> object:
    match value:
        case str():
            return printable(value, most=MAX_CHARACTERS, lines=True)
        case tuple():
            return tuple(map(_printable, value))
        case dict():
            return {_printable(key): _printable(part) for key, part in value.items()}
    return value
