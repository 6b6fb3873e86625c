"""The timeline: Triton's trace, the client's log and the runtimes' records on one clock."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.measurement.request_log import RequestLog
from optimizer.profiling.timeline import (
    STAGES,
    Timeline,
    device_spans,
    joined,
    lanes,
    read_trace,
    sums_of,
    trace_events,
    trace_text,
)

NOTHING = np.zeros((0, 5), np.int64)


def stamps(number: int, *times: int, **more: Any) -> list[dict[str, Any]]:
    """A request as Triton's trace has it: an event for each of its timestamps, in no order."""
    names = (
        "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "INFER_RESPONSE_COMPLETE", "COMPUTE_END",
    )  # fmt: skip
    events = [
        {"id": number, "timestamps": [{"name": name, "ns": ns}]} for name, ns in zip(names, times, strict=True)
    ]
    return [*events[::-1], {"id": number, "model_name": "m", "model_version": 1, **more}]


def log_of(*rows: tuple[int, int, int, int]) -> RequestLog:
    """A client's log of (due, sent, done, outcome)."""
    due, sent, done, outcome = (np.array(column) for column in zip(*rows, strict=True))
    return RequestLog(scheduled_ns=due, sent_ns=sent, done_ns=done, outcome=outcome.astype(np.uint8))


def test_requests_of_one_batch_are_one_execution(tmp_path: Path) -> None:
    trace = tmp_path / "triton.json"
    trace.write_text(
        json.dumps(
            [
                *stamps(2, 12, 13, 14, 20, 22, 30, 33, 35),
                *stamps(1, 10, 11, 12, 20, 21, 30, 32, 36),
                *stamps(3, 18, 19, 19, 40, 41, 50, 51, 52),
                *stamps(4, 18, 19, 19, 40, 41, 50, 51, 52)[-3:],  # not finished when the trace ended
            ]
        )
    )
    requests, executions = read_trace(trace, "m", "http")
    assert requests.tolist() == [
        [10, 12, 20, 21, 30, 32],
        [12, 14, 20, 22, 30, 33],
        [18, 19, 40, 41, 50, 51],
    ]
    assert executions.tolist() == [[20, 22, 30, 36, 2], [40, 41, 50, 52, 1]]


def test_steps_of_an_ensemble_execute_and_the_whole_is_the_request(tmp_path: Path) -> None:
    trace = tmp_path / "triton.json"
    whole = [one for one in stamps(1, 10, 11, 12, 0, 0, 0, 60, 0) if "COMPUTE_" not in str(one)]
    step = stamps(2, 0, 12, 14, 20, 21, 30, 32, 36, parent_id=1)
    trace.write_text(json.dumps([*whole, *step[:-2], {**step[-1], "model_name": "step"}]))
    requests, executions = read_trace(trace, "m", "http")
    assert requests.tolist() == [[10, 12, 12, 12, 60, 60]]
    assert executions.tolist() == [[20, 21, 30, 36, 1]]


def test_client_and_server_are_joined_by_the_order_of_arrival_and_failures_are_left_out() -> None:
    log = log_of((0, 2, 50, 0), (1, 1, 40, 0), (3, 3, 60, 7))
    warm_up, first, second = [1, 1, 1, 1, 1, 1], [102, 103, 104, 105, 106, 107], [103, 104, 104, 105, 106, 108]
    times = joined(log, 100, np.array([warm_up, first, second]))
    assert times.tolist() == [
        [100, 102, 103, 104, 104, 105, 106, 108, 150],
        [101, 101, 102, 103, 104, 105, 106, 107, 140],
    ]


def a_timeline(**changes: Any) -> Timeline:
    """100 ns: one of two instances executes from 20 to 60, and its kernel takes 30 to 50 of that."""
    given: dict[str, Any] = {
        "start_ns": 0,
        "end_ns": 100,
        "instances": 2,
        "requests": np.array([[0, 1, 5, 10, 20, 25, 55, 60, 65]]),
        "executions": np.array([[20, 25, 55, 60, 1]]),
        "work": np.array([[30, 50, 0, 7, 1]]),
        "copies": np.array([[26, 34, 1, 7, 0]]),
        "calls": NOTHING,
        "names": ["gemm", "HTOD 8 B"],
        "on_gpu": True,
    }
    return Timeline(**{**given, **changes})


def test_time_that_nothing_is_done_has_a_reason() -> None:
    sums = sums_of(a_timeline())
    assert sums.instances == pytest.approx(
        {
            "copy in": 0.025,
            "compute": 0.15,
            "copy out": 0.025,
            "idle: a batch is formed": 0.1,  # both, while the request waits from 10 to 20
            "idle: no request": 0.7,
        }
    )
    assert sums.device == pytest.approx(
        {
            "kernels": 0.2,
            "copies alone": 0.04,
            "idle: launch and Python": 0.06,  # 25 to 26, 50 to 55
            "idle: copies on the CPU": 0.1,
            "idle: a batch is formed": 0.1,
            "idle: no request": 0.5,
        }
    )
    assert (sums.graph_share, sums.overlapped_share) == (1.0, 0.5)
    assert sums.top == [("gemm", 1.0, 1, pytest.approx(0.02))]
    assert sums.stages["compute"] == pytest.approx((3e-5, 3e-5))


def test_without_a_record_of_the_gpu_nothing_is_said_of_it() -> None:
    sums = sums_of(a_timeline(work=NOTHING, copies=NOTHING))
    assert (sums.device, sums.graph_share, sums.overlapped_share, sums.top) == ({}, None, None, [])
    assert sum(sums.instances.values()) == pytest.approx(1.0)


def test_no_row_of_the_drawing_has_two_spans_at_once() -> None:
    random = np.random.default_rng(0)
    start = np.sort(random.integers(0, 1000, 300))
    end = start + random.integers(0, 50, 300)
    rows = np.array(lanes(start, end))
    for row in range(rows.max() + 1):
        assert (start[rows == row][1:] >= end[rows == row][:-1]).all()
    busy = max(int(((start <= at) & (end > at)).sum()) for at in range(1000))
    assert rows.max() + 1 <= busy + 1  # a span without length still has a row


def test_a_trace_file_is_chromes_and_leaves_out_what_is_too_much() -> None:
    text = trace_text(trace_events(a_timeline()))
    trace = json.loads(text)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and {"pid", "tid", "ts", "name"} <= event.keys() for event in spans)
    assert {event["name"] for event in spans if event["pid"] == 1} == {"request 0", *STAGES}
    assert [(event["ts"], event["dur"]) for event in spans if event["name"] == "gemm"] == [(0.03, 0.02)]
    fewer = [event for event in trace_events(a_timeline(), most=4) if event["ph"] == "X"]
    assert {event["pid"] for event in fewer} == {1, 2, 4}  # what began in the first quarter or so


def test_records_of_the_runtimes_become_spans(tmp_path: Path) -> None:
    record = {
        "work": [[10, 20, "gemm", 7, 1], [20, 30, "relu", 7, 1]],
        "copies": [[5, 9, "HTOD 8 B", 7, 0]],
        "calls": [[1, 2, "cuGraphLaunch", 3, 1]],
    }
    (tmp_path / "gpu-1.json").write_text(json.dumps(record))
    profile = [
        {"cat": "Session", "name": "model_loading", "ts": 1, "dur": 1, "args": {}},
        {"cat": "Node", "name": "n_kernel_time", "ts": 4, "dur": 2, "args": {"op_name": "Conv"}},
        {"cat": "Node", "name": "n_fence_before", "ts": 3, "dur": 0, "args": {"op_name": "Conv"}},
    ]
    (tmp_path / "cpu-1-1000.json").write_text(json.dumps(profile))
    found = device_spans(tmp_path, 0, 10_000)
    assert [found["names"][name] for name in found["work"][:, 2]] == ["gemm", "relu", "Conv"]
    assert found["work"][:, [0, 1, 4]].tolist() == [[10, 20, 1], [20, 30, 1], [5000, 7000, 0]]
    assert [found["names"][name] for name in found["copies"][:, 2]] == ["HTOD 8 B"]
    assert found["calls"][:, 0].tolist() == [1]
    later = device_spans(tmp_path, 25, 10_000)
    assert [len(later[kind]) for kind in ("work", "copies", "calls")] == [2, 0, 0]  # what overlaps the window
