"""Find pauses in which no response came, if they explain the slowest requests of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search.arrays import Floats
from search.simulator.replay import MIN_PAUSE_S
from search.trials.bench import ObservedRun

MIN_TIMES_USUAL = 5.0
"""A pause is a time without any answer though requests waited. It lasts 10 ms at least, and five times the wait
for the next answer at a random moment (the median)."""

MIN_COUNT, OF_SLOWEST, OF_LIMIT = 3, 0.5, 0.25
"""Pauses explain the latencies of a run if there are three, if the longer ones take a quarter of the limit, and if
half of the slowest requests waited in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The pauses of all runs together: the 10th and 90th percentile of their length, and the time between two.

    `share` of the slowest requests waited in one; `configurations` were served meanwhile.
    """

    short_s: float
    long_s: float
    every_s: float
    share: float
    configurations: int

    @property
    def text(self) -> str:
        """Two sentences for users."""
        served = f", with {self.configurations} configurations" if self.configurations > 1 else ""
        length = f"{1e3 * self.short_s:.0f} to {1e3 * self.long_s:.0f} ms"
        return (
            f"About every {self.every_s:.2g} s no answer came for {length}{served}: "
            f"{100 * self.share:.0f} % of the slowest requests waited then. Something stops the server or the "
            "machine: look for other guests of the host, power saving and CPU limits."
        )


def pauses_of(runs: Sequence[ObservedRun], *, limit_s: float, quantile: float) -> Pauses | None:
    """Return the pauses if they explain the slowest requests of the runs, those beyond the quantile; else None.

    Runs of which half of the requests took over half of the limit were overloaded, and say nothing.
    """
    steady = [run for run in runs if float(np.median(run.taken_s)) < limit_s / 2]
    found = [(run, _pauses_in(run)) for run in steady]
    lengths = np.concatenate([np.zeros(0), *(ends - starts for _, (starts, ends) in found)])
    if len(lengths) < MIN_COUNT:
        return None
    short_s, long_s = np.quantile(lengths, (0.1, 0.9))
    slowest = np.concatenate([_slowest_waited(run, *pauses, quantile) for run, pauses in found])
    share = float(slowest.mean())
    if share < OF_SLOWEST or long_s < OF_LIMIT * limit_s:
        return None
    return Pauses(
        short_s=float(short_s),
        long_s=float(long_s),
        every_s=sum(run.seconds for run in steady) / len(lengths),
        share=share,
        configurations=len({run.config for run, (starts, _) in found if len(starts)}),
    )


def _pauses_in(run: ObservedRun) -> tuple[Floats, Floats]:
    """Return when pauses began and ended, in seconds of the run."""
    done_s = run.sent_s + run.taken_s
    order = np.argsort(done_s, kind="stable")
    done_s = done_s[order]
    gaps = np.diff(done_s)
    by_length = np.sort(gaps)
    passed_s = np.cumsum(by_length)
    usual_s = by_length[np.searchsorted(passed_s, passed_s[-1] / 2)]
    oldest_sent_s = np.minimum.accumulate(run.sent_s[order][::-1])[::-1]  # of the requests not answered before
    starts_s, ends_s = np.maximum(done_s[:-1], oldest_sent_s[1:]), done_s[1:]
    long = ends_s - starts_s >= max(MIN_PAUSE_S, MIN_TIMES_USUAL * usual_s)
    return starts_s[long], ends_s[long]


def _slowest_waited(run: ObservedRun, starts_s: Floats, ends_s: Floats, quantile: float) -> Floats:
    """Return 1 for each of the slowest requests that waited in a pause, or behind those who did; else 0.

    The queue of a pause takes about as long again.
    """
    slowest = run.taken_s >= np.quantile(run.taken_s, quantile)
    sent_s = run.sent_s[slowest]
    done_s = sent_s + run.taken_s[slowest]
    if not len(starts_s):
        return np.zeros(len(sent_s))
    latest = np.searchsorted(starts_s, done_s) - 1  # the last pause that began before the answer
    over_s = 2 * ends_s[latest] - starts_s[latest]
    return np.asarray((latest >= 0) & (sent_s <= over_s), dtype=np.float64)
