"""Messages between master and workers: those that are sent fit, and nothing else does."""

import dataclasses
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.distributed import messages as kinds
from loadgen.distributed.message_schema import FROM_MASTER, FROM_WORKER, is_dropped, problem_of
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

PLAN = LoadPlan(rate_per_s=10, duration_s=2, seed=1, arrivals=Arrivals(kind="steps", levels=(0.5, 1.5)))
TARGET = Target(url="http://127.0.0.1:8000", model_name="m", headers=(("Authorization", "s3cret"),))
RESULT = ShardResult(
    rows=2,
    overloaded=False,
    wall_s=2.0,
    cpu_s=0.1,
    bytes_sent=10,
    bytes_received=10,
    connections_opened=0,
    error_example=None,
)
LOG = RequestLog(
    scheduled_ns=np.array([0, 10]),
    sent_ns=np.array([1, 11]),
    done_ns=np.array([5, 30]),
    outcome=np.array([0, 1], np.uint8),
)


def prepare() -> dict[str, Any]:
    return {
        "run": 1,
        "part": 0,
        "parts": 2,
        "plan": kinds.plan_to_message(PLAN),
        "target": kinds.target_to_message(TARGET),
        "payload": kinds.payload_to_message(Payload(shapes={"ids": (128,)})),
        "limit_ms": 50.0,
    }


def travelled(message: object) -> Any:
    return msgpack.loads(msgpack.dumps(message), raw=False, strict_map_key=False)


def rows(**columns: Any) -> dict[str, Any]:
    return {"run": 1, "rows": kinds.rows_to_message(dataclasses.replace(LOG, **columns))}


def test_what_master_and_workers_send_fits() -> None:
    statistics = {"run": 1, "target": kinds.target_to_message(TARGET)}
    for kind, data in (
        (kinds.PREPARE, prepare()),
        (kinds.CLOCK, {"run": 1}),
        (kinds.START, {"run": 1, "origin_ns": 5}),
        (kinds.STOP, {"run": 1}),
        (kinds.STATISTICS, statistics),
        ("ack", {"index": 0}),
    ):
        assert problem_of(kind, travelled(data), FROM_MASTER) is None, kind
    for kind, data in (
        (kinds.CLOCK, {"run": 1, "here_ns": 7}),
        (kinds.PREPARED, {"run": 1}),
        (kinds.FAILED, {"run": None, "error": "PlanError", "text": "no"}),
        (kinds.ROWS, rows()),
        (kinds.DONE, {"run": 1, "result": dataclasses.asdict(RESULT)}),
        (kinds.STATISTICS, {"run": 1, "statistics": None}),
    ):
        assert problem_of(kind, travelled(data), FROM_WORKER) is None, kind


@pytest.mark.parametrize(
    "columns",
    [
        {"scheduled_ns": np.array([10, 0])},  # out of order
        {"scheduled_ns": np.array([-1, 10])},
        {"sent_ns": np.array([1, 9])},  # before it was due
        {"done_ns": np.array([5, 10])},  # before it was sent
        {"done_ns": np.array([5])},  # one request less
        {"outcome": np.array([0], np.uint8)},
        {"outcome": np.array([0, 250], np.uint8)},  # no such outcome
    ],
)
def test_rows_that_no_run_has_are_refused(columns: dict[str, Any]) -> None:
    assert problem_of(kinds.ROWS, travelled(rows(**columns)), FROM_WORKER) is not None


@pytest.mark.parametrize("name", ["rows", "wall_s", "cpu_s", "bytes_sent", "bytes_received"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "1", None, True])
def test_a_result_with_a_number_that_is_none_is_refused(name: str, value: Any) -> None:
    result = {**dataclasses.asdict(RESULT), name: value}
    assert problem_of(kinds.DONE, {"run": 1, "result": result}, FROM_WORKER) is not None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("spawn", {}),  # Locust's, and not used here
        ("update_user_class", {}),
        ("heartbeat", {"state": "ready"}),
        (kinds.STOP, {"run": 1, "more": 2}),
        (kinds.START, {"run": 1, "origin_ns": "soon"}),
        (["a", "list"], None),
        (None, None),
    ],
)
def test_other_kinds_and_keys_are_refused(kind: Any, data: Any) -> None:
    assert problem_of(kind, data, FROM_MASTER) is not None
    assert not is_dropped(kind)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(kind=st.sampled_from([*FROM_MASTER, *FROM_WORKER]) | ANYTHING, data=ANYTHING)
def test_whatever_comes_gets_an_answer_and_not_an_exception(kind: Any, data: Any) -> None:
    for schemas in (FROM_MASTER, FROM_WORKER):
        problem = problem_of(kind, data, schemas)
        assert problem is None or problem
