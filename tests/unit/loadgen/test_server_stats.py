import pytest

from loadgen.server_stats import timings_between


def model(version="1", *, success=(0, 0), fail=0, queue=0, infer=0, executions=0, inferences=0, batches=()):
    """Counters as Triton writes them: times are sums in ns."""

    def stage(count, ns):
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


def stats(*models):
    return {"model_stats": list(models)}


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


def test_the_difference_in_ms_of_one_request():
    seen = timings_between(stats(BEFORE), stats(AFTER))
    assert seen is not None
    assert (seen.requests, seen.failures) == (30, 2)
    assert seen.total_ms == pytest.approx(10.0)
    assert seen.queue_ms == pytest.approx(2.0)
    assert seen.infer_ms == pytest.approx(3.0)
    assert seen.mean_batch_size == pytest.approx(3.0)
    assert seen.rest_ms == pytest.approx(5.0)


def test_batch_sizes_of_the_window_alone_in_ms_of_one_execution():
    seen = timings_between(stats(BEFORE), stats(AFTER))
    assert seen is not None
    assert [(row.batch_size, row.executions, row.infer_ms) for row in seen.batches] == [(2, 5, 6.0), (4, 5, 12.0)]


def test_all_versions_are_taken_together():
    other = model("2", success=(30, 900_000_000), executions=30, inferences=30)
    seen = timings_between(stats(BEFORE), stats(AFTER, other))
    assert seen is not None
    assert seen.requests == 60
    assert seen.total_ms == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, stats(AFTER)),
        (stats(BEFORE), None),
        (stats(AFTER), stats(AFTER)),
        (stats(AFTER), stats(BEFORE)),
        ({}, {}),
    ],
    ids=["none before", "none after", "nothing served", "loaded anew", "another kind of server"],
)
def test_what_is_not_known_is_none_and_never_zero(before, after):
    assert timings_between(before, after) is None


def test_a_response_cache_serves_without_executing():
    hit = model(success=(5, 5_000_000), executions=0, inferences=0)
    seen = timings_between(stats(model()), stats(hit))
    assert seen is not None
    assert seen.mean_batch_size is None
    assert seen.batches == ()


def test_counters_over_grpc_come_as_text():
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
    seen = timings_between({"model_stats": []}, texts)
    assert seen is not None
    assert (seen.requests, seen.total_ms, seen.mean_batch_size) == (2, 2.0, 2.0)
    assert seen.batches[0].infer_ms == 1.5
