import dataclasses

import pytest
from bundles import recorded

from deploy.smoke import quantile_name, smoke_for
from model_repo.spec import TensorSpec
from search.records import LimitRecord


def smoke(**engine_changes):
    found, config = recorded()
    return smoke_for(
        found, dataclasses.replace(config, engine=dataclasses.replace(config.engine, **engine_changes))
    )


def test_the_promise_is_what_is_loaded():
    assert smoke().arguments("http://here:8000") == [
        "http://here:8000",
        "--model=small_cnn",
        "--rate=931.357",
        "--p99=50ms",
        "--duration=40s",
        "--fail-fast",
        "--yes",
    ]


def test_every_limit_is_loaded_for():
    found, config = recorded()
    slo = found.slo.model_copy(update={"also": (LimitRecord(quantile=0.5, limit_ms=10),)})
    arguments = smoke_for(found.model_copy(update={"slo": slo}), config).arguments("http://here")
    assert arguments[3:5] == ["--p99=50ms", "--p50=10ms"]


def test_free_dimensions_get_the_sizes_that_were_measured():
    tokens = TensorSpec(name="ids", datatype="INT64", shape=(-1,), sample_shape=(128,))
    assert "--shape=ids:128" in smoke(inputs=(tokens,)).arguments("http://here")


@pytest.mark.parametrize(("quantile", "name"), [(0.99, "p99"), (0.999, "p999"), (0.5, "p50"), (0.95, "p95")])
def test_quantile_names_are_options_of_loadtest(quantile, name):
    assert quantile_name(quantile) == name
