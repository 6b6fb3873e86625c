"""Unit: what no configuration can help ends the search; what one configuration broke fails its trial."""

from pathlib import Path
from typing import Any

import pytest
from engines import plain_engine

from loadgen.errors import EnvironmentFailed
from loadgen.spec.plan import Payload
from model_repo.errors import ModelLoadFailed, RepositoryWriteFailed, ServerStartFailed
from model_repo.spec import ServingConfig
from search.trials.bench import BenchFailed
from search.trials.triton_bench import TritonBench


class Failing:
    """A server whose next starts and loads fail."""

    def __init__(self, *, starts: list[Any] | tuple[()] = (), loads: list[Any] | tuple[()] = ()) -> None:
        self.starts, self.loads, self.lives = list(starts), list(loads), False

    def alive(self) -> bool:
        return self.lives

    def restart(self) -> None:
        if self.starts:
            raise self.starts.pop(0)
        self.lives = True

    def load(self, config: Any) -> None:
        if self.loads:
            raise self.loads.pop(0)


def bench_on(server: Any) -> TritonBench:
    return TritonBench(server, None, payload=Payload(), limit_ms=50.0, timeout_s=1.0)


CONFIG = ServingConfig(engine=plain_engine(files=(("model.onnx", Path("model.onnx")),)), max_batch_size=4)
NO_START = ServerStartFailed("Triton ended before it was ready.\nSee its log.", log_tail="\x1b[2Jboom")


def test_a_server_that_cannot_be_started_again_ends_the_search() -> None:
    bench = bench_on(Failing(starts=[NO_START, NO_START]))
    with pytest.raises(BenchFailed, match="boom") as failed:
        bench.load(CONFIG)
    assert "\x1b" not in failed.value.reason
    with pytest.raises(EnvironmentFailed) as caught:
        bench.load(CONFIG)
    assert (caught.value.exit_code, caught.value.what) == (3, "Triton ended before it was ready.")
    assert caught.value.fix == "See its log."


def test_one_bad_start_is_forgotten_after_a_good_one() -> None:
    server = Failing(starts=[NO_START])
    bench = bench_on(server)
    with pytest.raises(BenchFailed):
        bench.load(CONFIG)
    bench.load(CONFIG)
    server.lives, server.starts = False, [NO_START]
    with pytest.raises(BenchFailed):
        bench.load(CONFIG)


def test_a_repository_that_cannot_be_written_ends_the_search_at_once() -> None:
    full = RepositoryWriteFailed("/runs/m/server cannot be written: No space left on device.\nFree some space.")
    with pytest.raises(EnvironmentFailed) as caught:
        bench_on(Failing(loads=[full])).load(CONFIG)
    assert caught.value.exit_code == 3


def test_a_model_that_does_not_load_fails_its_trial_however_often() -> None:
    bench = bench_on(Failing(loads=[ModelLoadFailed("m", "no")] * 5))
    for _ in range(5):
        with pytest.raises(BenchFailed):
            bench.load(CONFIG)
