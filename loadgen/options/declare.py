"""Declare an option once: a dataclass field with its type, default, help text, panel, and parser."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from loadgen.errors import BadInput
from loadgen.printable import printable
from loadgen.spec.limits import MEASURES, QUANTILES, LatencyLimit, StreamLimit
from loadgen.spec.units import duration_ms

Kind = TypeVar("Kind")

_KEY = "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """One option with everything that is declared of it, and the field that it belongs to.

    `panel` None: the first one, `Options`. `default` is the flag's; `...` declares a field without one. `name` is
    declared if it is not the field's. `kind` is the type of a value as its flag gives it; `choices` are the only
    values, if there are any. `usual` is the field's default, MISSING without one. Text becomes its value by
    `parse`, which raises BadInput, or is a duration in `unit`, which `zero` allows to be 0. A path may have to be
    that of a file (`or_folder`) that `exists`, or be made `absolute`. A number may have to be `positive` or in
    `bounds`. `limit` makes a latency limit of a duration, one of those in its field.

    `variable`: an environment variable of another name, besides the one that every option has. `flag_only`:
    neither the environment nor a file can set it. `alone`: with this flag only the command line is read. `beside`
    turns the text in a file into the flag's text, given the file's folder; None: a path is relative to it, other
    texts stay. `letter`: a short flag, such as `-q`. A short `--help` shows the `common` options alone.

    `show` turns the field's value into the option's text, for the command that repeats the run; None: that command
    does not need the option. `always`: it is shown even at its default. `may_change`: it may change if a run is
    resumed, because no measured trial depends on it.
    """

    help: str
    default: Any = None
    panel: str | None = None
    metavar: str | None = None
    name: str = ""
    field: str = ""
    kind: type = str
    choices: tuple[str, ...] = ()
    usual: Any = None
    parse: Callable[[Any], Any] | None = None
    unit: Literal["ms", "s"] | None = None
    limit: Callable[..., LatencyLimit] | None = None
    zero: bool = False
    exists: bool = False
    or_folder: bool = False
    absolute: bool = False
    positive: bool = False
    bounds: tuple[float, float] | None = None
    argument: bool = False
    variable: str | None = None
    flag_only: bool = False
    alone: bool = False
    letter: str | None = None
    common: bool = False
    beside: Callable[[Path, str], str] | None = None
    show: Callable[[Any], str | list[str] | None] | None = None
    always: bool = False
    may_change: bool = False

    @property
    def flag(self) -> str:
        """`--time-budget`; the bare name of an argument."""
        return self.name if self.argument else "--" + self.name.replace("_", "-")

    @property
    def repeatable(self) -> bool:
        """True if the flag may be given more than once."""
        return isinstance(self.default, tuple)

    def value(self, given: Any, note: Callable[[str], object]) -> Any:
        """Return the value of the field; `note` takes assumptions. Raises BadInput."""
        if self.zero and given.strip().rstrip("mshin ") in ("0", "0.0"):
            return 0.0
        if self.unit is not None:
            value_ms = duration_ms(given, option=self.flag, default_unit=self.unit, note=note)
            if self.limit is not None:
                return self.limit(limit_ms=value_ms)
            return value_ms / 1000 if self.unit == "s" else value_ms
        if self.parse is not None:
            return self.parse(given)
        if self.exists and not is_file(given, or_folder=self.or_folder):
            raise BadInput(f"{self.flag} {given} is not a file{' or folder' * self.or_folder}.", "Check the path.")
        return given.absolute() if self.absolute and isinstance(given, Path) else given

    def check(self, value: Any) -> None:
        """Raise BadInput for a value of the field that cannot be."""
        for part in value if isinstance(value, tuple) else (value,):
            if self.choices and part not in self.choices:
                known = ", ".join(self.choices)
                raise BadInput(f"{self.flag} {printable(str(part))} is unknown.", f"Choose one of {known}.")
            text = str(part) if isinstance(part, str | Path) else ""
            if "\0" in text or text.encode(errors="ignore").decode() != text:  # not shown: it may be a secret
                odd = "the character NUL" if "\0" in text else "bytes that are not UTF-8"
                raise BadInput(f"{self.flag} holds {odd}.", "Leave them out, and rename the file or folder.")
        if self.bounds is not None:
            least, most = self.bounds
            if not least <= value <= most:
                raise BadInput(
                    f"{self.flag} {_number(value)} is out of range.",
                    f"Give {self.flag} a number from {least:g} to {most:.15g}.",
                )
        positive = self.positive or (self.unit and not self.zero)
        if positive and not isinstance(value, tuple) and not 0 < value < math.inf:
            raise BadInput(
                f"{self.flag} {_number(value)} is not above zero and finite.",
                f"Give {self.flag} a positive number.",
            )


def is_file(path: Path, *, or_folder: bool = False) -> bool:
    """True for a regular file that can be reached; False, for example, for a path that is too long."""
    try:
        return path.is_file() or (or_folder and path.is_dir())
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False


def option(text: str, metavar: str | None = None, *, default: Any = None, **rest: Any) -> Any:
    """Return a dataclass field that declares an option; `rest` are further fields of `OptionField`."""
    declared = OptionField(help=text, metavar=metavar, default=default, **rest)
    metadata, value = {_KEY: {None: declared}}, default
    if isinstance(default, EllipsisType):
        return field(metadata=metadata)
    if default is not None and (declared.unit or declared.parse):
        value = declared.value(default, print)
    if isinstance(value, dict):
        return field(default_factory=value.copy, metadata=metadata)
    return field(default=value, metadata=metadata)


def latency_limits(panel: str) -> Any:
    """Return a dataclass field that declares the options of all latency limits, in the order of `QUANTILES`."""
    texts = {name: f"Latency limit for {100 * share:g} % of requests." for name, share in QUANTILES.items()}
    texts["p99"] = "Latency limit for 99 % of requests, such as `50ms`. If several are given, all must hold."
    made = {name: partial(LatencyLimit, quantile=share) for name, share in QUANTILES.items()}
    return _limits(panel, texts, made, common=("p99",))


_MEASURED = {
    "ttft": "time to first token, from the due time",
    "tpot": "time per token after the first event, from the first event to the last",
    "e2e": "time of the whole reply, from the due time",
}


def stream_limits(panel: str) -> Any:
    """Return a dataclass field that declares the options of all limits on streams: `--ttft-p95`..."""
    texts, made = {}, {}
    for measure, quantile in product(MEASURES, ("p50", "p90", "p95", "p99")):
        name, share = f"{measure}_{quantile}", QUANTILES[quantile]
        texts[name] = f"Limit for {100 * share:g} % of all requests on the {_MEASURED[measure]}."
        made[name] = partial(StreamLimit, quantile=share, measure=measure)
    return _limits(panel, texts, made, common=("ttft_p95", "tpot_p95"))


def _limits(panel: str, texts: Mapping[str, str], made: Mapping[str, Any], *, common: Collection[str]) -> Any:
    declared = {
        name: OptionField(
            help=text, metavar="DURATION", panel=panel, unit="ms", limit=made[name], common=name in common
        )
        for name, text in texts.items()
    }
    return field(default=(), metadata={_KEY: declared})


def _number(value: float) -> str:
    """Return the number as text; a file may hold an int that is too large for a float."""
    try:
        return f"{value:.15g}"
    except OverflowError:
        return "1e308 or more" if value > 0 else "-1e308 or less"


def option_fields(options: type[Any]) -> Mapping[str, OptionField]:
    """Return the options that a dataclass declares, by name and in its order."""
    hints = get_type_hints(options)
    found = {}
    for one in fields(options):
        for name, declared in one.metadata.get(_KEY, {}).items():
            called = name or declared.name or one.name.removesuffix(f"_{declared.unit}")
            found[called] = replace(
                declared,
                name=called,
                field=one.name,
                kind=str if name else _kind(hints[one.name], declared),
                choices=_choices(hints[one.name]),
                default=None if declared.default is ... else declared.default,
                usual=one.default if one.default_factory is MISSING else one.default_factory(),
            )
    return found


def _kind(hint: Any, declared: OptionField) -> type:
    if declared.unit or declared.parse or _choices(hint):
        return str
    kinds: list[type] = [kind for kind in get_args(hint) if kind not in (NoneType, ...)]
    return kinds[0] if kinds else hint


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the values of the `Literal` in a type; none without one."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for part in get_args(hint) if (found := _choices(part))), ())


def check_values(values: object) -> None:
    """Raise BadInput for the first field of a declared option whose value cannot be."""
    for one in option_fields(type(values)).values():
        value = getattr(values, one.field)
        if value is not None:
            one.check(value)


def made_of(kind: type[Kind], values: Mapping[str, Any], note: Callable[[str], object], **made: Any) -> Kind:
    """Return the dataclass that declares options with their values, which are as their flags give them.

    `made` are fields that are known already; `note` takes assumptions. Raises BadInput.
    """
    known = set(made)
    for name, one in option_fields(kind).items():
        given = values.get(name, one.default)
        if one.field not in known and given is not None:
            value = one.value(given, note)
            made[one.field] = value if one.limit is None else (*made.get(one.field, ()), value)
    found = kind(**made)
    check_values(found)
    return found
