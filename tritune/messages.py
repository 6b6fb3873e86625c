"""Errors of calls as two lines, which name options as the caller writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType

from loadgen.command.app import as_user_error
from loadgen.options.declare import OptionField, option_fields
from loadgen.options.load_test import LoadTestOptions
from optimizer.call_options import OPTIONS

_OF_COMMANDS = {"json", "config", "debug", "version", "quiet", "verbose", "print_completion"}
_MACHINES = {"master", "expect_workers", "worker", "port", "bind"}  # need Locust in the process, which patches it
OPTIMIZE = {name: one for name, one in OPTIONS.items() if name not in {*_OF_COMMANDS, "dry_run"}}
LOADTEST = {
    name: one for name, one in option_fields(LoadTestOptions).items() if name not in _OF_COMMANDS | _MACHINES
}
"""The options that calls take."""


@contextmanager
def converted(
    command: str,
    declared: Mapping[str, OptionField] = OPTIMIZE,
    arguments: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[None]:
    """Turn every error of the block into one of two lines, which name options as the caller writes them."""
    try:
        yield
    except Exception as error:
        failure = as_user_error(error, command)
        failure.what, failure.fix = (in_python(text, declared, arguments) for text in (failure.what, failure.fix))
        failure.args = failure.what, failure.fix, *failure.args[2:]
        if failure is error:
            raise
        raise failure from error


_VALUE = r"'[^']*'|-?\d(?:[\w.,:%]*[\w%])?|[A-Z](?:[A-Z0-9,_]\S*)?\b|\w+[:=]\S*\w|[\w.:~-]*/\S*\w"
"""The value after a flag in messages: a number with a unit, a placeholder, a pair, a path or an address."""


def in_python(
    text: str,
    declared: Mapping[str, OptionField] = OPTIMIZE,
    arguments: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Return a message with arguments for flags: `p99="50ms"` for `--p99 50ms`. Other command lines stay."""

    def again(found: re.Match[str]) -> str:
        return f"tritune.optimize(resume={json.dumps(found[1], ensure_ascii=False) if found[1] else '...'})"

    text = re.sub(r"\boptimize --resume(?: (\S*/\S*\w))?", again, text)
    for name, one in declared.items():
        if one.argument or one.flag not in text:
            continue
        values = [*one.choices, _VALUE]
        with suppress(ValueError):  # Python writes no number of more than 4300 digits
            given = arguments.get(name)
            parts = given if isinstance(given, list | tuple | range) else [given]
            values.insert(0, re.escape(",".join(map(str, parts))) or _VALUE)

        def written(found: re.Match[str], name: str = name, kind: type = one.kind) -> str:
            value = found["value"] or ("True" if kind is bool else "")
            bare = re.fullmatch(r"-?[\d.]+|[A-Z]\S*|'.*'|", value)
            return f"{name}={value if bare else json.dumps(value, ensure_ascii=False)}"

        flag = rf"(?<!optimize )(?<!loadtest ){one.flag}(?![\w-])(?:[ =](?P<value>{'|'.join(values)})(?![\w/]))?"
        text = re.sub(flag, written, text)
    return text
