"""Tests of the runner's side of our Triton backend: shared memory, messages, and runners that take turns."""

import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_cuda import DoublingEngine, FakeCuda

from model_repo.runtime.tritune_gpu import slots
from model_repo.runtime.tritune_gpu.opening import tensors_of
from model_repo.runtime.tritune_gpu.runner import Runner, Turns
from model_repo.runtime.tritune_gpu.slots import SlotMemory, Tensors, serve_slot

TENSORS = Tensors(
    inputs=(("x", "FP32"),),
    outputs=(("y", "FP32"), ("sums", "FP32")),
    max_batch_size=8,
    first_shapes={"x": (8, 3)},
)
SIZES = {"x": 4, "y": 4, "sums": 4}


def runner_in(memory: SlotMemory, **options: Any) -> tuple[Runner, FakeCuda]:
    cuda = FakeCuda()
    runner = Runner(
        DoublingEngine(cuda), cuda, cuda.stream(), max_batch_size=8, batch_sizes=(1, 2, 4, 8),
        input_path="pinned", allocate_host=memory.allocate, **options,
    )  # fmt: skip
    return runner, cuda


class Client:
    """The server's side, in Python: it maps the file that comes with the first message."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        packet, (self._file,), _, _ = socket.recv_fds(connection, slots.LONGEST, 1)
        self.hello = packet
        self.places = self._tensors(packet)

    def run(self, x: Any) -> dict[str, Any] | str:
        """Execute x; returns the outputs, or the text of the error."""
        if x[0].nbytes * 8 > self.places[0][1]:
            self.places = self._tensors(self.ask(slots.encode(slots.GROW, [(0, 0, x.shape)], rows=len(x))))
        with mmap.mmap(self._file, os.fstat(self._file).st_size) as memory:
            offset = self.places[0][0]
            memory[offset : offset + x.nbytes] = x.tobytes()
        answer = self.ask(slots.encode(slots.RUN, [(0, 0, x.shape)], rows=len(x)))
        if slots.decode(answer)[0] == slots.ERROR:
            return answer[40:].decode()
        with mmap.mmap(self._file, os.fstat(self._file).st_size) as memory:
            return {
                name: np.frombuffer(memory[offset : offset + size], np.float32).reshape(shape)
                for name, (offset, size, shape) in zip(("y", "sums"), self._tensors(answer), strict=True)
            }

    def ask(self, packet: bytes) -> bytes:
        self._connection.send(packet)
        return self._connection.recv(slots.LONGEST)

    @staticmethod
    def _tensors(packet: bytes) -> list[tuple[int, int, Any]]:
        _, _, shapes = slots.decode(packet)
        placed = [slots._TENSOR.unpack_from(packet, 40 + 88 * index) for index in range(len(shapes))]
        return [(each[0], each[1], shape) for each, shape in zip(placed, shapes, strict=True)]


@contextmanager
def served(tensors: Tensors = TENSORS, **options: Any) -> Iterator[Client]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = SlotMemory()
    runner, _ = runner_in(memory, **options)
    thread = threading.Thread(target=serve_slot, args=(theirs, tensors, memory, runner, SIZES))
    thread.start()
    try:
        yield Client(ours)
    finally:
        ours.close()
        thread.join(10)
        theirs.close()
        assert not thread.is_alive(), "it ends with the connection"


def check(client: Client, x: Any) -> None:
    answer = client.run(x)
    assert isinstance(answer, dict), answer
    np.testing.assert_array_equal(answer["y"], 2 * x)
    np.testing.assert_allclose(answer["sums"], x.sum(axis=1), rtol=1e-5, atol=1e-5)


def numbers(rows: int, width: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def turns() -> Turns:
    return Turns(stream=8, lock=threading.Lock())


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("in_turns", [False, True])
def test_batches_are_executed_in_the_shared_memory(cuda_graphs: bool, in_turns: bool) -> None:
    with served(cuda_graphs=cuda_graphs, turns=turns() if in_turns else None) as client:
        for seed, rows in enumerate((1, 3, 8, 3, 1)):
            check(client, numbers(rows, seed=seed))


def test_larger_shapes_get_room_and_old_addresses_are_not_confused_with_new_ones() -> None:
    open_sizes = Tensors(inputs=TENSORS.inputs, outputs=TENSORS.outputs, max_batch_size=8, first_shapes=None)
    with served(open_sizes) as client:
        for seed, width in enumerate((3, 500, 20_000, 3, 50_000, 500)):
            for rows in (1, 3, 8):
                check(client, numbers(rows, width, seed))


def test_an_error_is_an_answer_and_the_next_batch_is_executed() -> None:
    with served() as client:
        check(client, numbers(2))
        packet = client.ask(b"nonsense")
        assert slots.decode(packet)[0] == slots.ERROR
        too_many = client.ask(slots.encode(slots.RUN, [(0, 0, (1, 3)), (0, 0, (1, 3))], rows=1))
        assert slots.decode(too_many)[0] == slots.ERROR
        check(client, numbers(2))


def test_inputs_do_not_move_under_a_batch() -> None:
    with served() as client:
        packet = client.ask(slots.encode(slots.RUN, [(0, 0, (1, 4))], rows=1))
        assert slots.decode(packet)[0] == slots.ERROR
        assert b"has no room" in packet


def test_the_memory_cannot_shrink_and_its_old_parts_stay() -> None:
    memory = SlotMemory()
    first = memory.allocate(100)
    address = first.__array_interface__["data"][0]
    del first
    others = [memory.allocate(100) for _ in range(20)]
    addresses = {other.__array_interface__["data"][0] for other in others}
    assert address not in addresses, "the driver may still use it"
    assert fcntl.fcntl(memory.file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(memory.file, 0)
    with pytest.raises(ValueError, match="not in the memory"):
        memory.offset_of(1)
    memory.close()


def test_the_tensors_are_read_from_the_configuration() -> None:
    config = {
        "max_batch_size": 4,
        "input": [
            {"name": "x", "data_type": "TYPE_FP16", "dims": ["3", "8"]},
            {"name": "n", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "parameters": {"patience_s": {"string_value": "5"}},
    }
    assert tensors_of(config) == Tensors(
        inputs=(("x", "FP16"), ("n", "INT64")),
        outputs=(("y", "FP32"),),
        max_batch_size=4,
        first_shapes={"x": (4, 3, 8), "n": (4,)},
        patience_s=5.0,
    )
