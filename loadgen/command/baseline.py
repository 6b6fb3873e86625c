"""Compare a run with an earlier one: is it worse by more than both their uncertainties?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.records.formats import duration_option, format_seconds
from loadgen.records.record import ComparisonRecord, LoadTestRecord
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import LoadPlan

SAME_RATE = 0.005
"""Rates within 0.5 % of each other count as the same load."""


def read_baseline(path: Path) -> LoadTestRecord:
    """The record that an earlier run wrote with --output. Raises BadInput when it is none, or decides nothing."""
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
    return record


def check_comparable(baseline: LoadTestRecord, order: LoadTest) -> None:
    """Raises BadInput when the order asks another question than the baseline answered."""
    for what, before, now in _differences(baseline, order):
        if before != now:
            raise BadInput(
                f"The baseline was measured with {what} {before}, this run with {now}.",
                "Compare runs of the same load, or measure a new baseline with --output.",
            )
    if order.find_max:
        bounds = _bounds_of_capacity(baseline)
        if bounds is None or bounds[0] == 0:
            raise BadInput("The baseline found no highest rate.", "Measure one with --find-max and --output.")
        return
    if baseline.capacity is not None:
        raise BadInput(
            "The baseline is a search for the highest rate.", "Add --find-max, or use another baseline."
        )
    bounds = _bounds_of_p99(baseline)
    if bounds is None or bounds[2] == math.inf:
        raise _too_short(baseline)
    before_per_s = baseline.load.rate_per_s
    if isinstance(order.plan, LoadPlan) and before_per_s is not None:
        now_per_s = order.plan.rate_per_s
        if abs(now_per_s - before_per_s) > SAME_RATE * before_per_s:
            raise BadInput(
                f"The baseline was measured at {before_per_s:g} requests/s, this run at {now_per_s:g}.",
                f"Latencies compare at the same load only: use --rate {before_per_s:g}",
            )


def _too_short(baseline: LoadTestRecord) -> BadInput:
    seen = baseline.measurement
    if seen is None:
        return BadInput("The baseline measured nothing.", "Measure another one with --output.")
    seconds = format_seconds(seen.duration_s)
    what = f"The baseline has too few requests to bound its p99: {seen.requests} in {seconds}"
    needed_s = seen.latency_p99_bounded_after_s
    if needed_s is None:
        return BadInput(f"{what}.", "Measure a longer one with --output.")
    wanted = duration_option(needed_s)
    return BadInput(f"{what}.", f"Measure one of --duration {wanted} or longer, with --output.")


def compare(baseline: LoadTestRecord, now: LoadTestRecord) -> tuple[ComparisonRecord, ...]:
    """Capacity for two searches, p99 for two runs; empty if this run is too short to bound the figure."""
    if now.capacity is not None:
        rates = _bounds_of_capacity(baseline), _bounds_of_capacity(now)
        return compared("highest rate", "requests/s", *rates, more_is_better=True)
    return compared("p99", "ms", _bounds_of_p99(baseline), _bounds_of_p99(now), more_is_better=False)


Bounds = tuple[float, float, float]
"""(low, value, high), positive; low 0 or high inf if there were too few requests for a bound on that side."""


def ratio_bounds(baseline: Bounds, now: Bounds) -> Bounds:
    """now / baseline with its bounds, from the bounds of both: Zou and Donner's MOVER on the logarithms.

    The distances to the bounds add up like standard deviations. That is less timid than asking that the two
    intervals do not overlap, and errs less often than asking that the value lies outside the other interval.
    Source: Zou & Donner, Statistics in Medicine 27 (2008), 1693-1702.
    """
    base_low, base, base_high = (_log(value) for value in baseline)
    now_low, here, now_high = (_log(value) for value in now)
    ratio = here - base
    low = ratio - math.hypot(here - now_low, base_high - base)
    high = ratio + math.hypot(now_high - here, base - base_low)
    return math.exp(low), math.exp(ratio), math.exp(high)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def compared(
    figure: str, unit: str, before: Bounds | None, now: Bounds | None, *, more_is_better: bool
) -> tuple[ComparisonRecord, ...]:
    """Return the figure judged; empty if a bound is missing that is needed to call this run not worse."""
    if before is None or now is None:
        return ()
    low, ratio, high = ratio_bounds(before, now)
    less, more = high < 1, low > 1
    worse = less if more_is_better else more
    if not worse and (low == 0 or high == math.inf):
        return ()
    record = ComparisonRecord(
        figure=figure,
        unit=unit,
        baseline=before[1],
        now=now[1],
        ratio=ratio,
        ratio_low=low or None,
        ratio_high=high if high < math.inf else None,
        answer="worse" if worse else "better" if less or more else "no difference seen",
    )
    return (record,)


def _differences(baseline: LoadTestRecord, order: LoadTest) -> Iterator[tuple[str, object, object]]:
    """Yield what must be the same in both runs. The model's name may differ: versions are compared."""
    yield "arrivals", baseline.load.arrivals, order.arrivals_text
    yield "a batch size of", baseline.load.batch_size, order.payload.batch_size
    yield "shared memory", baseline.load.shared_memory, order.payload.shared_memory
    yield "tensors as", baseline.load.format, order.payload.format
    yield "the outputs", sorted(baseline.load.outputs), sorted(order.payload.outputs)
    yield "shapes", baseline.load.shapes, {name: tuple(shape) for name, shape in order.payload.shapes.items()}
    if order.find_max:
        yield "the limits", _limit_texts(baseline), [limit.text for limit in order.limits.latency]


def _limit_texts(baseline: LoadTestRecord) -> list[str]:
    return [check.name for check in baseline.checks if check.kind == "latency"]


def _bounds_of_p99(record: LoadTestRecord) -> Bounds | None:
    measured = record.measurement
    if measured is None:
        return None
    return _positive(measured.latency_p99_low_ms, measured.latency_p99_ms, measured.latency_p99_high_ms)


def _bounds_of_capacity(record: LoadTestRecord) -> Bounds | None:
    found = record.capacity
    if found is None:
        return None
    return _positive(found.low_per_s, found.estimate_per_s, found.high_per_s)


def _positive(low: float | None, value: float | None, high: float | None) -> Bounds | None:
    if value is None or not 0 < value < math.inf:
        return None
    return low or 0.0, value, math.inf if high is None else high
