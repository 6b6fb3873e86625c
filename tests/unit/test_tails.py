"""The judge of tails: it sees those between stalls, and neither convicts nor acquits by what met a stall."""

import numpy as np
import pytest
from disturbance import Disturbance
from numpy.typing import NDArray
from tails import MAX_RUNS, ServersView, Taken, assert_no_tail_of_its_own, of_a_log

from loadgen.measurement.request_log import RequestLog

N = 1200
GAP_NS = 2_500_000
KEPT_NS = 5_000_000
DUE_NS = np.arange(N, dtype=np.int64) * GAP_NS


def taken(
    *,
    extra_ns: int = 0,
    stalls_ns: tuple[tuple[int, int], ...] = (),
    which: slice | NDArray[np.bool_] = slice(None),
) -> Taken:
    """A run against a server that keeps each request for 5 ms; those of `which` come back so much later."""
    arrived_ns = DUE_NS + 10**9
    late_ns = np.zeros(N, np.int64)
    late_ns[which] = extra_ns
    done_ns = DUE_NS + KEPT_NS + late_ns
    log = RequestLog(scheduled_ns=DUE_NS, sent_ns=DUE_NS, done_ns=done_ns, outcome=np.zeros(N, np.int8))
    seen = Disturbance(watched_s=3, stolen_s=0, others_s=0, stalls_ns=stalls_ns)
    view = ServersView(DUE_NS, np.full(N, KEPT_NS), arrived_ns, seen)
    return of_a_log(log, view, float(np.quantile(log.latency_ns, 0.99, method="inverted_cdf")) / 1e6)


def stall(at: int, ms: float) -> tuple[int, int]:
    """One that begins when the request of that number is due."""
    begins = 10**9 + at * GAP_NS
    return begins, begins + round(ms * 1e6)


def test_an_honest_client_is_believed_at_once() -> None:
    calls = []
    assert_no_tail_of_its_own(lambda: calls.append(1) or taken())
    assert len(calls) == 1


@pytest.mark.parametrize("every", [40, 300])
def test_a_tail_between_stalls_is_seen(every: int) -> None:
    """200 ms on 2.5 or 0.33 of a hundred responses."""
    with pytest.raises(AssertionError, match="than by the server's clock"):
        assert_no_tail_of_its_own(lambda: taken(extra_ns=200_000_000, which=slice(None, None, every)))


def test_what_met_a_stall_is_set_aside() -> None:
    stalls = tuple(stall(at, 20.0) for at in range(100, N, 100))
    late = np.zeros(N, np.bool_)
    for at in range(100, N, 100):
        late[at : at + 10] = True
    assert_no_tail_of_its_own(lambda: taken(extra_ns=18_000_000, which=late, stalls_ns=stalls))


def test_a_machine_that_always_stands_still_says_nothing() -> None:
    stalls = tuple(stall(at, 4.0) for at in range(0, N, 2))
    calls = []
    with pytest.raises(AssertionError, match="stood still too much"):
        assert_no_tail_of_its_own(lambda: calls.append(1) or taken(stalls_ns=stalls))
    assert len(calls) == MAX_RUNS
