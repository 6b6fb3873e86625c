"""A wait in vain is a failure."""

import pytest
from waiting import wait_until


def test_waits_until_it_is_so() -> None:
    answers = iter([0, [], 1])
    wait_until(lambda: next(answers))
    assert list(answers) == []


def test_a_wait_in_vain_fails() -> None:
    with pytest.raises(AssertionError, match="in vain"):
        wait_until(lambda: False, most_s=0.0)
