"""Whether the client adds a tail of its own: what it reports, against the server's own clock.

All times of servers are on the monotonic clock of this machine, which the stalls of a `Disturbance` are on too. A
crowded host stops the processors of its guests for milliseconds, again and again. Requests that met a stall say
nothing about the client: they are set aside, off or not, and runs are taken until enough met none.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from disturbance import Disturbance
from numpy.typing import NDArray

from loadgen.measurement import RequestLog

OFF_MS = 5.0
MOST_OFF = 0.002
"""The share of requests that met no stall and may differ by more than `OFF_MS`."""

LEAST_QUIET = 500
MOST_RUNS = 6
"""So many requests have to meet no stall, in so many runs at the most."""

AFTER_MS = 10.0
"""A request meets a stall that ended so shortly before: what waited meanwhile is served first. Of 212 requests
that were off in 20 runs on a crowded host, 25 met no stall, 9 none by this rule, and all of these were so near to
time that other guests took."""

MOST_BLURRED_MS = 50.0
"""So much may the stalls of a run leave its p99 unknown; more, and another run is taken."""

BELOW_MS = 1.0
"""By how much p99 may be below that of the server, which looks at its clock only after it has answered."""


class ServersView:
    """The requests of a run as their server saw them, in the order in which they were due; arrays of shape (n,).

    `kept_ns` and `arrived_ns` are how long it kept each request, and when it came, in any order; `due_ns` is when
    each should have left, from any origin. Requests arrive in the order in which they are due, but for a few
    neighbours; the one that arrived the soonest after it was due says where the origin is.
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
        """How long the machine stood still while the request was under way, or its answer."""

        self.quiet = np.ones(len(due_ns), np.bool_)
        """Whether it stood still neither then nor shortly before, and no other guest of the host took any time."""

        ends_ns = begins_ns + self.latency_ns + round(OFF_MS * 1e6)
        for begin, end in seen.stalls_ns:
            self.stalled_ns[(begins_ns < end) & (ends_ns > begin)] += end - begin
        for begin, end in (*seen.stalls_ns, *seen.stolen_ns):
            self.quiet[(begins_ns < end + after_ms * 1e6) & (ends_ns > begin)] = False

    @property
    def p99_blurred_ms(self) -> float:
        """By how much the stalls may have lengthened p99."""
        most = 0.99 + MOST_OFF
        return (_quantile(self.latency_ns + self.stalled_ns, most) - _quantile(self.latency_ns, most)) / 1e6

    def assert_is_p99(self, p99_ms: float, *, rounded_ms: float = 0.0) -> None:
        """Raise AssertionError unless `p99_ms` is the p99 of the latencies, to within what is said above.

        A few requests may be off without a stall, and each request by the stalls that it met.
        """
        least_ns = _quantile(self.latency_ns - self.stalled_ns, 0.99 - MOST_OFF)
        most_ns = _quantile(self.latency_ns + self.stalled_ns, 0.99 + MOST_OFF)
        least_ms, most_ms = least_ns / 1e6 - BELOW_MS - rounded_ms, most_ns / 1e6 + OFF_MS + rounded_ms
        assert least_ms <= p99_ms <= most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One run: its server's view, the p99 that was reported, and which requests are off in which respect."""

    view: ServersView
    p99_ms: float
    rounded_ms: float = 0.0
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
    for _ in range(MOST_RUNS):
        taken = take()
        view = taken.view
        quiet, requests = quiet + int(view.quiet.sum()), requests + len(view.quiet)
        for how, which in taken.off.items():
            off[how] += int((which & view.quiet).sum())
        for how, count in off.items():
            told = f"{count} of {quiet} requests that met no stall {how}"
            assert quiet < LEAST_QUIET or count <= MOST_OFF * quiet, told
        if view.p99_blurred_ms <= MOST_BLURRED_MS:
            view.assert_is_p99(taken.p99_ms, rounded_ms=taken.rounded_ms)
            if quiet >= LEAST_QUIET or not taken.off:
                return
        told = f"{quiet} of {requests} requests met no stall, p99 is unknown by {view.p99_blurred_ms:.0f} ms"
    raise AssertionError(f"In {MOST_RUNS} runs the machine stood still too much: {told}")


def lindley_ns(arrived_ns: NDArray[np.int64], service_ns: Sequence[float]) -> NDArray[np.int64]:
    """How long a queue with one server keeps each request that arrives then and takes so long; shape (n,)."""
    free_at, kept = 0.0, []
    for arrived, service in zip(arrived_ns.tolist(), service_ns, strict=True):
        free_at = max(arrived, free_at) + service
        kept.append(free_at - arrived)
    return np.array(kept).astype(np.int64)


def _quantile(times_ns: NDArray[np.int64], quantile: float) -> int:
    """By nearest rank, as the product does it."""
    return int(np.sort(times_ns)[math.ceil(quantile * len(times_ns)) - 1])
