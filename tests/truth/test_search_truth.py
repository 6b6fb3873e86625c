"""The guided search on simulated servers whose true capacity is known, against the best of the whole space.

`benchmarks/simulated_search.py` does the same on hundreds; the few here are chosen so that a regression shows.
"""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from drawn_servers import KINDS, drawn_server
from search_runs import SearchRun, search_run

SOON = (("drawn", 0), ("drawn", 1), ("transformer", 5))
"""Tested in the gate; the others at night. On the last a run of the default is given up before the best is
certified: that once lowered all that followed to a third of the capacity."""

SERVERS = (
    *(("cnn", number) for number in range(1)),
    *(("transformer", number) for number in (0, 1, 5)),
    *(("tight", number) for number in range(1)),
    *(("cpu", number) for number in range(3)),
    *(("drawn", number) for number in range(5)),
)

MAX_ABOVE_CAPACITY = 1
"""Of all promises. Where one in a hundred is too high, two or more are in 0.6 % of draws (binomial), so that a
change which only draws other numbers passes. Where three in ten are, as in the prototype before its bounds counted
bursts, the test fails in 91 % of draws, and where half are, in 99.7 %."""

FAR_ABOVE_CAPACITY = 1.03
"""No promise: a certificate whose bounds are no bounds lets the search confirm at once near its estimate, which is
off by 2 to 3 % either way."""

MIN_PROMISED = 0.8
"""Of what the configuration can keep."""

MIN_MEAN_OF_BEST, MIN_OF_BEST = 0.97, 0.9
"""A mean of twelve with a standard deviation of 2 % each scatters by 0.6 %. Predictions that are off by a fifth,
as when padded batches were not accounted for, cost 2 to 4 % in the mean of a kind and 9 % in the worst case."""

MAX_SEARCH_S = 60.0
"""Mean seconds of load until the best candidate is known. Without the simulator they are 300."""

UNSEEN = range(1000, 1020)
"""Servers that no other test and no benchmark draws, so that nothing was made to fit them."""

MAX_OF_UNSEEN_ABOVE_CAPACITY = 4
"""A promise holds at 95 % confidence. Where one in twenty is too high, five or more of twenty are in 0.26 % of
draws (binomial)."""


@cache
def run_on(kind: str, number: int) -> SearchRun:
    with tempfile.TemporaryDirectory() as folder:
        return search_run(drawn_server(kind, number), Path(folder))


@pytest.mark.parametrize(
    ("kind", "number"),
    [pytest.param(*one, marks=[] if one in SOON else pytest.mark.long) for one in SERVERS],
)
def test_every_server_gets_a_promise_near_what_its_configuration_can_keep(kind: str, number: int) -> None:
    found = run_on(kind, number)
    assert found.promised is not None
    assert MIN_PROMISED * found.chosen <= found.promised <= FAR_ABOVE_CAPACITY * found.chosen
    assert found.servers == 2
    assert found.chosen >= MIN_OF_BEST * found.best
    assert found.total_s < 600


@pytest.mark.long
def test_hardly_any_promise_is_above_the_true_capacity() -> None:
    runs = [run_on(*server) for server in SERVERS]
    assert sum(found.promised > found.chosen for found in runs) <= MAX_ABOVE_CAPACITY


@pytest.mark.long
def test_the_choice_is_nearly_the_best_of_the_space_in_the_mean() -> None:
    shares = [run_on(*server).chosen / run_on(*server).best for server in SERVERS]
    assert np.mean(shares) >= MIN_MEAN_OF_BEST


@pytest.mark.long
def test_the_search_takes_a_minute_of_load() -> None:
    assert np.mean([run_on(*server).search_s for server in SERVERS]) <= MAX_SEARCH_S


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_unseen_servers_of_each_kind_get_promises_that_hold(kind: str) -> None:
    runs = [run_on(kind, number) for number in UNSEEN]
    assert [found.number for found in runs if found.promised is None] == []
    assert [found.number for found in runs if found.promised > FAR_ABOVE_CAPACITY * found.chosen] == []
    above = [found.number for found in runs if found.promised > found.chosen]
    assert len(above) <= MAX_OF_UNSEEN_ABOVE_CAPACITY, above
