"""What a run says of its connections: how many the server ended, and what was sent again."""

from typing import Any

import pytest
from load_records import no_rows, shard_result

from loadgen.measurement.result import measurement_of
from loadgen.spec.plan import LoadPlan

PLAN = LoadPlan(rate_per_s=1.0, duration_s=1.0, seed=0)


def remarks(rows: int, **counts: Any) -> str:
    result = shard_result(rows=rows, **counts)
    return "; ".join(measurement_of(no_rows(), PLAN, [result, result]).remarks)


@pytest.mark.parametrize(("rows", "closed"), [(10, 1), (1000, 99), (47, 216)])
def test_few_closed_connections_or_only_idle_ones_are_not_worth_a_word(rows: int, closed: int) -> None:
    assert remarks(rows, connections_closed=closed) == ""


def test_many_closed_connections_bring_advice_and_calls_sent_again_are_counted() -> None:
    said = remarks(500, connections_closed=50, connections_opened=40, resent=3)
    assert "closed 100 connections in 1,000 requests, and 80 were opened" in said
    assert "6 requests were sent again" in said
