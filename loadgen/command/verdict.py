"""The result of an order, the record of an earlier run to compare it with, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.exit_codes import CODES, PRECEDENCE
from loadgen.measurement.streams import token_counts
from loadgen.records.comparison import Figure, bounds_of, check_same, compare_figures
from loadgen.records.formats import duration_option, format_seconds
from loadgen.records.record import (
    CapacityRecord,
    CheckRecord,
    ComparisonRecord,
    LoadRecord,
    LoadTestRecord,
    Outcome,
)
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import LoadPlan
from loadgen.statistics.checks import change_of, shortest_run_s


def read_baseline(path: Path, load: LoadRecord, limits: Iterable[str], *, find_max: bool) -> LoadTestRecord:
    """Read the record that an earlier run wrote with --output, for a run of this load, with these limits.

    Raises BadInput if it cannot be read, or if its figure has no bounds or was measured under another load.
    """
    try:
        record = LoadTestRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"--compare {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except ValidationError as error:
        raise BadInput(
            f"--compare {path} is not a record of loadtest: {first_problem(error)}.",
            "Write one with --output, using this version.",
        ) from error
    if record.outcome in ("untrustworthy", "interrupted"):
        raise BadInput(
            f"--compare {path} is the record of a run that was {record.outcome}.",
            "Use a run that measured its server.",
        )
    names = (check.name for check in record.checks if check.kind != "errors")
    before = _conditions(record.load, names, find_max=record.capacity is not None)
    check_same(path, before, _conditions(load, limits, find_max=find_max))
    bounds = [figure.bounds for figure in _figures(record).values()]
    if not bounds or bounds[0] is None or (bounds[0][0] == 0 if find_max else bounds[0][2] == math.inf):
        seen = record.measurement
        needed_s = None if seen is None else seen.latency_p99_bounded_after_s
        longer = "a longer one" if needed_s is None else f"one of --duration {duration_option(needed_s)} or longer"
        raise BadInput(
            f"--compare {path} has too few requests to bound its {' and '.join(_figures(record)) or 'p99'}.",
            f"Measure {longer} with --output.",
        )
    return record


def compare(baseline: LoadTestRecord, now: LoadTestRecord) -> tuple[ComparisonRecord, ...]:
    """Compare capacity for two searches, p99 for two runs; empty if one is too short to bound the figure."""
    return compare_figures(_figures(baseline), _figures(now))


def _figures(record: LoadTestRecord) -> dict[str, Figure]:
    found, seen = record.capacity, record.measurement
    if found is not None:
        rates = bounds_of(found.low_per_s, found.estimate_per_s, found.high_per_s)
        return {"highest rate": Figure("requests/s", rates, more_is_better=True)}
    if seen is None:
        return {}
    return {"p99": Figure("ms", bounds_of(seen.latency_p99_low_ms, seen.latency_p99_ms, seen.latency_p99_high_ms))}


def _conditions(load: LoadRecord, limits: Iterable[str], *, find_max: bool) -> dict[str, object]:
    """Return what must be the same in both runs. The model's name may differ: versions are compared."""
    most = "at most " if load.allow_short else ""
    rate = "none" if load.rate_per_s is None else f"{load.rate_per_s:.4g}/s"
    return {
        "arrivals": load.arrivals,
        "rate": "the highest (--find-max)" if find_max else rate,
        "limit": (" and ".join(limits) or "not known, as no rate was confirmed") if find_max else "",
        "batch size": load.batch_size,
        "shared memory": load.shared_memory,
        "format of tensors": load.format,
        "API and tokens": f"{load.api}, {load.prompt_tokens} in, {most}{load.output_tokens} out",
        "choice of outputs": sorted(load.outputs),
        "shapes": load.shapes,
    }


_UNTRUSTED, _NOTHING = "the client was measured, not the server", "nothing was measured"
CLOSED_LOOP = "in a closed loop: independent users, who do not wait for each other, would see more"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestResult:
    """The measured run and its checks. `run` None: stopped before anything was measured.

    `ready_after_s` is how long the server took to answer at all; None: it was not waited for.
    `cold` is what was executed for the first time in an earlier run of the load, which does not count.
    For a search for the highest rate `run` is the last confirmation, or the last probe if there was none.
    """

    run: LoadRun | None
    checks: tuple[CheckRecord, ...] = ()
    capacity: CapacityRecord | None = None
    interrupted: bool = False
    ready_after_s: float | None = None
    cold: str = ""


def answer(
    order: LoadTest,
    finding: LoadTestResult,
    comparison: tuple[ComparisonRecord, ...],
    *,
    bounded_after_s: float | None = None,
) -> tuple[Outcome, tuple[str, ...]]:
    """Return the outcome and its reasons, the headline first. The exit code that comes first counts.

    `bounded_after_s`: the run length that a comparison of its p99 would have needed, if it is known.
    """
    run = finding.run
    if finding.interrupted or run is None:
        sent_s = 0.0 if run is None else run.measurement.duration_s
        until = f"after {format_seconds(sent_s)} of {format_seconds(order.plan.duration_s)}"
        return "interrupted", (f"stopped {until}; the figures cover the requests sent until then",)
    problems = run.measurement.problems
    worse = [one.figure for one in comparison if one.answer == "worse"]
    found: dict[Outcome, tuple[str, ...]] = {
        "untrustworthy": (_UNTRUSTED if run.measurement.n else _NOTHING, *problems) if problems else (),
        "violated": _violated(order, finding, run),
        "inconclusive": _inconclusive(order, finding, comparison, bounded_after_s),
        "worse": tuple(f"{figure} is worse than the baseline's" for figure in worse),
    }
    facts = [outcome for outcome, reasons in found.items() if reasons]
    outcome, reasons = _good(order, finding)
    if facts:
        outcome = min(facts, key=lambda one: PRECEDENCE.index(CODES[one]))
        reasons = found[outcome]
    asked, streams = order.payload.streamed, run.log.streams
    if asked is None or streams is None or run.log.failed.all():
        return outcome, reasons
    counted, as_asked = token_counts(asked, streams[~run.log.failed])
    if outcome == "met" and not as_asked:
        return "inconclusive", (counted, *reasons)
    return outcome, (*reasons, counted)


def _good(order: LoadTest, finding: LoadTestResult) -> tuple[Outcome, tuple[str, ...]]:
    if finding.capacity is not None:
        return "met", (finding.capacity.reason,)
    closed = () if isinstance(order.plan, LoadPlan) else (CLOSED_LOOP,)
    if not order.limits:
        return "measured", ("no limit was given, so nothing is met or violated", *closed)
    names = " and ".join(check.name for check in finding.checks)
    if accepted := [_undecided(order, check) for check in finding.checks if check.answer == "inconclusive"]:
        counts = f"{names} in this run; the observation counts, as --accept-observed asks"
        return "met", (counts, *accepted, *closed)
    return "met", (f"{names}, with {100 * order.limits.confidence:g} % confidence", *closed)


def _violated(order: LoadTest, finding: LoadTestResult, run: LoadRun) -> tuple[str, ...]:
    found = finding.capacity
    if found is not None and found.certified_rate_per_s is None:
        return () if found.inconclusive else (found.reason,)
    seen = run.measurement
    reasons = [
        f"{check.name} does not hold: {check.reason}" for check in finding.checks if check.answer == "violated"
    ]
    if run.stopped == "overloaded":
        after = format_seconds(seen.duration_s)
        what = seen.client.slow_link or "more and more requests were waiting"
        reasons.insert(0, f"overloaded: {what}, so the load was stopped after {after}")
    elif reasons and seen.client.slow_link:
        reasons.append(f"slow: {seen.client.slow_link}")
    if reasons and seen.cold:
        reasons.append(f"cold: {seen.cold}")
    changed = _changed(order, finding) if reasons else None
    if changed is not None:
        reasons.append(changed)
    if not order.limits and seen.n and sum(seen.errors.values()) == seen.n:
        reasons.append("every request failed")
    return tuple(reasons)


def _changed(order: LoadTest, finding: LoadTestResult) -> str | None:
    run = finding.run if order.is_stationary and finding.capacity is None else None
    return None if run is None else change_of(run.log, order.limits.latency)


def _inconclusive(
    order: LoadTest,
    finding: LoadTestResult,
    comparison: tuple[ComparisonRecord, ...],
    bounded_after_s: float | None,
) -> tuple[str, ...]:
    if finding.capacity is not None and finding.capacity.inconclusive:
        return (finding.capacity.reason,)
    undecided = [
        check for check in finding.checks if check.counted(accept_observed=order.accept_observed) == "inconclusive"
    ]
    if undecided and (changed := _changed(order, finding)) is not None:
        return (f"{changed}; send the load again, as a longer run of this kind decides nothing",)
    reasons = [_undecided(order, check) for check in undecided]
    if order.compare is not None and not comparison:
        longer = "use a longer --duration"
        if bounded_after_s is not None:
            longer = f"--duration {duration_option(bounded_after_s)} should do"
        reasons.append(f"this run is too short to bound its p99, so it cannot be compared; {longer}")
    return tuple(reasons)


def _undecided(order: LoadTest, check: CheckRecord) -> str:
    """Return what the run showed of a limit, and the duration that would show more."""
    limit = next((one for one in order.limits.latency if one.text == check.name), None)
    if not check.requests and limit is not None and isinstance(order.plan, LoadPlan):
        needed_s = shortest_run_s(limit, order.plan.rate_per_s, order.limits.confidence)
        return f"{check.name}: {check.reason}; --duration {duration_option(needed_s)} or longer should show more"
    if check.needed_s is None:
        return f"{check.name}: {check.reason}"
    late = {"errors": "failed", "attainment": "were not good"}.get(check.kind, "were late")
    seen = f"{check.violations:,} of {check.requests:,} requests {late} once this run was steady"
    longer = f"--duration {duration_option(check.needed_s)} or longer should show"
    if not check.violations:
        return f"{seen}; {longer} that {check.name} holds beyond it"
    share = "as" if check.observed_answer == "met" else "more than"
    return f"{seen}, {share} {check.name} allows; {longer} whether it holds beyond this run"
