"""Configurations and trials come back from their records as they were."""

import dataclasses
from typing import Any

import pytest
from recommendations import config, engine, trial

from search.labels import rate_text
from search.records.trial import LoadRunRecord, TrialRecord
from search.trials.bench import Spent
from search.trials.trial import UnknownEngine, config_from_record, config_to_record, trial_from_record, trial_of

OTHER_VALUES = {
    "max_batch_size": 16,
    "instance_count": 3,
    "dynamic_batching": False,
    "max_queue_delay_us": 250,
    "preferred_batch_sizes": (4, 8),
    "intra_op_threads": 2,
    "cuda_graph_batch_sizes": (1, 16),
    "backend_options": (("input_path", "direct"), ("gpu_wait", "spin")),
}


def test_every_field_of_a_configuration_comes_back() -> None:
    given = config(**OTHER_VALUES)
    assert {field.name for field in dataclasses.fields(given)} == {"engine", "members", *OTHER_VALUES}
    assert config_from_record(config_to_record(given), [engine()]) == given


def test_a_trial_comes_back_from_its_line() -> None:
    given = trial(config=config(**OTHER_VALUES))
    line = given.model_dump_json()
    read = TrialRecord.model_validate_json(line)
    assert read == given.record
    assert trial_from_record(read, [given.served.engine]) == given


def test_an_engine_that_this_run_lacks_is_an_error() -> None:
    with pytest.raises(UnknownEngine, match="is not one of"):
        config_from_record(config_to_record(config()), [])


def load_run(rate_per_s: float, **changes: Any) -> LoadRunRecord:
    known: dict[str, Any] = {
        "rate_per_s": rate_per_s, "latency_ms": 20.0, "met": True, "trusted": True, "answer": "met",
        "requests": 700, "violations": 0,
    }  # fmt: skip
    return LoadRunRecord(**{**known, **changes})


ALL_LATE = load_run(480.0, met=False, answer="violated", violations=700)


@pytest.mark.parametrize(
    ("runs", "estimate_per_s", "capacity_per_s", "text"),
    [
        ((load_run(174.2),), 25.0, 174.2, "met 174.2/s"),
        ((load_run(174.2),), 200.0, 200.0, "met 174.2/s"),
        ((load_run(174.2, trusted=False),), 25.0, 25.0, "predicted 25/s"),
        ((load_run(174.2, answer="inconclusive"),), 25.0, 25.0, "predicted 25/s"),
        ((ALL_LATE,), 467.3, 467.3, "below 480/s"),
        ((ALL_LATE, load_run(300.0)), 467.3, 467.3, "met 300/s"),
    ],
)
def test_a_capacity_is_not_below_a_rate_that_was_met_nor_is_an_estimate_called_met(
    runs: tuple[LoadRunRecord, ...], estimate_per_s: float, capacity_per_s: float, text: str
) -> None:
    made = trial_of(
        0, config(), "complete", "", spent=Spent(), load_runs=runs, rate_at_limit_per_s=estimate_per_s,
        rate_high_per_s=1.1 * estimate_per_s,
    )  # fmt: skip
    assert (made.rate_at_limit_per_s, rate_text(made)) == (capacity_per_s, text)
    assert made.rate_high_per_s >= capacity_per_s
