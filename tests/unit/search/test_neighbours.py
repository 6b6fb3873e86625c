"""What is said of neighbours, and how the time that they took is made up for."""

import pytest

from loadgen.neighbours import Neighbours
from search.budget import MADE_UP_AT_LEAST, MADE_UP_AT_MOST, Budget
from search.neighbours import NeighboursRecord, mark_of, record_of


def seen(disturbed_s: float, of_s: float, *, others: float = 0.0, stolen: float = 0.0) -> NeighboursRecord:
    return NeighboursRecord(
        watched_s=of_s,
        disturbed_s=disturbed_s,
        others_cpu_s=others * disturbed_s,
        stolen_cpu_s=stolen * disturbed_s,
    )


@pytest.mark.parametrize(
    ("record", "mark"),
    [
        (seen(34, 120, others=0.9), "other processes took 0.9 cores for 34 of 120 s of load"),
        (seen(34, 120, others=1.02), "other processes took 1 core for 34 of 120 s of load"),
        (seen(34, 120, stolen=0.5), "other guests of the host took 0.5 cores for 34 of 120 s of load"),
        (
            seen(34, 120, others=0.9, stolen=0.5),
            "other processes took 0.9 cores and other guests of the host took 0.5 cores for 34 of 120 s of load",
        ),
        (seen(2, 120, others=0.9), None),  # too small a share
        (seen(0.5, 1, others=0.9), None),  # too short
        (seen(0, 0), None),
        (None, None),
    ],
)
def test_what_is_worth_a_word_is_said_in_a_sentence(record: NeighboursRecord | None, mark: str | None) -> None:
    assert mark_of(record) == mark


def test_what_nobody_looked_at_is_unknown_and_not_nothing() -> None:
    assert record_of(Neighbours()) is None
    assert record_of(Neighbours(watched_s=3.0)) == seen(0, 3)


def test_records_add_up() -> None:
    assert seen(2, 10, others=1.0) + seen(3, 5, others=1.0) == seen(5, 15, others=1.0)


def test_a_budget_is_extended_once_by_what_was_lost() -> None:
    budget = Budget(total_s=100.0)
    assert budget.make_up(30.0) == 30.0
    assert budget.total_s == 130.0
    assert budget.make_up(90.0) == 0.0
    assert budget.total_s == 130.0


def test_a_budget_is_never_extended_by_more_than_half() -> None:
    budget = Budget(total_s=100.0)
    assert budget.make_up(1000.0) == 100.0 * MADE_UP_AT_MOST
    assert budget.total_s == 150.0


def test_a_moment_does_not_use_up_the_only_extension() -> None:
    budget = Budget(total_s=100.0)
    assert budget.make_up(99.0 * MADE_UP_AT_LEAST) == 0.0
    assert budget.make_up(20.0) == 20.0
