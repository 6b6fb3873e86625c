"""Locust's statistics tell of every request once, and of its latency from the time it was due."""

import numpy as np
import pytest

from loadgen.sending.request_table import own_table

with pytest.MonkeyPatch.context() as environment:
    # Locust replaces parts of the standard library unless told not to: the other tests of this process need them.
    environment.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.stats import RequestStats

    from loadgen.sending.locust_user import METHOD, LocustFeed

MS = 1_000_000
SECOND = 1000 * MS


def test_latencies_count_from_the_scheduled_time_and_each_request_once() -> None:
    """The client stood still for 50 ms before the last two of four requests, and one of them failed."""
    due_ns = np.arange(4) * 10 * MS
    lag_ns = np.array([0, 0, 50, 50]) * MS
    table, stats = own_table(4), RequestStats()
    table.scheduled_ns[:] = due_ns
    feed = LocustFeed(stats, table, name="m")
    table.sent_ns[:] = due_ns + np.maximum(lag_ns, 1)
    table.done_ns[:] = due_ns + lag_ns + np.array([5, 7, 5, 6]) * MS
    table.outcome[3] = 1
    feed.update(SECOND - 1)
    assert stats.total.num_requests == 0
    feed.update(SECOND)
    feed.finish()
    for entry in (stats.entries["m", METHOD], stats.total):
        assert entry.num_requests == 4
        assert entry.num_failures == 1
        assert (entry.min_response_time, entry.max_response_time) == (5, 56)
        assert entry.total_response_time == 5 + 7 + 55 + 56
        assert entry.response_times == {5: 1, 7: 1, 55: 1, 56: 1}
    (error,) = stats.errors.values()
    assert error.occurrences == 1
