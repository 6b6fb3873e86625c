"""How a run's time is divided."""

from search.trials.context import Budget


def after(seconds: float, *, total_s: float) -> Budget:
    return Budget(total_s=total_s, clock=lambda: seconds, started=0.0)


def test_a_preparation_that_took_everything_leaves_nothing_to_divide() -> None:
    budget = after(20.0, total_s=10.0)
    budget.begin_search()
    assert budget.search_left_s() == budget.trial_s() == budget.first_trial_s() == 0.0


def test_the_search_takes_from_the_end_of_the_preparation_until_certification_begins() -> None:
    now_s = 0.0
    given = Budget(total_s=100.0, clock=lambda: now_s, started=0.0)
    now_s = 10.0
    given.begin_search()
    now_s = 35.0
    given.begin_certification()
    assert (given.prepared_s, given.searched_s) == (10.0, 25.0)
