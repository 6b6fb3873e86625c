"""Restrict a search space to what the user wants to be tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.errors import BadInput
from search.knobs import KNOBS
from search.space import SearchSpace, engine_label, knobs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What may be tried: of a knob in `values` exactly these, in increasing order; of none an `excluded` value.

    `excluded` holds pairs of a knob and the text of its value. Knobs of members are named `MODEL.instance_count`.
    """

    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    excluded: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> str:
        """The options that ask for it, as they are written."""
        given = [f"{KNOBS[knob].option} {KNOBS[knob].listed(values)}" for knob, values in self.values.items()]
        return ", ".join([*given, *(f"--exclude {knob}={value}" for knob, value in self.excluded)])

    def of_member(self, name: str, knobs: Collection[str]) -> Restriction:
        """Return the restriction of a model that another one calls, and of which these `knobs` are varied.

        What is excluded has its name in front, or counts for every model that has the knob.
        """
        excluded = [(knob.removeprefix(f"{name}."), knob, value) for knob, value in self.excluded]
        mine = dict.fromkeys((own, value) for own, knob, value in excluded if own != knob or knob in knobs)
        values = {knob: values for knob, values in self.values.items() if knob in knobs}
        return Restriction(values=values, excluded=tuple(mine))

    def of_none(self, space: SearchSpace) -> list[str]:
        """Return what is excluded of a space's own knobs and not in it in any case; members are asked before."""
        axes, own = space.axes(), [(knob, value) for knob, value in self.excluded if "." not in knob]
        return [f"{knob}={value}" for knob, value in own if value not in map(str, axes.get(knob, ()))]


def restricted(space: SearchSpace, wanted: Restriction) -> SearchSpace:
    """Return the space with the wanted values of its own knobs; members have been restricted before.

    A baseline or start with other values is still measured, and only compared with.
    Raises BadInput if nothing is left, or for a knob that these engines do not have.
    """
    _check_fixed(space, wanted)
    before = {knob: axis for knob, axis in space.axes().items() if "." not in knob}
    kept = {
        knob: tuple(one for one in wanted.values.get(knob, axis) if (knob, str(one)) not in wanted.excluded)
        for knob, axis in before.items()
    }
    values: dict[str, Any] = {**space.values, **{knob: kept[knob] for knob in KNOBS if knob in kept}}
    engines = tuple(one for one in space.engines if engine_label(one) in kept["engine"])
    found = replace(space, engines=engines, values=values)
    if not all(kept.values()) or next(found.points(), None) is None:
        asked = [knob for knob in before if knob in wanted.values or knob in dict(wanted.excluded)]
        others = "; ".join(f"{knob} {', '.join(map(str, before[knob]))}" for knob in asked)
        raise BadInput(
            f"{wanted.options}: no configuration of {space.name} is left to try on {space.limits.cores} cores.",
            f"Leave one out or give other values. By default there are: {others}.",
        )
    if space.start is not None and space.start.engine not in engines:
        raise BadInput(
            f"{wanted.options}: the engine of --start-from, {engine_label(space.start.engine)}, is left out.",
            "Leave --start-from or that --exclude out.",
        )
    given = [*map(found.baseline, found.engines), *([] if space.start is None else [space.start])]
    changed = {knob: axis for knob, axis in kept.items() if axis != before[knob]}
    wanted_of = [all(knobs_of(one).get(knob, axis[0]) in axis for knob, axis in changed.items()) for one in given]
    apart = tuple(one for one, is_wanted in zip(given, wanted_of, strict=True) if not is_wanted)
    return replace(found, only_compared=apart)


def _check_fixed(space: SearchSpace, wanted: Restriction) -> None:
    """Raise BadInput for values of a knob that these engines do not have, or that no request fits."""
    sizes = wanted.values.get("max_batch_size", ())
    if any(size < space.rows_per_request for size in sizes):
        raise BadInput(
            f"--client-batch {space.rows_per_request} is over --max-batch-size {sizes[0]}.",
            f"Give --max-batch-size {space.rows_per_request} and more, or smaller requests.",
        )
    unbatched = not all(engine.batched for engine in space.engines)
    on_gpu = any(engine.device == "gpu" for engine in space.engines)
    reasons = {
        "max_batch_size": "is served without batches" if unbatched else "",
        "max_queue_delay_us": "is served without batches, which alone can wait" if unbatched else "",
        "intra_op_threads": "runs on a GPU, where no threads are chosen" if on_gpu else "",
    }
    for knob, reason in reasons.items():
        values = wanted.values.get(knob)
        if reason and values not in (None, space.axes()[knob]):
            raise BadInput(
                f"{KNOBS[knob].option} {KNOBS[knob].listed(values or ())}: {space.name} {reason}.",
                f"Leave {KNOBS[knob].option} out.",
            )
