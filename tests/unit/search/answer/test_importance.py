"""Which knobs decided the rate: the ones that were made to, in trials where that is known."""

import itertools

import pytest
from recommendations import config, trial

from search.answer.analysis import MIN_TRIALS, knob_importances
from search.records.trial import TrialRecord


def grid() -> list[TrialRecord]:
    """The rate follows the batch size, hardly the instances, and never the delay."""
    knobs = itertools.product((1, 4, 16, 64), (1, 2), (0, 1000))
    return [
        trial(
            number,
            config=config(max_batch_size=batch, instance_count=instances, max_queue_delay_us=delay),
            rate_at_limit_per_s=100.0 * batch + 3.0 * instances,
            state="complete" if number % 2 else "pruned",
        )
        for number, (batch, instances, delay) in enumerate(knobs)
    ]


def test_the_knob_that_decides_comes_first_and_the_shares_add_up() -> None:
    found = knob_importances(grid())
    assert next(iter(found)) == "max_batch_size"
    assert found["max_batch_size"] > 0.8
    assert set(found) == {"max_batch_size", "instance_count", "max_queue_delay_us"}  # threads never varied
    assert sum(found.values()) == pytest.approx(1.0)


def test_too_little_to_tell() -> None:
    assert knob_importances([]) == {}
    assert knob_importances(grid()[: MIN_TRIALS - 1]) == {}
    assert knob_importances([trial(number) for number in range(20)]) == {}
    failed = [record.model_copy(update={"rate_at_limit_per_s": None}) for record in grid()]
    assert knob_importances(failed) == {}
