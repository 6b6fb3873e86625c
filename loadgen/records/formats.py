"""Figures as text, the same on the terminal, in pages and in files."""

from __future__ import annotations

import math

from loadgen.records.record import CheckRecord, ComparisonRecord, LoadRecord, LoadTestRecord, MeasurementRecord

UNKNOWN = "-"

_AS_WRITTEN = 1 + 1e-12
"""Keeps decimals such as 8.2, which are a little less in binary, as they are."""


def format_ms(value: float | None) -> str:
    """Return milliseconds with about three digits, to the microsecond; `-` if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 1:
        return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}" if value >= 0.0005 else "0"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def format_rate(value: float | None) -> str:
    """Return requests per second with four significant digits at least, never rounded up; `-` if unknown."""
    if value is None or not math.isfinite(value := value * _AS_WRITTEN):
        return UNKNOWN
    if value >= 1000:
        return f"{math.floor(value):,}"
    if value < 1e-6:  # also 0 and negative rates; the scale of a much smaller one would overflow
        return f"{value:.4g}"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale) / scale:.4g}"


def format_percent(share: float | None) -> str:
    """Return a share as a percentage of about three digits: `0.052 %`, `3.4 %`."""
    if share is None or not math.isfinite(value := 100 * share):
        return UNKNOWN
    return "0 %" if value == 0 else f"{value:.2g} %" if value < 10 else f"{value:.0f} %"


def format_seconds(value: float) -> str:
    """Return such as `30 s`, `2.5 s`, `12 min`, `3.1 h`; `-` if unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    if value >= 300:
        return f"{value / 60:.0f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def duration_option(value: float) -> str:
    """Return seconds as an option's value, rounded up so that it is long enough: `45s`, `12m`."""
    if value < 300:
        return f"{math.ceil(value)}s"
    return f"{math.ceil(value / 60)}m"


def format_size(value: float) -> str:
    """Return bytes in a unit that fits, in powers of 1000; `-` if unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def format_dollars(usd: float | None) -> str:
    """Return an amount with three significant digits at least, `$0.0123`, `$4.50`, `$1,234.00`; `-` if unknown."""
    if usd is None:
        return UNKNOWN
    if 0 < usd < 1:
        digits = 2
        while usd * 10**digits < 100 and digits < 9:
            digits += 1
        return f"${usd:.{digits}f}"
    return f"${usd:,.2f}"


def load_in_words(load: LoadRecord) -> str:
    """Return such as `200 requests/s, poisson, 30 s`."""
    if load.kind == "closed":
        return f"closed loop, {load.concurrency} callers, {format_seconds(load.duration_s)}"
    if load.rate_per_s is None:
        return f"searching for the highest rate, {load.arrivals}, {format_seconds(load.duration_s)} of load"
    cap = f", at most {load.max_in_flight} in flight" if load.max_in_flight else ""
    cap += f", refused above {load.refuse_above} in flight" if load.refuse_above else ""
    return f"{format_rate(load.rate_per_s)} requests/s, {load.arrivals}{cap}, {format_seconds(load.duration_s)}"


def observed_in_words(check: CheckRecord) -> str:
    """Return the measured value and bounds of the true one: `41.2 ms (38.0 to 44.9)`, `0.05 % (0.01 to 0.1 %)`."""
    is_share = check.kind in ("errors", "attainment")
    show, unit = (format_percent, "") if is_share else (format_ms, " ms")
    text = f"{show(check.observed)}{unit}"
    if check.low is None and check.high is None:
        return text
    if check.high is None:
        return f"{text} (at least {show(check.low)})"
    return f"{text} ({show(check.low)} to {show(check.high)})"


def beyond_in_words(check: CheckRecord) -> str:
    """Return the test's answer, and the duration that it needs: `met`, `inconclusive, needs 40s`.

    `-` if no error at all is allowed: that is about the run alone.
    """
    if check.limit == 0:
        return UNKNOWN
    return check.answer if check.needed_s is None else f"{check.answer}, needs {duration_option(check.needed_s)}"


def comparison_in_words(compared: ComparisonRecord) -> str:
    """Return such as `p99 41.2 ms, baseline 30.1 ms: +37.0 % (+21.0 to +55.0 %), worse`."""
    now, before = (figure_in_words(value, compared.unit) for value in (compared.now, compared.baseline))
    return f"{compared.figure} {now}, baseline {before}: {change_in_words(compared)}, {compared.answer}"


def figure_in_words(value: float, unit: str) -> str:
    """Return a figure of a comparison with its unit."""
    if unit == "USD":
        return format_dollars(value)
    show = {"ms": format_ms, "requests/s": format_rate}.get(unit, "{:.3g}".format)
    return f"{show(value)} {unit}".strip()


def change_in_words(compared: ComparisonRecord) -> str:
    """Return such as `-6.7 % (-11.2 to -2.1 %)`, with bounds at 95 % each; `?` stands for an unknown bound."""
    change, low, high = (
        "?" if ratio is None else f"{100 * (ratio - 1):+.1f}"
        for ratio in (compared.ratio, compared.ratio_low, compared.ratio_high)
    )
    return f"{change} % ({low} to {high} %)"


def traffic_in_words(measured: MeasurementRecord) -> str:
    """Return such as `6,001 in 30 s: 199.9/s (200/s planned)`."""
    planned = measured.planned_rate_per_s
    plan = "" if planned is None else f" ({format_rate(planned)}/s planned)"
    rate = format_rate(measured.achieved_rate_per_s)
    return f"{measured.requests:,} in {format_seconds(measured.duration_s)}: {rate}/s{plan}"


def errors_in_words(record: LoadTestRecord) -> str:
    """Return `none`, or the number of errors of each kind."""
    measured = record.measurement
    if measured is None or not measured.failures:
        return "none"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in measured.errors.items())
    return f"{measured.failures:,} ({format_percent(measured.failures / measured.requests)}): {kinds}"
