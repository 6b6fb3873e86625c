"""Messages between master and workers: those that are sent fit, and nothing else does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_records import shard_result
from pydantic import BaseModel, ValidationError

from loadgen.distributed.messages import PIECE_BYTES, Order, Report, job_to_send, pieces_of, refusal, rows_of
from loadgen.errors import PlanError
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.plan_run import LoadJob
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

PLAN = LoadPlan(rate_per_s=10, duration_s=2, seed=1, arrivals=Arrivals(kind="steps", levels=(0.5, 1.5)))
TARGET = Target(
    url="https://127.0.0.1:8000",
    model_name="m",
    headers=(("Authorization", "s3cret"),),
    client_cert=Path("/own/cert.pem"),
    client_key=Path("/own/key.pem"),
    server_name="a.example",
)
RESULT = shard_result(rows=2)
LOG = RequestLog(
    scheduled_ns=np.array([0, 10]),
    sent_ns=np.array([1, 11]),
    done_ns=np.array([5, 30]),
    outcome=np.array([0, 1], np.uint8),
)


def order(payload: Payload | None = None) -> Order:
    payload = payload or Payload(shapes={"ids": (128,)}, picked=(3, 1))
    job, files = job_to_send(LoadJob(TARGET, PLAN, payload, limit_ms=50.0))
    return Order(number=1, do="prepare", parts=2, job=job, files=files)


REPORT = Report(number=1, rows=rows_of(LOG), result=RESULT, statistics={"a": [1]}, failure=("PlanError", "no"))


@pytest.mark.parametrize("message", [order(), Order(number=1, do="start", origin_ns=-5), REPORT, Report()])
def test_what_master_and_workers_send_arrives_as_it_was(message: BaseModel) -> None:
    assert type(message).model_validate_json(message.model_dump_json()) == message


def test_an_order_has_the_data_and_no_header_and_no_path(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(b"\xff\x00")
    text = order(Payload(data_file=file)).model_dump_json()
    assert "s3cret" not in text
    assert str(tmp_path) not in text
    arrived = Order.model_validate_json(text)
    assert "/own" not in text
    assert arrived.job is not None
    assert arrived.job.target.client_cert
    assert arrived.job.target.client_key is None
    assert arrived.job.target.headers == (("Authorization", ""),)
    assert arrived.job.target.server_name == "a.example"
    assert arrived.files == {"samples.json": b"\xff\x00"}
    assert arrived.job.payload.data_file == Path("samples.json")


def test_a_plan_that_nobody_can_send_is_refused() -> None:
    text = order().model_dump_json()
    with pytest.raises(ValidationError, match="cannot be sent"):
        Order.model_validate_json(text.replace('"rate_per_s":10', '"rate_per_s":-1'))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(data=ANYTHING)
def test_whatever_comes_is_refused_in_two_lines(data: Any) -> None:
    for kind in (Order, Report):
        with pytest.raises(ValidationError) as raised:
            kind.model_validate_json(data)
        failure = refusal("the master", raised.value).failure
        assert "same version" in failure[1].splitlines()[-1]


def test_a_query_which_may_hold_a_key_does_not_travel() -> None:
    with pytest.raises(PlanError, match="query"):
        job_to_send(LoadJob(replace(TARGET, query="key=s3cret"), PLAN, Payload(), limit_ms=50.0))


def test_a_folder_of_inputs_does_not_travel(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="folder"):
        order(Payload(data_file=tmp_path))


@pytest.mark.parametrize("more", [-1, 0, 1, 2 * PIECE_BYTES])
def test_only_the_last_piece_of_an_order_is_short(more: int) -> None:
    around = len(Order(do="prepare", files={"": b""}).model_dump_json())
    sent = Order(do="prepare", files={"a" * (PIECE_BYTES - around + more): b""})
    *whole, last = pieces_of(sent)
    assert {len(piece) for piece in whole} <= {PIECE_BYTES}
    assert len(last) < PIECE_BYTES
    assert Order.model_validate_json(b"".join([*whole, last])) == sent
