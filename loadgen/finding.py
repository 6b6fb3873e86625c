"""What came of an order, and the answer that it amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.plan import LoadPlan
from loadgen.reports import words

if TYPE_CHECKING:
    from loadgen.order import Order
    from loadgen.reports.record import CapacityRecord, CheckRecord, ComparisonRecord, Outcome
    from loadgen.runner import LoadRun


_UNTRUSTED, _NOTHING = "the client was measured, not the server", "nothing was measured"
CLOSED_LOOP = "in a closed loop: independent users, who do not wait for each other, would see more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The measured run and what it says. `run` None: stopped before anything was measured.

    For a search for the highest rate `run` is the last confirmation, or the last probe where there was none.
    """

    run: LoadRun | None
    checks: tuple[CheckRecord, ...] = ()
    capacity: CapacityRecord | None = None
    interrupted: bool = False


def answer(
    order: Order,
    finding: Finding,
    comparison: tuple[ComparisonRecord, ...],
    *,
    bounded_after_s: float | None = None,
) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome and its reasons, the headline first. What is worse goes before what is better.

    `bounded_after_s`: how long the run would have had to be for a comparison of its p99, where that is known.
    """
    run = finding.run
    if finding.interrupted or run is None:
        sent_s = 0.0 if run is None else run.measurement.duration_s
        until = f"after {words.seconds(sent_s)} of {words.seconds(order.plan.duration_s)}"
        return "interrupted", (f"stopped {until}; the figures are of what was sent until then",)
    problems = run.measurement.problems
    found: dict[Outcome, tuple[str, ...]] = {
        "untrustworthy": (_UNTRUSTED if run.measurement.n else _NOTHING, *problems) if problems else (),
        "broken": _broken(order, finding, run),
        "worse": _worse(comparison),
        "undecided": _undecided(order, finding, comparison, bounded_after_s),
    }
    first = next((item for item in found.items() if item[1]), None)
    return first or _good(order, finding)


def _good(order: Order, finding: Finding) -> tuple[Outcome, tuple[str, ...]]:
    if finding.capacity is not None:
        return "kept", (finding.capacity.reason,)
    closed = () if isinstance(order.plan, LoadPlan) else (CLOSED_LOOP,)
    if not order.limits:
        return "measured", ("no limit was given, so there is nothing to keep or to break", *closed)
    names = " and ".join(check.name for check in finding.checks)
    return "kept", (f"{names}, with {100 * order.limits.confidence:g} % confidence", *closed)


def _worse(comparison: tuple[ComparisonRecord, ...]) -> tuple[str, ...]:
    return tuple(
        f"{compared.figure} is worse than the baseline's" for compared in comparison if compared.answer == "worse"
    )


def _broken(order: Order, finding: Finding, run: LoadRun) -> tuple[str, ...]:
    found = finding.capacity
    if found is not None and found.certified_rate_per_s is None:
        return () if found.undecided else (found.reason,)
    seen = run.measurement
    reasons = [
        f"{check.name} does not hold: {check.reason}" for check in finding.checks if check.answer == "broken"
    ]
    if run.stopped == "overloaded":
        after = words.seconds(seen.duration_s)
        reasons.insert(
            0, f"overloaded: more and more requests were waiting, so the load was stopped after {after}"
        )
    if not order.limits and seen.n and sum(seen.errors.values()) == seen.n:
        reasons.append("every request failed")
    return tuple(reasons)


def _undecided(
    order: Order, finding: Finding, comparison: tuple[ComparisonRecord, ...], bounded_after_s: float | None
) -> tuple[str, ...]:
    if finding.capacity is not None and finding.capacity.undecided:
        return (finding.capacity.reason,)
    reasons = [
        f"{check.name}: too short to tell; --duration {words.duration_option(check.needed_s)} should do"
        if check.needed_s is not None
        else f"{check.name}: {check.reason}"
        for check in finding.checks
        if check.answer == "undecided"
    ]
    if order.compare is not None and not comparison:
        longer = "use a longer --duration"
        if bounded_after_s is not None:
            longer = f"--duration {words.duration_option(bounded_after_s)} should do"
        reasons.append(f"this run is too short to bound its p99, so it cannot be compared; {longer}")
    return tuple(reasons)
