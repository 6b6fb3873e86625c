"""tritune/options.py: the types of a call's options. UPDATE_GOLDENS=1 rewrites it, and fails."""

import inspect
import json
import os
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import tritune
from loadgen.options.declare import OptionField
from loadgen.options.load_test import LoadTestOptions
from optimizer.call_options import CallOptions
from optimizer.config import OptimizeConfig
from tritune.messages import LOADTEST, OPTIMIZE

FILE = Path(__file__).parents[2] / "tritune" / "options.py"
HEAD = '''\
"""The types of the options that calls take, for type checkers and editors.

Written by tests/golden/test_python_options.py from the declarations; docs/cli.md explains each option.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

Duration = str | float
"""Such as "5m"; a number is in the unit that the option's help names."""

File = str | PathLike[str]
Numbers = str | int | list[int] | tuple[int, ...] | range
Texts = str | list[str] | tuple[str, ...]
'''
CLASS = '''

class {name}(TypedDict, total=False):
    """Options of `tritune.{call}`."""

{lines}
'''


def type_of(one: OptionField, hint: Any) -> str:
    """What a call takes for an option, by the type of its field."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    several = next((part for part in (hint, *parts) if get_origin(part) in (tuple, dict)), None)
    if one.unit is not None:
        return "Duration"
    if several is not None:
        return "Numbers" if get_args(several)[0] is int else "Texts"
    if one.choices:
        return f"Literal{json.dumps(one.choices)}"
    if Path in (hint, *parts):
        return "File"
    if one.kind is int:
        return "int"
    if one.kind is str and {int, float} & {hint, *parts}:
        return "str | float"
    return "str | int" if one.metavar == "N" else one.kind.__name__


def rendered() -> str:
    text = HEAD
    for call, declared, named, kinds in (
        ("optimize", OPTIMIZE, {"model", "p99"}, (OptimizeConfig, CallOptions)),
        ("loadtest", LOADTEST, {"url", "model", "rate", "p99"}, (LoadTestOptions,)),
    ):
        hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
        types = {name: type_of(one, hints[one.field]) for name, one in declared.items() if name not in named}
        lines = "\n".join(f"    {name}: {kind}" for name, kind in types.items())
        text += CLASS.format(name=f"{call.capitalize()}Options", call=call, lines=lines)
    return text


def test_the_types_of_a_calls_options_are_those_of_their_declarations() -> None:
    text = rendered()
    if os.environ.get("UPDATE_GOLDENS"):
        FILE.write_text(text)
        pytest.fail(f"{FILE.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert FILE.read_text() == text
    for call, declared in ((tritune.optimize, OPTIMIZE), (tritune.loadtest, LOADTEST)):
        assert declared.keys() <= inspect.signature(call).parameters.keys()  # notebooks complete these
