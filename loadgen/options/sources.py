"""Read options from environment variables, configuration files and calls; command lines are read elsewhere."""

from __future__ import annotations

import difflib
import numbers
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen.errors import BadInput
from loadgen.options.declare import OptionField
from loadgen.printable import printable

if TYPE_CHECKING:
    import yaml


COMMANDS = ("optimize", "loadtest")
TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KINDS: Mapping[type, tuple[str, str]] = {
    bool: ("true or false", "true"),
    int: ("a whole number", "3"),
    float: ("a number", "1.5"),
}
"""The kind of value that an option needs, and an example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a value. `place` is the flag, the variable, the file and the line, or a call's argument."""

    kind: Literal["flag", "environment", "file", "call"]
    place: str

    def written(self, name: str) -> str:
        """Return how the option is written there, for a message."""
        return f"{name} in {self.place}" if self.kind == "file" else self.place


Origins = Mapping[str, Origin]
"""The origin of every option that was given; the others are at their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The text of one option outside the command line; more than one if it can be repeated."""

    texts: tuple[str, ...]
    origin: Origin
    folder: Path | None = None  # paths are relative to it


def prefix_of(command: str) -> str:
    """Return how the variables of a command begin: `TRITUNE_OPTIMIZE_`."""
    return f"TRITUNE_{command.upper()}_"


def take_variables(environment: MutableMapping[str, str], command: str) -> dict[str, str]:
    """Return the variables for the options of a command.

    Those of all commands are removed from the environment: child processes get none of them.
    """
    taken = {}
    for name in list(environment):
        if name.startswith(tuple(prefix_of(one) for one in COMMANDS)):
            value = environment.pop(name)
            if name.startswith(prefix_of(command)) and value:
                taken[name] = value
    return taken


def given_in_environment(
    command: str, declared: Mapping[str, OptionField], variables: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, _Given]:
    """Return the options in `variables`, and in the variables of other names. Raises BadInput."""
    found = {}
    known = {prefix_of(command) + name.upper(): name for name in declared}
    for variable, value in variables.items():
        name = known.get(variable)
        if name is None:
            raise BadInput(
                f"Unknown variable {variable}: {command} has no such option.",
                _nearest(variable, (v for v, name in known.items() if not declared[name].flag_only), command),
            )
        _refuse_flag_only(declared[name], f"The variable {variable}")
        texts = tuple(value.splitlines()) if declared[name].repeatable else (value,)
        found[name] = _Given(texts=texts, origin=Origin(kind="environment", place=variable))
    for name, one in declared.items():
        other = one.variable
        if other is None or not environment.get(other):
            continue
        if name in found:
            raise BadInput(
                f"{other} and {found[name].origin.place} are both set, and both are for {one.flag}.",
                "Unset one of them.",
            )
        found[name] = _Given(texts=(environment[other],), origin=Origin(kind="environment", place=other))
    return found


def given_in_file(command: str, declared: Mapping[str, OptionField], path: Path) -> dict[str, _Given]:
    """Return the options in a configuration file. Raises BadInput."""
    import yaml

    root = _composed(path)
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(f"--config {path} holds no options.", "Write one option per line, such as time_budget: 10m")
    found: dict[str, _Given] = {}
    for key, value in root.value:
        name, place = str(key.value), f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or name not in declared:
            shown = repr(name) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
            known = (name for name, one in declared.items() if not one.flag_only)
            raise BadInput(f"{place}: unknown option of {command}: {shown}.", _nearest(name, known, command))
        _refuse_flag_only(declared[name], f"{place}: {name}")
        if name in found:
            raise BadInput(
                f"{place}: {name} is given twice; first in {found[name].origin.place}.",
                "Remove one of the two lines.",
            )
        origin = Origin(kind="file", place=place)
        found[name] = _Given(
            texts=_texts(declared[name], value, place), origin=origin, folder=path.absolute().parent
        )
    return found


def given_in_call(
    command: str, declared: Mapping[str, OptionField], arguments: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the values of all options as their flags would give them, and the origins of those in `arguments`.

    An argument is what a person would write: a text, a number, a path, True; or a list of these for an option
    that is repeated or takes several values. None is left out. Raises BadInput.
    """
    values = {name: () if one.repeatable else one.default for name, one in declared.items()}
    origins = {}
    for name, value in arguments.items():
        if name not in declared:
            raise BadInput(f"A call of {command} takes no option {name}.", _nearest(name, declared, command))
        if value is not None:
            origins[name] = Origin(kind="call", place=name)
            given = _Given(texts=_written(declared[name], value), origin=origins[name])
            values[name] = value_of(declared[name], given)
    return values, origins


def _written(one: OptionField, value: object) -> tuple[str, ...]:
    """Return an argument as text; more than one if the option can be repeated. Raises BadInput."""
    parts = value if isinstance(value, list | tuple | range) else [value]
    for part in parts:
        known = isinstance(part, str | numbers.Number | os.PathLike)  # NumPy's numbers, too
        if not known or (isinstance(part, bool) and one.kind is not bool):
            raise BadInput(
                f"{one.name} is {printable(repr(value), most=100)}, and not a text or a number.",
                f"Write it as for {one.flag}: {one.metavar or one.default!r}",
            )
    try:
        texts = tuple(os.fsdecode(part) if isinstance(part, os.PathLike) else str(part) for part in parts)
    except ValueError as error:  # Python writes no number of more than 4300 digits
        raise BadInput(f"{one.name} is a number of too many digits.", _example(one)) from error
    return texts if one.repeatable else (",".join(texts),)


def _composed(path: Path) -> yaml.Node | None:
    """Return the file as YAML's nodes: texts that nothing has been made of yet. Raises BadInput."""
    import yaml

    try:
        if path.exists() and not path.is_file():  # to open a FIFO can take for ever
            raise OSError(0, "it is not a file")
        with path.open("rb") as file:
            return yaml.compose(file, Loader=yaml.SafeLoader)
    except OSError as error:
        raise BadInput(f"--config {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = path if mark is None else f"{path}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise BadInput(
            f"{place}: this is not YAML: {problem}.", "Write one option per line, such as rate: 50"
        ) from error


def _texts(one: OptionField, node: yaml.Node, place: str) -> tuple[str, ...]:
    """Return the texts of a value. Raises BadInput."""
    import yaml

    nodes = node.value if one.repeatable and isinstance(node, yaml.SequenceNode) else [node]
    for each in nodes:
        if not isinstance(each, yaml.ScalarNode):
            kind = "a list" if isinstance(each, yaml.SequenceNode) else "a mapping"
            raise BadInput(f"{place}: {one.name} is {kind}, and not one value.", _example(one))
        if each.tag.endswith(":null"):
            raise BadInput(f"{place}: {one.name} has no value.", f"{_example(one)}, or remove the line.")
    return tuple(str(each.value) for each in nodes)


def value_of(one: OptionField, given: _Given) -> Any:
    """Return the value of an option as its flag would have it. Raises BadInput."""
    values = tuple(_converted(one, text, given) for text in given.texts)
    return values if one.repeatable else values[0]


def _converted(one: OptionField, text: str, given: _Given) -> Any:
    if given.folder is not None and one.beside is not None:
        return one.beside(given.folder, text)
    if one.kind is Path:
        return Path(text) if given.folder is None else given.folder / text
    try:
        return TRUTHS[text.lower()] if one.kind is bool else one.kind(text)
    except (KeyError, ValueError) as error:
        wanted, _ = _KINDS[one.kind]
        where = f"{given.origin.place}: {one.name}" if given.origin.kind == "file" else given.origin.place
        raise BadInput(f"{where} is {text!r}, and not {wanted}.", _example(one, given.origin)) from error


def _example(one: OptionField, origin: Origin | None = None) -> str:
    _, value = _KINDS.get(one.kind, ("", one.metavar or "VALUE"))
    if origin is not None and origin.kind in ("environment", "call"):
        return f"Write {origin.place}={value}"
    return f"Write {one.name}: {value}"


def _refuse_flag_only(one: OptionField, where: str) -> None:
    if one.flag_only:
        raise BadInput(f"{where} is taken from the command line only.", f"Remove it, and give {one.flag} there.")


def _nearest(name: str, known: Iterable[str], command: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else f"See {command} --help."


def with_origin(error: BadInput, declared: Mapping[str, OptionField], origins: Origins) -> BadInput:
    """Return the error with the origins of the flags that it names."""
    places = [
        f"{declared[name].flag} was given as {origin.written(name)}"
        for name, origin in origins.items()
        if origin.kind != "flag" and re.search(rf"{re.escape(declared[name].flag)}(?![\w-])", error.what)
    ]
    return BadInput(error.what, f"{error.fix} ({'; '.join(places)})" if places else error.fix)


def note_on(origins: Origins) -> list[str]:
    """Return a note on the options from the environment and files; none without any."""
    places: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin.kind in ("environment", "file"):
            place = "the environment" if origin.kind == "environment" else origin.place.rpartition(":")[0]
            places.setdefault(place, []).append(name)
    return [f"From {place}: {', '.join(names)}." for place, names in places.items()]
