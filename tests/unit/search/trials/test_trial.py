"""Configurations and trials come back from their records as they were."""

import dataclasses
import json

import pytest
from recommendations import config, engine, trial

from search.records.trial import TrialRecord
from search.trials.trial import UnknownEngine, config_from_record, config_to_record, trial_from_record

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


def test_a_line_without_backend_options_has_none() -> None:
    line = json.loads(trial().model_dump_json())
    del line["config"]["backend_options"]
    assert TrialRecord.model_validate(line).config.backend_options == ()


def test_an_engine_that_this_run_lacks_is_an_error() -> None:
    with pytest.raises(UnknownEngine, match="is not one of"):
        config_from_record(config_to_record(config()), [])
