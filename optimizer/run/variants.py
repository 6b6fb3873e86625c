"""The variants of a user's own configuration that `--vary` asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import parse_config_pbtxt
from model_repo.repository.own_config import GROUPS, with_value
from model_repo.repository.own_model import own_engine, parse_own, with_members
from model_repo.repository.pbtxt_text import bodies
from model_repo.spec import Engine

MAX_VARIANTS = 12

_NUMBER = re.compile(r"(?<=instance_group)\.[0-9]+")

Vary = Sequence[tuple[str, tuple[str, ...]]]
"""Paths of fields, such as `parameters.KEY` and `optimization.graph.level`, and the values of each."""


def check_vary(vary: Vary) -> None:
    """Raise BadInput for a field that no configuration has, or not with such a value."""
    for path, values in vary:
        for value in values:
            try:
                groups = parse_config_pbtxt(with_value("", _NUMBER.sub("", path), value)).instance_group
                if path.endswith(".count") and any(group.count < 1 for group in groups):
                    raise ValueError("there is no such number of instances")
            except ValueError as error:
                why = str(error).rpartition("}': ")[2].rpartition(" : ")[2].rstrip(".")
                why = "it is a group of fields" if why == 'Expected "{"' else why
                raise BadInput(
                    f"--vary {path}={value} is nothing that a config.pbtxt can hold: {why}.",
                    "Name a field of one number, truth or name there; set others in the file itself.",
                ) from error


def variants(engine: Engine, vary: Vary, *, on_gpu: bool) -> Iterator[Engine]:
    """Yield an engine for each combination but the configured one. Raises OSError, ValueError and BadInput."""
    assert engine.own is not None
    text, count = engine.own.text, 0
    if vary and engine.is_ensemble:
        raise BadInput(
            f"--vary: {engine.model_name} is an ensemble, which has no backend of its own.",
            "Tune the member whose backend it is by itself.",
        )
    for values in product(*(values for _, values in vary)):
        changes = {
            path: value for (path, _), value in zip(vary, values, strict=True) if _changes(text, path, value)
        }
        if not changes:
            continue
        count += 1
        if count > MAX_VARIANTS:
            raise BadInput(
                f"--vary makes more than {MAX_VARIANTS} combinations, each of which has to be measured.",
                "Give fewer values, or one field after the other.",
            )
        varied = text
        for path, value in changes.items():
            varied = with_value(varied, path, value)
        words = " ".join(f"{path.partition('.')[2]}={value}" for path, value in changes.items())
        found = own_engine(engine.own.folder, varied, on_gpu=on_gpu, variant=words)
        yield with_members(found, engine.members)


def _changes(text: str, path: str, value: str) -> bool:
    """True if the text does not have this value. Raises BadInput if it has several places for it."""
    root, _, field = path.partition(".")
    if field == "0.count" and root == GROUPS and len(bodies(text, GROUPS)) == 1:
        raise BadInput(
            f"--vary {path}: it is the only instance group, and its count is searched in any case.",
            "Leave it out, or give the counts to try by --instances.",
        )
    try:
        return bool(parse_own(with_value(text, path, value), (root,)) != parse_own(text, (root,)))
    except ValueError as error:
        raise BadInput(f"--vary {path} cannot be set: {error}.", "Set it in config.pbtxt itself.") from error
