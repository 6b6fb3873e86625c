"""The two plots of a load test: the latency distribution, and latency over time."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from loadgen.reports import words
from loadgen.reports.svg import Axis, Line, Rule, Tip, chart, linear_axis, log_axis

if TYPE_CHECKING:
    from loadgen.reports.record import LoadTestRecord, TimelineRecord


def distribution(record: LoadTestRecord) -> str:
    """Latency over the share of requests that were at least so fast, each nine as wide as the one before."""
    curve = record.curve
    if curve is None or len(curve.quantile) < 3:
        return ""
    slowest = curve.quantile[-2]
    scale = [_nines(min(share, slowest)) for share in curve.quantile]
    ticks = [(_nines(share), f"p{100 * share:g}") for share in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)]
    x = Axis(low=0.0, high=scale[-1], ticks=tuple(tick for tick in ticks if tick[0] <= scale[-1]))
    y = log_axis([*curve.latency_ms, *(rule.y for rule in _rules(record))])
    points = list(zip(scale, curve.latency_ms, strict=True))
    tips = [
        Tip(start=before, end=after, text=f"p{100 * share:.6g}: {words.ms(latency)} ms")
        for before, after, share, latency in zip(
            scale, scale[1:], curve.quantile[1:], curve.latency_ms[1:], strict=False
        )
    ]
    drawing = chart(
        title="Latency in ms over percentiles",
        x=x,
        y=y,
        lines=[Line(name="latency", style="p99", points=points)],
        rules=_rules(record),
        tips=tips,
    )
    return _figure("Latency distribution, ms", drawing, ())


def over_time(record: LoadTestRecord) -> str:
    """p50, p99 and the slowest request of each stretch; a mark where requests failed; the rate below."""
    line = record.timeline
    if line is None:
        return ""
    middles = [start + line.bin_s / 2 for start in line.start_s]
    end_s = line.start_s[-1] + line.bin_s
    x = linear_axis(end_s)
    x = Axis(low=0.0, high=end_s, ticks=tuple((at, f"{text} s") for at, text in x.ticks if at <= end_s))
    seen = [value for values in (line.p50_ms, line.max_ms) for value in values if value is not None]
    tips = _tips(line)
    latency = chart(
        title="Latency in ms over time",
        x=x,
        y=log_axis([*seen, *(rule.y for rule in _rules(record))]),
        lines=[
            Line(name="max", style="max", points=list(zip(middles, line.max_ms, strict=True))),
            Line(name="p99", style="p99", points=list(zip(middles, line.p99_ms, strict=True))),
            Line(name="p50", style="p50", points=list(zip(middles, line.p50_ms, strict=True))),
        ],
        rules=_rules(record),
        tips=tips,
        marks=[at for at, failed in zip(middles, line.failures, strict=True) if failed],
    )
    rates = [(start, due) for start, due in zip(line.start_s, line.due_per_s, strict=True)]
    rate = chart(
        title="Requests due per second over time",
        x=x,
        y=linear_axis(max(line.due_per_s), steps=3),
        lines=[Line(name="rate", style="p50", points=[*rates, (end_s, rates[-1][1])], steps=True)],
        tips=tips,
        height=150,
    )
    keys = (("p50", "p50"), ("p99", "p99"), ("max", "slowest"), ("fail", "failures"))
    shown = keys if any(line.failures) else keys[:3]
    return _figure("Latency over time, ms", latency, shown) + _figure("Requests due per second", rate, ())


def _nines(share: float) -> float:
    return -math.log10(1 - share)


def _rules(record: LoadTestRecord) -> list[Rule]:
    return [Rule(y=check.limit, name=check.name) for check in record.checks if check.kind == "latency"]


def _tips(line: TimelineRecord) -> list[Tip]:
    return [
        Tip(
            start=start,
            end=start + line.bin_s,
            text=f"{start:g} s: {words.rate(due)} requests/s, p50 {words.ms(p50)}, p99 {words.ms(p99)}, "
            f"max {words.ms(top)} ms" + (f", {failed} failed" if failed else ""),
        )
        for start, due, p50, p99, top, failed in zip(
            line.start_s, line.due_per_s, line.p50_ms, line.p99_ms, line.max_ms, line.failures, strict=True
        )
    ]


def _figure(title: str, drawing: str, keys: tuple[tuple[str, str], ...]) -> str:
    names = "".join(
        f'<span class="{style}">▼ {name}</span>'
        if style == "fail"
        else f'<span><i class="{style}"></i>{name}</span>'
        for style, name in keys
    )
    key = f'<p class="key">{names}</p>' if names else ""
    return f'<section><h2>{escape(title)}</h2>{key}<div class="scroll">{drawing}</div></section>'
