"""Tests of the standalone measurement: on a fake GPU, in virtual time; and that processes take turns."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_cuda import DoublingEngine, FakeCuda

from model_repo.runtime.tritune_gpu.engine import Shapes
from optimizer.engines.timing_child import engine_time_ms, in_turn


@pytest.mark.parametrize("graph", [False, True])
def test_a_slow_first_execution_of_a_size_is_no_part_of_its_time(graph: bool) -> None:
    cuda = FakeCuda()
    engine = DoublingEngine(cuda)

    def seconds() -> float:
        """The first execution of each size takes 1 s, all others 2 ms."""
        return 0.002 * len(engine.executed) + 0.998 * len(set(engine.executed))

    for size in (8, 1):
        shapes: Shapes = {"x": (size, 3)}
        seen_ms = engine_time_ms(engine, cuda, cuda.stream(), shapes, graph=graph, clock=seconds)
        assert seen_ms == pytest.approx(2.0)


def test_measurements_with_one_folder_do_not_overlap(tmp_path: Path) -> None:
    folder, inside, most = tmp_path / "new", list[int](), list[int]()

    def measure(number: int) -> None:
        for _ in range(50):
            with in_turn(folder):
                inside.append(number)
                time.sleep(0.001)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(measure, range(4)))
    assert (len(most), max(most)) == (200, 1)
