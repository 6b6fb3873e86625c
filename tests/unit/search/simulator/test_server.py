"""The batching rule, case by case: who goes when, as read in Triton's scheduler and seen on a running server."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batchers import mean_batch_size
from numpy.typing import NDArray

from search.simulator.server import SimulatedServer, count_late, padded, simulate


def service(max_batch: int, instances: int = 1, *, fixed_s: float = 0.010, each_s: float = 0.0) -> NDArray[Any]:
    """Affine in the batch size, the same for any number of busy instances."""
    column = fixed_s + each_s * np.arange(max_batch + 1)
    return np.repeat(column[:, None], instances + 1, axis=1)


def done_ms(server: SimulatedServer, *arrivals_ms: float) -> list[float]:
    arrivals_s = np.array(arrivals_ms) / 1e3
    return [round(1e3 * float(t), 6) for t in arrivals_s + simulate(server, arrivals_s)]


def test_without_delay_an_idle_instance_takes_what_is_there() -> None:
    server = SimulatedServer(service_s=service(4))
    assert done_ms(server, 0, 1, 2, 3, 4, 5) == [10, 20, 20, 20, 20, 30]


def test_a_lone_request_waits_for_the_whole_delay() -> None:
    server = SimulatedServer(service_s=service(4), max_queue_delay_s=0.002)
    assert done_ms(server, 0, 100) == [12, 112]


def test_a_full_batch_does_not_wait() -> None:
    server = SimulatedServer(service_s=service(2), max_queue_delay_s=0.005)
    assert done_ms(server, 0, 1, 2) == [11, 11, 21]


def test_with_a_delay_a_formed_batch_does_not_grow_while_instances_are_busy() -> None:
    """The request at 13 ms comes too late for the batch formed at 12, though that starts only at 15."""
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.005)
    # 0 alone, executed 5..15. 7 and 9 are formed at 12 and executed 15..25; 13 is formed when they start.
    assert done_ms(server, 0, 7, 9, 13) == [15, 25, 25, 35]


def test_where_shapes_vary_it_does_grow() -> None:
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.005, variable_shapes=True)
    assert done_ms(server, 0, 7, 9, 13) == [15, 25, 25, 25]


def test_a_formed_batch_takes_what_fills_it() -> None:
    """Formed at 12 with two; once the queue holds a whole batch more, it is filled from there."""
    server = SimulatedServer(service_s=service(3), max_queue_delay_s=0.005)
    assert done_ms(server, 0, 7, 9, 13, 13.5, 14) == [15, 25, 25, 25, 35, 35]


def test_a_preferred_size_goes_at_once() -> None:
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.005, preferred_batch_sizes=(2, 8))
    assert done_ms(server, 0, 1, 100) == [11, 11, 115]


def test_batches_that_are_formed_ahead_are_merged_when_they_fit() -> None:
    """Preferred pairs, formed while the instance is busy, leave together once both are old enough."""
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.001, preferred_batch_sizes=(2,))
    assert done_ms(server, 0, 0.5, 2, 2.5, 4, 4.5) == [10.5, 10.5, 20.5, 20.5, 20.5, 20.5]


def shapes_of(text: str, max_batch: int = 4, *, instances: int = 1, **changes: Any) -> SimulatedServer:
    """Requests of the shapes a (10 ms) and b (20 ms a batch), in turn as written."""
    service_s = np.stack([service(max_batch, instances), service(max_batch, instances, fixed_s=0.020)])
    turns = np.array([["ab".index(letter) for letter in text]] * 2)
    return SimulatedServer(service_s=service_s, turns=turns, **{"variable_shapes": True, **changes})


def test_a_batch_ends_where_the_shape_changes() -> None:
    """0 alone, then the two a that wait, the b alone, and the last a, which may not overtake it."""
    assert done_ms(shapes_of("aaaba"), 0, 1, 2, 3, 4) == [10, 20, 20, 40, 50]


def test_shapes_take_their_turns_over_and_over() -> None:
    assert done_ms(shapes_of("ab"), 0, 100, 200, 300) == [10, 120, 210, 320]


def test_shapes_that_take_equally_long_make_no_batch_either() -> None:
    server = SimulatedServer(service_s=service(4), turns=np.array([[7, 8, 8], [0, 0, 0]]), variable_shapes=True)
    assert done_ms(server, 0, 1, 2, 3, 4, 5) == [10, 20, 20, 30, 40, 40]


def test_two_instances_work_on_two_shapes() -> None:
    assert done_ms(shapes_of("abab", instances=2), 0, 1, 2, 3) == [10, 21, 20, 40]


def test_a_request_of_another_shape_sends_a_waiting_batch_off_before_its_delay_is_over() -> None:
    """0 and 1 would wait until 5, and the b that closes their batch at 2 waits for its own 5 ms, until 11."""
    assert done_ms(shapes_of("aab", max_queue_delay_s=0.005), 0, 1, 2) == [12, 12, 32]


def test_batches_of_two_shapes_are_not_merged() -> None:
    """Pairs are formed ahead, as in the test of merging; these differ in shape."""
    rule: dict[str, Any] = {"max_queue_delay_s": 0.001, "preferred_batch_sizes": (2,)}
    assert done_ms(shapes_of("aaaaaa", 8, **rule), 0, 0.5, 2, 2.5, 4, 4.5) == [10.5, 10.5, 20.5, 20.5, 20.5, 20.5]
    assert done_ms(shapes_of("aaaabb", 8, **rule), 0, 0.5, 2, 2.5, 4, 4.5) == [10.5, 10.5, 20.5, 20.5, 40.5, 40.5]


def test_the_saturation_and_the_mean_times_count_the_shapes_as_often_as_they_come() -> None:
    server = shapes_of("aab", instances=2)
    assert server.saturation_per_s == pytest.approx(2 * 3 / (0.0025 + 0.0025 + 0.005))
    assert server.mean_service_s[1, 2] == pytest.approx(0.040 / 3)
    only_the_first = shapes_of("aa")
    assert only_the_first.saturation_per_s == pytest.approx(4 / 0.010), "the other table is nobody's"
    assert only_the_first.mean_service_s[4, 1] == pytest.approx(0.010)


def test_noise_is_used_in_turn() -> None:
    server = SimulatedServer(service_s=service(1), noise=(1.0, 1.5))
    assert done_ms(server, 0, 100, 200) == [10, 115, 210]


def test_the_overhead_comes_on_top_and_keeps_no_instance_busy() -> None:
    server = SimulatedServer(service_s=service(1), overhead_s=0.003)
    assert done_ms(server, 0, 1) == [13, 23]


def test_batches_are_as_slow_as_the_next_size_that_is_executed() -> None:
    seconds = padded(service(8, each_s=0.001), (4, 2, 16))
    assert list(np.round(seconds[1:, 1], 6)) == [0.012, 0.012, 0.014, 0.014, 0.015, 0.016, 0.017, 0.018]
    assert (padded(service(8, each_s=0.001), (9,)) == service(8, each_s=0.001)).all()


def test_the_saturation_is_that_of_the_best_batch_size() -> None:
    assert SimulatedServer(service_s=service(4, 2)).saturation_per_s == pytest.approx(800)


def test_the_saturation_is_that_of_all_instances_at_work_and_of_the_mean_execution() -> None:
    contended = service(4, 2)
    contended[:, 2] *= 2.0
    assert SimulatedServer(service_s=contended, noise=(0.5, 3.5)).saturation_per_s == pytest.approx(200)


def test_counting_late_requests_stops_early_and_leaves_the_first_out() -> None:
    server = SimulatedServer(service_s=service(1))
    at_once = np.zeros(10)
    assert count_late(server, at_once, limit_s=0.035) == 7
    assert count_late(server, at_once, limit_s=0.005) == 10, "the first one, too, unless it is left out"
    assert count_late(server, at_once, limit_s=0.035, counted_from=5) == 5
    assert count_late(server, at_once, limit_s=0.035, at_most=2) == 3
    assert count_late(replace(server, overhead_s=0.006), at_once, limit_s=0.035) == 8


@pytest.mark.parametrize("delay_s", [0.0, 1e-6])
def test_a_request_is_late_by_what_it_took_itself(delay_s: float) -> None:
    server = SimulatedServer(service_s=service(1), max_queue_delay_s=delay_s)
    assert count_late(server, np.array([0.0, 1.0, 2.0, 3.0, 3.0]), limit_s=0.015) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"service_s": np.ones(4)},
        {"service_s": np.zeros((3, 2))},
        {"service_s": service(2), "noise": (1.0, 0.0)},
        {"service_s": np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])},
        {"service_s": np.ones((1, 2))},
        {"service_s": np.ones((2, 1))},
        {"service_s": service(2), "preferred_batch_sizes": (4,)},
        {"service_s": service(2), "preferred_batch_sizes": (3,)},
        {"service_s": service(2), "preferred_batch_sizes": (0, 1)},
        {"service_s": service(2), "turns": np.array([[0, 0], [0, -1]])},
        {"service_s": np.stack([service(2)] * 2), "turns": np.array([0, 1])},
        {"service_s": service(2), "turns": np.array([[0, 1], [0, 1]])},
        {"service_s": service(2)[None], "turns": np.zeros((2, 0), np.int64)},
    ],
)
def test_impossible_servers_are_refused(wrong: dict[str, Any]) -> None:
    """What stands for no batch and for no busy instance is not looked at."""
    SimulatedServer(service_s=np.array([[0.0, 0.0], [0.0, 1.0]]), preferred_batch_sizes=(1,))
    with pytest.raises(ValueError, match=r"service|noise|preferred|turns"):
        SimulatedServer(**wrong)


PAIRS = {"max_queue_delay_s": 0.001, "preferred_batch_sizes": (2,)}


@pytest.mark.parametrize(("max_batch", "last_ms"), [(3, 30.5), (4, 20.5)])
def test_batches_are_merged_up_to_the_largest_size(max_batch: int, last_ms: float) -> None:
    """Behind the first pair three wait, for the next request fills a pair that is formed, and then one."""
    server = SimulatedServer(service_s=service(max_batch), **PAIRS)  # type: ignore[arg-type]
    assert done_ms(server, 0, 0.5, 2, 2.5, 4, 4.5) == [10.5, 10.5, 20.5, 20.5, 20.5, last_ms]


def test_a_batch_that_has_not_waited_for_the_delay_is_not_merged() -> None:
    """When the instance is free, at 10.5, the last request, in a batch of its own, has waited for 0.6 ms of 1."""
    server = SimulatedServer(service_s=service(8), **PAIRS)  # type: ignore[arg-type]
    assert done_ms(server, 0, 0.5, 2, 2.5, 9.8, 9.9) == [10.5, 10.5, 20.5, 20.5, 20.5, 30.5]


@pytest.mark.parametrize("rule", [{}, {"max_queue_delay_s": 1e-6}])
def test_busy_neighbours_slow_an_execution_down_whatever_the_rule(rule: dict[Any, Any]) -> None:
    contended = service(1, 3)
    contended[:, 2], contended[:, 3] = 0.020, 0.040
    server = SimulatedServer(service_s=contended, **rule)
    # 0 alone until 4 (40 %), two until 8 (60 and 20 %), three from then on, at a quarter of the speed: the first
    # ends at 24; by then 60 and 40 %; at half the speed the second ends at 32, with 80 %, and the third at 34.
    assert done_ms(server, 0, 4, 8) == pytest.approx([24, 32, 34], abs=0.02)


def test_several_preferred_sizes_go_at_the_largest_that_is_there() -> None:
    """Six wait when the instance is free: four of them, and then the two that are left."""
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.030, preferred_batch_sizes=(4, 8))
    assert done_ms(server, 0, 1, 2, 3, 4, 5) == [13, 13, 13, 13, 44, 44]


def test_what_has_waited_for_the_delay_goes_though_more_would_be_preferred() -> None:
    server = SimulatedServer(service_s=service(8), max_queue_delay_s=0.005, preferred_batch_sizes=(4,))
    assert done_ms(server, 0, 1, 2) == [15, 15, 15]
    assert done_ms(server, 0, 1, 2, 3, 4) == [13, 13, 13, 13, 23]


def test_the_mean_batch_is_that_of_all_executions() -> None:
    server = SimulatedServer(service_s=service(4))
    assert mean_batch_size(server, np.array([0, 0.001, 0.002, 0.003])) == 2.0
    assert len(simulate(server, np.empty(0))) == 0


def test_a_slowed_server_executes_so_many_times_as_long_and_is_the_same_otherwise() -> None:
    server = SimulatedServer(service_s=service(4), overhead_s=0.003, noise=(1.0, 1.5), max_queue_delay_s=0.002)
    assert done_ms(server, 0, 100) == [15, 120]
    assert done_ms(server.slowed(3.0), 0, 100) == [35, 150], "neither the overhead nor the delay is longer"
    assert done_ms(server, 0, 100) == [15, 120]


@pytest.mark.long
def test_what_one_process_compiles_serves_the_next(tmp_path: Path) -> None:
    code = "from search.simulator.server import *\nprint(is_compiled()); compile_simulator(); print(is_compiled())"
    seen = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.split()
        for _ in range(2)
    ]
    assert seen == [["False", "True"], ["True", "True"]]
