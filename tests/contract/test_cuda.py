"""What the GPU runtime relies on: held against the fake, and against the driver where there is a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from numpy.typing import NDArray

from model_repo.runtime.tritune_gpu.driver import CudaError, DriverCuda


def driver_cuda() -> DriverCuda:
    try:
        return DriverCuda()
    except (CudaError, ImportError, RuntimeError) as reason:  # no driver, or none that finds a GPU
        pytest.skip(f"no GPU: {reason}")


@pytest.fixture(params=["fake", pytest.param("driver", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[FakeCuda | DriverCuda]:
    made = FakeCuda() if request.param == "fake" else driver_cuda()
    yield made
    made.close()


def address(array: NDArray[np.uint8]) -> Any:
    return array.__array_interface__["data"][0]


def test_memory_starts_as_zero_and_is_kept(cuda: Any) -> None:
    stream, device = cuda.stream(), cuda.allocate(1000)
    back = cuda.allocate_pinned(1000)
    back[:] = 7
    cuda.copy_out(address(back), device, 1000, stream)
    cuda.wait(stream)
    assert not back.any()


def test_copies_go_there_and_back_in_order(cuda: Any) -> None:
    stream, device = cuda.stream(), cuda.allocate(64)
    host, back = cuda.allocate_pinned(64), cuda.allocate_pinned(64)
    host[:] = np.arange(64)
    cuda.copy_in(device, address(host), 64, stream)
    cuda.copy_in(device + 8, address(host), 8, stream)
    cuda.copy_out(address(back), device, 64, stream)
    cuda.wait(stream)
    expected = np.arange(64)
    expected[8:16] = np.arange(8)
    assert back.tolist() == expected.tolist()


def test_a_graph_does_nothing_until_it_is_launched_and_then_reads_what_is_there(cuda: Any) -> None:
    stream, device = cuda.stream(), cuda.allocate(16)
    host, back = cuda.allocate_pinned(16), cuda.allocate_pinned(16)
    with cuda.capture(stream) as captured:
        cuda.copy_in(device, address(host), 16, stream)
        cuda.copy_out(address(back), device, 16, stream)
    host[:] = 5
    cuda.wait(stream)
    assert not back.any()
    for value in (5, 9):
        host[:] = value
        cuda.launch(captured.handle, stream)
        cuda.wait(stream)
        assert set(back.tolist()) == {value}
    cuda.free_graph(captured.handle)


def test_a_capture_that_fails_leaves_the_stream_usable(cuda: Any) -> None:
    stream, device, back = cuda.stream(), cuda.allocate(16), cuda.allocate_pinned(16)

    def fail_while_capturing() -> None:
        with cuda.capture(stream):
            cuda.copy_out(address(back), device, 16, stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_capturing()
    back[:] = 3
    cuda.copy_out(address(back), device, 16, stream)
    cuda.wait(stream)
    assert not back.any()


def test_a_stream_waits_for_an_event_of_another(cuda: Any) -> None:
    first, second, event, device = cuda.stream(), cuda.stream(), cuda.event(), cuda.allocate(1 << 20)
    host, back = cuda.allocate_pinned(1 << 20), cuda.allocate_pinned(1 << 20)
    for value in (6, 8):
        host[:] = value
        cuda.copy_in(device, address(host), 1 << 20, first)
        cuda.record(event, first)
        cuda.wait_for(event, second)
        cuda.copy_out(address(back), device, 1 << 20, second)
        cuda.wait(second)
        assert set(back.tolist()) == {value}


def test_registered_memory_is_read_where_it_lies(cuda: Any) -> None:
    ordinary = np.full(8192, 4, dtype=np.uint8)
    stream, device, back = cuda.stream(), cuda.allocate(8192), cuda.allocate_pinned(8192)
    assert cuda.register(address(ordinary), ordinary.nbytes)
    cuda.copy_in(device, address(ordinary), 8192, stream)
    cuda.copy_out(address(back), device, 8192, stream)
    cuda.wait(stream)
    assert set(back.tolist()) == {4}


def test_closing_twice_is_quiet(cuda: Any) -> None:
    cuda.allocate(10)
    cuda.close()
    cuda.close()
