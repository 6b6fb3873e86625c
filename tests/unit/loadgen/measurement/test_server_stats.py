import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.json_values import Unusable
from loadgen.measurement.server_stats import (
    UNREADABLE,
    cold_text,
    counters_of,
    stand_still,
    statistics_remarks,
    timings_between,
)


def model(
    version: str = "1",
    *,
    success: tuple[int, int] = (0, 0),
    fail: int = 0,
    queue: int = 0,
    infer: int = 0,
    executions: int = 0,
    inferences: int = 0,
    batches: list[Any] | tuple[()] = (),
) -> dict[Any, Any]:
    """Counters as Triton writes them: times are sums in ns."""

    def stage(count: int, ns: int) -> dict[Any, Any]:
        return {"count": count, "ns": ns}

    return {
        "name": "m",
        "version": version,
        "inference_count": inferences,
        "execution_count": executions,
        "inference_stats": {
            "success": stage(*success),
            "fail": stage(fail, 0),
            "queue": stage(success[0], queue),
            "compute_input": stage(success[0], 0),
            "compute_infer": stage(success[0], infer),
            "compute_output": stage(success[0], 0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": stage(count, 0),
                "compute_infer": stage(count, ns),
                "compute_output": stage(count, 0),
            }
            for size, count, ns in batches
        ],
    }


def stats(*models: Any) -> dict[str, Any]:
    return counters_of({"model_stats": list(models)})


BEFORE = model(success=(10, 100_000_000), executions=10, inferences=10, batches=[(1, 10, 50_000_000)])
AFTER = model(
    success=(40, 400_000_000),
    fail=2,
    queue=60_000_000,
    infer=90_000_000,
    executions=20,
    inferences=40,
    batches=[(1, 10, 50_000_000), (2, 5, 30_000_000), (4, 5, 60_000_000)],
)


def test_the_difference_in_ms_of_one_request() -> None:
    seen = timings_between(stats(BEFORE), stats(AFTER))
    assert (seen.requests, seen.failures) == (30, 2)
    assert seen.total_ms == pytest.approx(10.0)
    assert seen.queue_ms == pytest.approx(2.0)
    assert seen.infer_ms == pytest.approx(3.0)
    assert seen.mean_batch_size == pytest.approx(3.0)
    assert seen.rest_ms == pytest.approx(5.0)


def test_batch_sizes_of_the_window_alone_in_ms_of_one_execution() -> None:
    seen = timings_between(stats(BEFORE), stats(AFTER))
    assert [(row.batch_size, row.executions, row.infer_ms) for row in seen.batches] == [(2, 5, 6.0), (4, 5, 12.0)]


@pytest.mark.parametrize(
    ("known", "one_ms", "executions", "cold"),
    [
        ([], 500.0, 1, (3,)),
        ([], 12.0, 100, ()),  # it may just take longer than a batch of 4
        ([], 40.0, 1, ()),  # as may happen to any execution
        ([(3, 1, 500_000_000)], 500.0, 1, ()),
    ],
    ids=["first", "first and quick", "first and a little late", "not the first"],
)
def test_a_batch_size_is_cold_if_it_is_new_and_far_slower_than_larger_ones(
    known: list[Any], one_ms: float, executions: int, cold: tuple[int, ...]
) -> None:
    before = stats(model(success=(1, 0), batches=known))
    grown = (3, executions + len(known), int(1e6 * one_ms * executions) + sum(ns for *_, ns in known))
    after = stats(model(success=(20, 0), batches=[grown, (4, 10, 100_000_000)]))
    seen = timings_between(before, after)
    assert seen.cold_sizes == cold
    assert bool(cold_text(seen)) == bool(cold)


def test_all_versions_are_taken_together() -> None:
    other = model("2", success=(30, 900_000_000), executions=30, inferences=30)
    seen = timings_between(stats(BEFORE), stats(AFTER, other))
    assert seen.requests == 60
    assert seen.total_ms == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, stats(AFTER)),
        (stats(BEFORE), None),
        (stats(AFTER), stats(AFTER)),
        (stats(AFTER), stats(BEFORE)),
        (stats(), stats()),
        ({UNREADABLE: "why"}, stats(AFTER)),
        (stats(BEFORE), {UNREADABLE: "why"}),
        (stats(BEFORE), stats(AFTER | {"inference_count": 0})),
    ],
    ids=[
        "none before",
        "none after",
        "nothing served",
        "loaded anew",
        "another kind of server",
        "unreadable before",
        "unreadable after",
        "one counter fell",
    ],
)
def test_what_is_not_known_is_none_and_never_zero(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> None:
    assert timings_between(before, after) is None


def test_a_response_cache_serves_without_executing() -> None:
    hit = model(success=(5, 5_000_000), executions=0, inferences=0)
    seen = timings_between(stats(model()), stats(hit))
    assert seen.mean_batch_size is None
    assert seen.batches == ()
    hit["inference_stats"]["cache_hit"] = {"count": 4, "ns": 1000}
    seen = timings_between(stats(model()), stats(hit))
    assert seen.cache_hits == 4


def test_counters_that_stand_still_are_noticed_only_if_they_were_read_twice() -> None:
    assert stand_still(stats(AFTER), stats(AFTER))
    assert not stand_still(stats(BEFORE), stats(AFTER))
    for unknown in (None, {UNREADABLE: "why"}, stats()):
        assert not stand_still(unknown, unknown)


def test_counters_over_grpc_come_as_text() -> None:
    texts = {
        "model_stats": [
            {
                "version": "1",
                "inference_count": "4",
                "execution_count": "2",
                "inference_stats": {"success": {"count": "2", "ns": "4000000"}},
                "batch_stats": [{"batch_size": "2", "compute_infer": {"count": "2", "ns": "3000000"}}],
            }
        ]
    }
    seen = timings_between(counters_of({"model_stats": []}), counters_of(texts))
    assert (seen.requests, seen.total_ms, seen.mean_batch_size) == (2, 2.0, 2.0)
    assert seen.batches[0].infer_ms == 1.5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model_stats", "count", "ns", "batch_size", "success", "version"]), inner
        )
    ),
    max_leaves=8,
)


def put(document: Any, path: Any, value: Any) -> Any:
    """The document with something else at this place of it."""
    document = copy.deepcopy(document)
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return document


def places(document: dict[Any, Any] | list[Any], before: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The paths to everything in a document."""
    steps = document.items() if isinstance(document, dict) else enumerate(document)
    for step, inner in steps:
        yield (*before, step)
        if isinstance(inner, dict | list):
            yield from places(inner, (*before, step))


@given(st.sampled_from(list(places({"model_stats": [AFTER]}))), JSON)
@settings(deadline=None)
def test_whatever_one_place_holds_it_is_unusable_or_the_figures_are_finite(path: Any, value: Any) -> None:
    try:
        after = counters_of(put({"model_stats": [AFTER]}, path, value))
    except Unusable:
        return
    seen = timings_between(stats(BEFORE), after)
    figures = () if seen is None else (seen.queue_ms, seen.infer_ms, seen.total_ms, seen.rest_ms)
    assert all(0 <= figure < float("inf") for figure in figures)


def test_unreadable_statistics_are_told_once() -> None:
    remark = ("the server's own figures are left out: why",)
    assert statistics_remarks({UNREADABLE: "why"}, {UNREADABLE: "why not"}) == remark
    assert statistics_remarks(None, {UNREADABLE: "why"}) == remark
    assert statistics_remarks(None, stats(AFTER)) == ()
