"""Line charts as SVG text: linear or logarithmic axes, rules across, a tip for every stretch of the x axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 760, 56, 26, 14, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range and its marked values. Values outside the range are drawn at its edge."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """Where the value lies between low (0) and high (1)."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named line; it breaks where a y is None. `style` is a CSS class of the page."""

    name: str
    style: str
    points: Sequence[tuple[float, float | None]]
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the whole chart at one y, with a word beside it."""

    y: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """What the browser shows while the pointer is between two x."""

    start: float
    end: float
    text: str


def log_axis(values: Iterable[float]) -> Axis:
    """An axis around positive values whose ends and ticks are 1, 2 or 5 times a power of ten."""
    positive = [value for value in values if value > 0]
    least, most = (min(positive), max(positive)) if positive else (1.0, 10.0)
    low = _step(least, below=True)
    high = _step(max(most, low * 1.5), below=False)
    ticks: list[float] = []
    value = low
    while value <= high * (1 + 1e-9):
        ticks.append(value)
        value = _step(value * 1.1, below=False)
    if len(ticks) > 9:
        ticks = [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    return Axis(low=low, high=high, ticks=tuple((tick, f"{tick:g}") for tick in ticks), logarithmic=True)


def linear_axis(high: float, *, steps: int = 5) -> Axis:
    """An axis from 0 to `high` or a little over it, with at most so many round steps."""
    step = _step(max(high, 1e-9) / steps, below=False)
    count = math.ceil(high / step - 1e-9)
    return Axis(low=0.0, high=count * step, ticks=tuple((n * step, f"{n * step:g}") for n in range(count + 1)))


def chart(
    *,
    title: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    rules: Sequence[Rule] = (),
    tips: Sequence[Tip] = (),
    marks: Sequence[float] = (),
    height: int = 280,
) -> str:
    """One chart. `marks` are x positions to point at from above: where something failed."""
    floor = height - BOTTOM

    def at_x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x.position(value)

    def at_y(value: float) -> float:
        return floor - (floor - TOP) * y.position(value)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for value, text in y.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {at_y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at_y(value) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for value, text in x.ticks:
        parts.append(
            f'<text class="tick" x="{at_x(value):.1f}" y="{floor + 20}" text-anchor="middle">{escape(text)}</text>'
        )
    for line in lines:
        points = [(at_x(px), None if py is None else at_y(py)) for px, py in line.points]
        parts.append(f'<path class="line {line.style}" d="{_path(points, steps=line.steps)}"/>')
    for rule in rules:
        if y.low <= rule.y <= y.high:
            parts.append(f'<path class="limit" d="M{LEFT} {at_y(rule.y):.1f}H{WIDTH - RIGHT}"/>')
            parts.append(
                f'<text class="limit-name" x="{LEFT + 6}" y="{at_y(rule.y) - 5:.1f}">{escape(rule.name)}</text>'
            )
    parts += [f'<path class="mark" d="M{at_x(mark):.1f} {TOP}l-4 -8h8z"/>' for mark in marks]
    for tip in tips:
        left, right = at_x(tip.start), at_x(tip.end)
        parts.append(
            f'<rect class="tip" x="{left:.1f}" y="{TOP}" width="{max(right - left, 0.1):.1f}" '
            f'height="{floor - TOP}"><title>{escape(tip.text)}</title></rect>'
        )
    return "".join([*parts, "</svg>"])


def _path(points: Iterable[tuple[float, float | None]], *, steps: bool) -> str:
    parts: list[str] = []
    broken = True
    for px, py in points:
        if py is None:
            broken = True
            continue
        if broken:
            parts.append(f"M{px:.1f} {py:.1f}")
        elif steps:
            parts.append(f"H{px:.1f}V{py:.1f}")
        else:
            parts.append(f"L{px:.1f} {py:.1f}")
        broken = False
    return "".join(parts)


def _step(value: float, *, below: bool) -> float:
    """The next of 1, 2, 5 times a power of ten: the last at or below the value, or the first at or above it."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    steps = [power, 2 * power, 5 * power, 10 * power]
    if below:
        return max(step for step in steps if step <= value * (1 + 1e-9))
    return min(step for step in steps if step >= value * (1 - 1e-9))
