"""Tests of the GPU runtime's batches, padding, graphs and buffers, on a fake GPU in ordinary memory."""

import mmap
from typing import Any

import numpy as np
import pytest
from fake_cuda import DoublingEngine, FakeCuda
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_repo.runtime.tritune_gpu.host_memory import DirectMemory, mapping_at
from model_repo.runtime.tritune_gpu.opening import row_shape
from model_repo.runtime.tritune_gpu.runner import Runner


def runner_on(
    cuda: FakeCuda | None = None,
    *,
    captures_itself: bool = False,
    able: tuple[int, ...] = (),
    **options: Any,
) -> tuple[Runner, DoublingEngine, FakeCuda]:
    cuda = cuda or FakeCuda()
    engine = DoublingEngine(cuda, captures_itself=captures_itself, batch_sizes=able)
    given_options: dict[str, Any] = {"max_batch_size": 8, "batch_sizes": (1, 2, 4, 8), **options}
    return Runner(engine, cuda, cuda.stream(), **given_options), engine, cuda


def requests_of(*rows: int, width: int = 3, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((count, width)).astype(np.float32)} for count in rows]


def check(outputs: dict[str, NDArray[Any]], requests: list[Any]) -> None:
    x = np.concatenate([request["x"] for request in requests])
    np.testing.assert_array_equal(outputs["y"], 2 * x)
    np.testing.assert_allclose(outputs["sums"], x.reshape(len(x), -1).sum(axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("input_path", ["auto", "pinned", "direct"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
@given(batches=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=5))
def test_every_request_gets_its_own_rows(batches: list[Any], cuda_graphs: bool, input_path: str) -> None:
    runner, _, _ = runner_on(cuda_graphs=cuda_graphs, input_path=input_path)
    for seed, rows in enumerate(batches):
        requests = requests_of(*rows, seed=seed)
        check(runner.run(requests), requests)


def test_a_batch_is_padded_to_the_next_size() -> None:
    runner, engine, _ = runner_on()
    runner.run(requests_of(1, 2))
    assert engine.executed == [(4, 3)]


def test_a_batch_is_padded_to_a_size_that_the_engine_has() -> None:
    runner, engine, _ = runner_on(able=(1, 4, 16), batch_sizes=(1, 3, 6), max_batch_size=6)
    requests = requests_of(3, 2)
    check(runner.run(requests), requests)
    check(runner.run(requests[1:]), requests[1:])
    assert engine.executed == [(16, 3), (4, 3)]


def test_a_batch_beyond_the_last_size_is_executed_as_it_is() -> None:
    runner, engine, _ = runner_on(batch_sizes=(1, 2))
    runner.run(requests_of(5))
    assert engine.executed == [(5, 3)]


def test_an_engine_with_graphs_of_its_own_is_not_recorded() -> None:
    runner, _, cuda = runner_on(cuda_graphs=True, captures_itself=True)
    requests = requests_of(2)
    check(runner.run(requests), requests)
    assert "launch" not in cuda.calls


def test_nothing_is_allocated_after_the_warm_up() -> None:
    runner, engine, cuda = runner_on(cuda_graphs=True)
    runner.warm_up({"x": (3,)})
    cuda.calls.clear()
    bound = len(engine.bound)
    for seed, rows in enumerate([(8,), (1,), (3, 3), (2, 1, 1)]):
        requests = requests_of(*rows, seed=seed)
        check(runner.run(requests), requests)
    assert not {"allocate", "allocate_pinned"} & set(cuda.calls)
    assert len(engine.bound) == bound


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_larger_rows_move_the_memory_and_nothing_uses_the_old(cuda_graphs: bool) -> None:
    runner, _, _ = runner_on(cuda_graphs=cuda_graphs)
    for width in (3, 50, 3, 400, 50):
        requests = requests_of(1, 2, width=width, seed=width)
        check(runner.run(requests), requests)


def test_shapes_that_were_not_used_for_long_are_forgotten() -> None:
    runner, engine, cuda = runner_on(cuda_graphs=True)
    runner.run(requests_of(8, width=100))
    for width in range(1, 80):
        requests = requests_of(1, width=width)
        check(runner.run(requests), requests)
    assert cuda.calls.count("free_graph") >= 80 - 64
    assert len(engine.bound) == 80


def test_without_a_batch_axis_a_request_is_the_whole_tensor() -> None:
    runner, engine, _ = runner_on(max_batch_size=0, cuda_graphs=True)
    (request,) = requests_of(5)
    check(runner.run([request]), [request])
    assert engine.executed[0] == (5, 3)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        ({"dims": [3, 8]}, (3, 8)),
        ({"dims": ["3", "8"]}, (3, 8)),
        ({"dims": [1], "reshape": {"shape": []}}, ()),
        ({"dims": [1], "reshape": {}}, ()),
        ({"dims": [-1, 8]}, None),
    ],
)
def test_a_rows_shape_is_read_from_the_configuration(tensor: dict[str, Any], shape: Any) -> None:
    assert row_shape(tensor) == shape


def shared_array(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return memory that lies in /dev/shm according to the fake maps below."""
    memory = mmap.mmap(-1, 1 << 16)
    count = int(np.prod(shape))
    return np.frombuffer(memory, dtype=np.float32, count=count).reshape(shape)


def maps_of(array: NDArray[np.float32], path: str = "/dev/shm/tritune-abc-region") -> str:
    start = array.__array_interface__["data"][0]
    return f"1000-2000 r--p 00000000 00:00 0\n{start:x}-{start + (1 << 16):x} rw-s 00000000 00:01 5   {path}\n"


def test_shared_memory_is_found_in_the_map() -> None:
    array = shared_array((4, 3))
    address = array.__array_interface__["data"][0]
    assert mapping_at(address + 16, maps_of(array)) == (address, address + (1 << 16), True)
    assert mapping_at(address, maps_of(array, path="/usr/lib/libc.so")) == (address, address + (1 << 16), False)
    assert mapping_at(0x1800, maps_of(array)) == (0x1000, 0x2000, False)
    assert mapping_at(0x10, maps_of(array)) is None


def test_a_mapping_is_locked_once_and_read_directly() -> None:
    array = shared_array((4, 3))
    address = array.__array_interface__["data"][0]
    cuda = FakeCuda()
    direct = DirectMemory(cuda, mappings=lambda: maps_of(array))
    assert direct.covers(address, array.nbytes)
    assert direct.covers(address + 64, 64)
    assert cuda.registered == [(address, 1 << 16)]
    assert not direct.covers(address + (1 << 16) - 8, 16)


def test_memory_that_cannot_be_locked_is_asked_for_once() -> None:
    array = shared_array((4, 3))
    cuda = FakeCuda(registers=False)
    direct = DirectMemory(cuda, mappings=lambda: maps_of(array))
    address = array.__array_interface__["data"][0]
    assert not direct.covers(address, 16)
    assert not direct.covers(address + 64, 16)
    assert cuda.calls == ["register"]
