"""The helper itself: it finds, shrinks and remembers what fails, and ends."""

import itertools

import pytest
from fuzzing import fuzz
from hypothesis import strategies as st


def test_a_failing_example_is_shrunk_and_comes_first_the_next_time() -> None:
    seen = []

    def below_a_thousand(number: int) -> None:
        seen.append(number)
        assert number < 1000

    with pytest.raises(AssertionError) as caught:
        fuzz(below_a_thousand, st.integers(0, 10**6), seconds=60, examples=500)
    assert any("number=1000" in note for note in caught.value.__notes__)
    seen.clear()
    with pytest.raises(AssertionError):
        fuzz(below_a_thousand, st.integers(0, 10**6), seconds=60, examples=500)
    assert seen[0] == 1000


def test_rounds_go_on_until_the_seconds_are_over_and_draw_other_examples() -> None:
    seen = set()

    def remember(number: int) -> None:
        seen.add(number)

    seconds = itertools.count()
    calls = fuzz(remember, st.integers(0, 10**9), seconds=3, examples=10, clock=lambda: float(next(seconds)))
    assert calls == 30
    assert len(seen) > 10


def test_one_round_is_run_without_any_seconds() -> None:
    assert fuzz(lambda data: None, st.binary(), seconds=0, examples=7) == 7
