"""Whether the client adds a tail of its own: what it reports, against the server's own clock.

All times of servers are on the monotonic clock of this machine, which the stalls of a `Disturbance` are on too.
"""

import math
from collections.abc import Sequence

import numpy as np
from disturbance import Disturbance
from numpy.typing import NDArray

from loadgen.measurement import RequestLog

OFF_MS = 5.0
MOST_OFF = 0.002
"""The share of requests that may differ by more than `OFF_MS` without a stall that explains it."""

MOST_EXCUSED = 0.02
"""More than that, and a run says too little: it fails, and its stalls are the reason to repeat it."""

MOST_BLURRED_MS = 50.0
"""So much may the stalls of a run leave its p99 unknown; more, and it fails, for the same reason."""

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
    ) -> None:
        assert len(due_ns) == len(kept_ns) == len(arrived_ns) > 0
        came = np.argsort(arrived_ns, kind="stable")
        due_ns = np.sort(due_ns)
        begins_ns = due_ns + np.min(arrived_ns[came] - due_ns)
        self.kept_ns = kept_ns[came]
        self.latency_ns = arrived_ns[came] + kept_ns[came] - begins_ns
        self.stalled_ns = np.zeros(len(due_ns), np.int64)
        """How long the machine stood still while the request was under way, or its answer."""

        ends_ns = begins_ns + self.latency_ns + round(OFF_MS * 1e6)
        for begin, end in seen.stalls_ns:
            self.stalled_ns[(begins_ns < end) & (ends_ns > begin)] += end - begin

    def assert_few(self, off: NDArray[np.bool_], what: str) -> None:
        """Raise AssertionError if more than a few requests are off and no stall explains it."""
        excused = off & (self.stalled_ns > 0)
        told = f"{off.sum()} of {len(off)} {what}"
        assert excused.mean() <= MOST_EXCUSED, f"{told}: {excused.sum()} in stalls"
        assert (off & ~excused).mean() <= MOST_OFF, f"{told}, {excused.sum()} of them in stalls"

    def assert_is_p99(self, p99_ms: float, *, rounded_ms: float = 0.0) -> None:
        """Raise AssertionError unless `p99_ms` is the p99 of the latencies, to within what is said above.

        A few requests may be off without a stall, and each request by the stalls that it met.
        """
        fewer, more = 0.99 - MOST_OFF, 0.99 + MOST_OFF
        least_ns = _quantile(self.latency_ns - self.stalled_ns, fewer)
        most_ns = _quantile(self.latency_ns + self.stalled_ns, more)
        blurred_ms = (most_ns - _quantile(self.latency_ns, more)) / 1e6
        assert blurred_ms <= MOST_BLURRED_MS, f"stalls of {blurred_ms:.0f} ms do not let p99 be known"
        least_ms, most_ms = least_ns / 1e6 - BELOW_MS - rounded_ms, most_ns / 1e6 + OFF_MS + rounded_ms
        assert least_ms <= p99_ms <= most_ms


def assert_no_tail_of_its_own(
    log: RequestLog, kept_ns: NDArray[np.int64], arrived_ns: NDArray[np.int64], seen: Disturbance
) -> ServersView:
    """Raise AssertionError if requests left late, or have other latencies than by the server's clock."""
    view = ServersView(log.scheduled_ns, kept_ns, arrived_ns, seen)
    view.assert_few(view.latency_ns - view.kept_ns > OFF_MS * 1e6, f"requests left {OFF_MS} ms late")
    latency_ns = log.latency_ns[np.argsort(log.scheduled_ns, kind="stable")]
    apart_ns = np.abs(latency_ns - view.latency_ns)
    view.assert_few(apart_ns > OFF_MS * 1e6, f"latencies are {OFF_MS} ms off what the server's clock says")
    return view


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
