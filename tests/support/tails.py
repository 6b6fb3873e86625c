"""Whether the client adds a tail of its own: each request's service time against the server's own clock."""

import numpy as np
from disturbance import Disturbance
from numpy.typing import NDArray

from loadgen.measurement import RequestLog

OFF_MS = 5.0
MOST_OFF = 0.002
"""The share of requests that may differ by more than `OFF_MS` without a stall that explains it."""

MOST_EXCUSED = 0.02
"""More than that, and a run says too little: it fails, and its stalls are the reason to repeat it."""


def assert_no_tail_of_its_own(
    log: RequestLog, kept_ns: NDArray[np.int64], arrived_ns: NDArray[np.int64], seen: Disturbance
) -> None:
    """Raise AssertionError if requests took longer than the server kept them.

    `kept_ns` and `arrived_ns`, shape (n,), are how long the server kept each request, and when it came, on the
    monotonic clock that the stalls of `seen` are on too. Requests arrive in the order in which they leave, but for
    a few neighbours.
    """
    assert len(kept_ns) == len(arrived_ns) == len(log)
    sent, came = np.argsort(log.sent_ns, kind="stable"), np.argsort(arrived_ns, kind="stable")
    origin_ns = int(np.min(arrived_ns[came] - log.sent_ns[sent]))  # of the log's times, to within the network's
    off = (log.service_ns[sent] - kept_ns[came]) > OFF_MS * 1e6
    begins, ends = log.sent_ns[sent] + origin_ns, log.done_ns[sent] + origin_ns
    stalled = np.zeros(len(log), bool)
    for begin, end in seen.stalls_ns:
        stalled |= (begins < end) & (ends > begin)
    excused = off & stalled
    told = f"{off.sum()} of {len(log)} requests took {OFF_MS} ms longer than the server kept them"
    assert excused.mean() <= MOST_EXCUSED, f"{told}: {excused.sum()} met one of {len(seen.stalls_ns)} stalls"
    assert (off & ~stalled).mean() <= MOST_OFF, f"{told}, {excused.sum()} of them in stalls"
