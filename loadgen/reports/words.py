"""Figures in words, the same in the terminal, the page and the JUnit file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.reports.record import (
        CheckRecord,
        ComparisonRecord,
        LoadRecord,
        LoadTestRecord,
        MeasurementRecord,
        ProbeRecord,
    )

UNKNOWN = "-"

HEADLINES = {
    "kept": "KEPT",
    "measured": "MEASURED",
    "worse": "WORSE",
    "broken": "BROKEN",
    "undecided": "NOT DECIDED",
    "untrustworthy": "NOT TRUSTWORTHY",
    "interrupted": "INTERRUPTED",
}


def ms(value: float | None) -> str:
    """About three digits, to the microsecond; `-` where unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 1:
        return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}" if value >= 0.0005 else "0"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def rate(value: float | None) -> str:
    """Requests per second with as many digits as say something."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def percent(share: float | None) -> str:
    """A share as a percentage of about three digits: `0.052 %`, `3.4 %`."""
    if share is None or not math.isfinite(value := 100 * share):
        return UNKNOWN
    return "0 %" if value == 0 else f"{value:.2g} %" if value < 10 else f"{value:.0f} %"


def seconds(value: float) -> str:
    """`30 s`, `2.5 s`, `12 min`, `3.1 h`; `-` where unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    if value >= 300:
        return f"{value / 60:.0f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def duration_option(value: float) -> str:
    """Seconds as an option's value, rounded up so that it is long enough: `45s`, `12m`."""
    if value < 300:
        return f"{math.ceil(value)}s"
    return f"{math.ceil(value / 60)}m"


def size(value: float) -> str:
    """Bytes in a unit that fits, in powers of 1000; `-` where unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def load_in_words(load: LoadRecord) -> str:
    """`200 requests/s, poisson, 30 s`."""
    if load.kind == "closed":
        return f"closed loop, {load.concurrency} callers, {seconds(load.duration_s)}"
    if load.rate_per_s is None:
        return f"searching for the highest rate, {load.arrivals}, {seconds(load.duration_s)} of load"
    cap = f", at most {load.max_in_flight} in flight" if load.max_in_flight else ""
    return f"{rate(load.rate_per_s)} requests/s, {load.arrivals}{cap}, {seconds(load.duration_s)}"


def observed_in_words(check: CheckRecord) -> str:
    """`41.2 ms (38.0 to 44.9)`, `0.05 % (0.01 to 0.1 %)`: what was seen, and the bounds of what is true."""
    show = ms if check.kind == "latency" else percent
    unit = " ms" if check.kind == "latency" else ""
    text = f"{show(check.observed)}{unit}"
    if check.low is None and check.high is None:
        return text
    if check.high is None:
        return f"{text} (at least {show(check.low)})"
    return f"{text} ({show(check.low)} to {show(check.high)})"


def comparison_in_words(compared: ComparisonRecord) -> str:
    """`p99 41.2 ms, baseline 30.1 ms: 37 % more (21 to 55 %), worse`."""
    show = ms if compared.unit == "ms" else rate
    change = 100 * (compared.ratio - 1)
    low, high = (
        "?" if ratio is None else f"{100 * (ratio - 1):+.1f}"
        for ratio in (compared.ratio_low, compared.ratio_high)
    )
    now, before = (f"{show(value)} {compared.unit}" for value in (compared.now, compared.baseline))
    return f"{compared.figure} {now}, baseline {before}: {change:+.1f} % ({low} to {high} %), {compared.answer}"


def traffic_in_words(measured: MeasurementRecord) -> str:
    """`6,001 in 30 s: 200.0/s (201.0/s planned)`."""
    seen = rate(measured.achieved_rate_per_s)
    plan = "" if measured.planned_rate_per_s is None else f" ({rate(measured.planned_rate_per_s)}/s planned)"
    return f"{measured.requests:,} in {seconds(measured.duration_s)}: {seen}/s{plan}"


def percentiles_note(measured: MeasurementRecord) -> str | None:
    """Where percentiles come from, if not from every request's own time."""
    if measured.percentiles_from == "every request":
        return None
    return "percentiles are HdrHistogram's, to three digits: too many requests to keep every time"


def probe_in_words(probe: ProbeRecord) -> tuple[str, ...]:
    """A line of the search for the highest rate: rate, seconds, requests, those over the limit, ms, answer."""
    return (
        rate(probe.rate_per_s),
        f"{probe.seconds:.1f}",
        f"{probe.requests:,}",
        f"{probe.violations:,}",
        ms(probe.latency_ms),
        probe.answer,
    )


def errors_in_words(record: LoadTestRecord) -> str:
    """`none`, or how many of which kind."""
    measured = record.measurement
    if measured is None or not measured.failures:
        return "none"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in measured.errors.items())
    return f"{measured.failures:,} ({percent(measured.failures / measured.requests)}): {kinds}"
