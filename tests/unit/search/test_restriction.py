"""Tests of a search space that the user restricts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import plain_engine
from spaces import gpu_space

from loadgen.errors import BadInput
from search.restriction import Restriction, restricted
from search.space import SearchSpace, search_space


def only(space: SearchSpace, *excluded: tuple[str, str], **values: tuple[int, ...]) -> SearchSpace:
    return restricted(space, Restriction(values=values, excluded=excluded))


def test_given_values_are_tried_and_no_others(space: SearchSpace) -> None:
    wanted: dict[str, Any] = {
        "max_batch_size": (1, 6, 48),
        "instance_count": (1, 3),
        "intra_op_threads": (1,),
        "max_queue_delay_us": (0, 700),
    }
    found = only(space, **wanted)
    assert {name: values for name, values in found.axes().items() if name != "engine"} == wanted
    assert {knobs["instance_count"] for knobs in found.points()} == {1, 3}
    assert all(found.has(knobs) for knobs in found.points())


def test_excluded_values_are_not_tried(tmp_path: Path) -> None:
    space = gpu_space(tmp_path, lambda _, batch: float(batch), "fp32", "fp16")
    found = only(space, ("engine", "onnxruntime-fp32"), ("cuda_graphs", "1"), ("instance_count", "4"))
    assert [engine.precision for engine in found.engines] == ["fp16"]
    assert found.axes()["cuda_graphs"] == (0,)
    assert 4 not in found.axes()["instance_count"]
    assert found.baseline().engine.precision == "fp16"
    assert found.only_compared == ()
    assert only(space, ("cuda_graphs", "0")).only_compared == tuple(map(space.baseline, space.engines))


def test_a_start_whose_engine_is_excluded_is_refused(tmp_path: Path) -> None:
    space = gpu_space(tmp_path, lambda _, batch: float(batch), "fp32", "fp16")
    started = replace(space, start=space.baseline(space.engines[0]))
    with pytest.raises(BadInput, match="--start-from"):
        only(started, ("engine", "onnxruntime-fp32"))
    assert only(started, ("engine", "onnxruntime-fp16")).start == started.start


def test_what_excludes_nothing_is_told_apart(space: SearchSpace) -> None:
    wanted = Restriction(excluded=(("instance_count", "2"), ("instance_count", "7"), ("cuda_graphs", "1")))
    assert wanted.of_none(space) == ["instance_count=7", "cuda_graphs=1"]


@pytest.mark.parametrize(
    ("values", "excluded", "option"),
    [
        ({"max_batch_size": (1,), "max_queue_delay_us": (2000,)}, (), "--queue-delay 2ms"),
        ({"instance_count": (4,), "intra_op_threads": (2,)}, (), "--instances 4, --threads 2"),
        ({}, (("engine", "onnxruntime-fp32"),), "--exclude engine=onnxruntime-fp32"),
    ],
)
def test_an_empty_space_is_refused_by_its_options(
    space: SearchSpace, values: dict[str, tuple[int, ...]], excluded: tuple[tuple[str, str], ...], option: str
) -> None:
    with pytest.raises(BadInput, match=option):
        restricted(space, Restriction(values=values, excluded=excluded))


def test_knobs_that_a_model_does_not_have_are_refused(tmp_path: Path, space: SearchSpace) -> None:
    whole = search_space((plain_engine(files=space.engines[0].files, batched=False),), space.limits, limit_ms=50.0)
    for values in ({"max_batch_size": (8,)}, {"max_queue_delay_us": (2000,)}):
        with pytest.raises(BadInput, match="without batches"):
            only(whole, **values)
    assert only(whole, max_batch_size=(1,), max_queue_delay_us=(0,)).size() == whole.size()
    with pytest.raises(BadInput, match="--threads 4"):
        only(gpu_space(tmp_path, lambda _, batch: float(batch), "fp32"), intra_op_threads=(4,))
    with pytest.raises(BadInput, match="--client-batch 4"):
        only(replace(space, rows_per_request=4), max_batch_size=(1, 8))
