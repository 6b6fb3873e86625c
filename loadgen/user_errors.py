"""Errors that a user can act on: what happened, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Base of all errors shown as two lines without a traceback. `exit_code` is the process's answer."""

    exit_code = 2

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n{fix}")
        self.what = what
        self.fix = fix


class BadInput(UserError):
    """An argument, a file or a combination of them cannot be used."""


def first_problem(error: ValidationError) -> str:
    """Where the first error is, and what is wrong there; only the latter where it is the whole."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
