"""Check that the client adds no tail latency itself, by comparing its figures with the server's own clock.

All times of servers are on the monotonic clock of this machine, which the stalls of a `Disturbance` are on too. A
crowded host stops the processors of its guests for milliseconds, again and again. Requests that met a stall do not
measure the client: they are set aside, off or not, and runs are made until enough requests met none.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from disturbance import Disturbance
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog

OFF_MS = 5.0
MAX_OFF = 0.002
"""At most this share of the requests without a stall may differ by more than `OFF_MS`."""

MIN_QUIET = 500
MAX_RUNS = 6
"""At least so many requests must meet no stall, in at most so many runs."""

AFTER_MS = 10.0
"""A request meets a stall that ended at most so long before: waiting requests are served first. Of 212 requests
that were off in 20 runs on a crowded host, 25 met no stall, 9 none by this rule, and all of these were so near to
time that other guests took."""

MAX_BLURRED_MS = 50.0
"""Stalls may blur the p99 of a run by at most so much; if more, another run is made."""

BELOW_MS = 1.0
"""p99 may be so much below that of the server, which reads its clock only after it has responded."""


class ServersView:
    """The requests of a run as their server saw them, in the order in which they were due; arrays of shape (n,).

    `kept_ns` and `arrived_ns` are the service time and the arrival of each request, in any order; `due_ns` is its
    scheduled time, from any origin. Requests arrive in the order of their schedule, except a few neighbours; the
    one that arrived soonest after its scheduled time defines the origin.
    """

    def __init__(
        self,
        due_ns: NDArray[np.int64],
        kept_ns: NDArray[np.int64],
        arrived_ns: NDArray[np.int64],
        seen: Disturbance,
        *,
        after_ms: float = AFTER_MS,
    ) -> None:
        assert len(due_ns) == len(kept_ns) == len(arrived_ns) > 0
        came = np.argsort(arrived_ns, kind="stable")
        due_ns = np.sort(due_ns)
        begins_ns = due_ns + np.min(arrived_ns[came] - due_ns)
        self.kept_ns = kept_ns[came]
        self.latency_ns = arrived_ns[came] + kept_ns[came] - begins_ns
        self.stalled_ns = np.zeros(len(due_ns), np.int64)
        """The time for which the machine stood still while the request or its response was under way."""

        self.quiet = np.ones(len(due_ns), np.bool_)
        """True if it did not stand still then or shortly before, and no other guest of the host took time."""

        ends_ns = begins_ns + self.latency_ns + round(OFF_MS * 1e6)
        for begin, end in seen.stalls_ns:
            self.stalled_ns[(begins_ns < end) & (ends_ns > begin)] += end - begin
        for begin, end in (*seen.stalls_ns, *seen.stolen_ns):
            self.quiet[(begins_ns < end + after_ms * 1e6) & (ends_ns > begin)] = False

    @property
    def p99_blurred_ms(self) -> float:
        """Return how much the stalls may have lengthened p99."""
        most = 0.99 + MAX_OFF
        return (_quantile(self.latency_ns + self.stalled_ns, most) - _quantile(self.latency_ns, most)) / 1e6

    def assert_is_p99(self, p99_ms: float) -> None:
        """Raise AssertionError unless `p99_ms` is the p99 of the latencies, within the tolerances above.

        A few requests may be off without a stall, and each request by the stalls that it met.
        """
        least_ns = _quantile(self.latency_ns - self.stalled_ns, 0.99 - MAX_OFF)
        most_ns = _quantile(self.latency_ns + self.stalled_ns, 0.99 + MAX_OFF)
        least_ms, most_ms = least_ns / 1e6 - BELOW_MS, most_ns / 1e6 + OFF_MS
        assert least_ms <= p99_ms <= most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run: its server's view, the p99 that was reported, and which requests are off in which respect."""

    view: ServersView
    p99_ms: float
    off: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


def of_a_log(log: RequestLog, view: ServersView, p99_ms: float) -> Taken:
    """A run whose requests are known one by one: none may leave late, or take longer than its server says."""
    latency_ns = log.latency_ns[np.argsort(log.scheduled_ns, kind="stable")]
    off_ns = OFF_MS * 1e6
    off = {
        f"left {OFF_MS} ms late": view.latency_ns - view.kept_ns > off_ns,
        f"took {OFF_MS} ms more or less than by the server's clock": np.abs(latency_ns - view.latency_ns) > off_ns,
    }
    return Taken(view=view, p99_ms=p99_ms, off=off)


def assert_no_tail_of_its_own(take: Callable[[], Taken]) -> None:
    """Take runs until they say enough; raise AssertionError if requests are off, or a p99 is."""
    quiet = requests = 0
    off: Counter[str] = Counter()
    for _ in range(MAX_RUNS):
        taken = take()
        view = taken.view
        quiet, requests = quiet + int(view.quiet.sum()), requests + len(view.quiet)
        for how, which in taken.off.items():
            off[how] += int((which & view.quiet).sum())
        for how, count in off.items():
            told = f"{count} of {quiet} requests that met no stall {how}"
            assert quiet < MIN_QUIET or count <= MAX_OFF * quiet, told
        if view.p99_blurred_ms <= MAX_BLURRED_MS:
            view.assert_is_p99(taken.p99_ms)
            if quiet >= MIN_QUIET or not taken.off:
                return
        told = f"{quiet} of {requests} requests met no stall, p99 is unknown by {view.p99_blurred_ms:.0f} ms"
    raise AssertionError(f"In {MAX_RUNS} runs the machine stood still too much: {told}")


def lindley_ns(arrived_ns: NDArray[np.int64], service_ns: Sequence[float]) -> NDArray[np.int64]:
    """How long a queue with one server keeps each request that arrives then and takes so long; shape (n,)."""
    free_at, kept = 0.0, []
    for arrived, service in zip(arrived_ns.tolist(), service_ns, strict=True):
        free_at = max(arrived, free_at) + service
        kept.append(free_at - arrived)
    return np.array(kept).astype(np.int64)


def _quantile(times_ns: NDArray[np.int64], quantile: float) -> int:
    """Return the quantile by nearest rank, like the product."""
    return int(np.sort(times_ns)[math.ceil(quantile * len(times_ns)) - 1])
