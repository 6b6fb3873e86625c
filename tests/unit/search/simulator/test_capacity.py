"""The rate at which late requests become too many, on counts that are known."""

import math

import pytest

from search.simulator.capacity import COUNTED_UP_TO, Edge, find_edge


class Counted:
    """`allowed` late requests at the edge, and so many percent more for one percent more load."""

    def __init__(self, edge: float, *, elasticity: float, allowed: int = 285) -> None:
        self.edge, self.elasticity, self.allowed = edge, elasticity, allowed
        self.rates: list[float] = []

    def __call__(self, rate_per_s: float, at_most: int) -> int:
        self.rates.append(rate_per_s)
        exponent = self.elasticity * math.log(rate_per_s / self.edge)
        return min(round(self.allowed * math.exp(min(exponent, 50.0))), at_most + 1)


def found(
    late: Counted, *, guess: float, most: float = 1000.0, elasticity: float = 30.0, width: float = 0.025
) -> Edge:
    return find_edge(
        late, allowed=late.allowed, most_per_s=most, guess_per_s=guess, elasticity=elasticity, width=width
    )


@pytest.mark.parametrize("elasticity", [5.0, 30.0, 190.0])
@pytest.mark.parametrize("edge", [3.0, 400.0, 990.0])
@pytest.mark.parametrize("guess", [2.0, 400.0, 5000.0])
def test_the_edge_is_found_whatever_was_guessed(edge: float, elasticity: float, guess: float) -> None:
    late = Counted(edge, elasticity=elasticity)
    assert found(late, guess=guess).rate_per_s == pytest.approx(edge, rel=0.004)


def test_a_good_guess_needs_two_or_three_rates_and_tells_the_elasticity() -> None:
    late = Counted(700.0, elasticity=40.0)
    edge = found(late, guess=710.0, elasticity=35.0)
    assert len(late.rates) <= 3
    assert edge.elasticity == pytest.approx(40.0, rel=0.1)
    assert edge.rate_per_s == pytest.approx(700.0, rel=0.001)


def test_where_no_rate_is_low_enough_the_answer_is_zero() -> None:
    assert found(Counted(1e-9, elasticity=50.0), guess=800.0).rate_per_s == 0.0


def test_what_is_kept_up_to_the_highest_rate_ends_there() -> None:
    assert found(Counted(1e9, elasticity=50.0), guess=800.0).rate_per_s == pytest.approx(1000.0, rel=0.02)


def test_steps_are_told_to_within_the_width() -> None:
    """A server that breaks all at once: no line through the counts means anything."""
    allowed = 285

    def late(rate_per_s: float, at_most: int) -> int:
        return 0 if rate_per_s <= 640.0 else COUNTED_UP_TO * allowed + 1

    edge = find_edge(late, allowed=allowed, most_per_s=1000.0, guess_per_s=900.0, elasticity=30.0, width=0.025)
    assert edge.rate_per_s == pytest.approx(640.0, rel=0.004)
