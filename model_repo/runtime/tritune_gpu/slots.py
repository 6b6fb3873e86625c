"""The runner's side of our own Triton backend: memory shared with the server, and one thread per slot.

`native/slot.h` describes the messages.
"""

from __future__ import annotations

import array
import fcntl
import math
import mmap
import os
import socket
import struct
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .runner import Runner

Array = np.ndarray[Any, Any]

HELLO, RUN, DONE, GROW, LAYOUT, ERROR = range(1, 7)
MAGIC = 0x31544C53
RANK = 8
LONGEST_TEXT = 2000
_HEAD = struct.Struct("<IIIIQQQ")
_TENSOR = struct.Struct(f"<QQ{RANK}qII")
LONGEST = _HEAD.size + 64 * _TENSOR.size + LONGEST_TEXT

PATIENCE_S = 60.0
"""The server kills a runner that has not answered for a minute: the first execution of new shapes may compile."""

MAX_KNOWN = 256
"""Messages that are kept ready, with their answers."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """A model's inputs and outputs, as (name, Triton's datatype), and the largest batch (0: no batching).

    `first_shapes` are the whole inputs for which a slot has room from the start; None if their sizes are open.
    After `patience_s` without an answer the server kills the runner.
    """

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    max_batch_size: int
    first_shapes: Shapes | None
    patience_s: float = PATIENCE_S


class SlotMemory:
    """Memory in a sealed file without a name, which the server maps too. It only grows, until `close`."""

    def __init__(self, lock: Callable[[int, int], bool] | None = None) -> None:
        self.file = os.memfd_create("tritune-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.size_bytes = 0
        self._lock = lock
        # Address, size, offset, and the memory itself: what is page-locked must stay mapped.
        self._parts: list[tuple[int, int, int, Array]] = []

    def allocate(self, size_bytes: int) -> Array:
        """Return zeroed memory as uint8; page-locked if the driver can."""
        size = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        offset = self.size_bytes
        os.ftruncate(self.file, offset + size)
        self.size_bytes = offset + size
        memory = np.frombuffer(mmap.mmap(self.file, size, offset=offset), dtype=np.uint8)
        memory[:] = 0  # makes its pages, which were zero anyway
        address = memory.__array_interface__["data"][0]
        if self._lock is not None and not self._lock(address, size):
            print("tritune: the driver refuses to page-lock a slot, so its copies are slower", flush=True)  # noqa: T201
        self._parts.append((address, size, offset, memory))
        return memory[:size_bytes]

    def offset_of(self, address: int) -> int:
        """Return where an address of this memory is in the file."""
        for start, size, offset, _ in self._parts:
            if start <= address < start + size:
                return offset + address - start
        raise ValueError(f"{address:#x} is not in the memory of this slot")

    def close(self) -> None:
        """Close the file and unmap the memory; what page-locks it has been undone before."""
        self._parts.clear()
        os.close(self.file)


def encode(
    kind: int,
    tensors: Sequence[tuple[int, int, tuple[int, ...]]] = (),
    *,
    inputs: int = 0,
    rows: int = 0,
    size: int = 0,
    patience_s: float = PATIENCE_S,
    text: str = "",
) -> bytes:
    """Return a message; a tensor is its offset, its size in bytes and its shape."""
    parts = [_HEAD.pack(MAGIC, kind, len(tensors), inputs, rows, size, int(1000 * patience_s))]
    for offset, size_bytes, shape in tensors:
        if len(shape) > RANK:
            raise ValueError(f"a tensor of shape {shape} has more than {RANK} dimensions")
        parts.append(_TENSOR.pack(offset, size_bytes, *shape, *[0] * (RANK - len(shape)), len(shape), 0))
    return b"".join((*parts, text.encode(errors="replace")[:LONGEST_TEXT]))


def decode(packet: bytes) -> tuple[int, int, list[tuple[int, ...]]]:
    """Return the kind, rows and shapes of a message of the server. Raises ValueError."""
    try:
        magic, kind, count, _, rows, _, _ = _HEAD.unpack_from(packet)
        read = [_TENSOR.unpack_from(packet, _HEAD.size + index * _TENSOR.size) for index in range(count)]
    except struct.error as error:
        raise ValueError(f"a message of {len(packet)} bytes is too short") from error
    if magic != MAGIC or any(tensor[-2] > RANK for tensor in read):
        raise ValueError("a message is not of this protocol")
    return kind, rows, [tensor[2 : 2 + tensor[-2]] for tensor in read]


def _placed(
    memory: SlotMemory, element_bytes: int, address: int, shape: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...]]:
    return memory.offset_of(address), element_bytes * math.prod(shape), shape


def _make_room(cache: dict[Any, Any]) -> dict[Any, Any]:
    """Empty a cache that is full; return it."""
    if len(cache) >= MAX_KNOWN:
        cache.clear()
    return cache


def send_error(connection: socket.socket, error: BaseException) -> None:
    """Send the text of an exception."""
    connection.send(encode(ERROR, text=str(error) or type(error).__name__))


def serve_slot(
    connection: socket.socket,
    tensors: Tensors,
    memory: SlotMemory,
    runner: Runner,
    sizes: Mapping[str, int],
) -> None:
    """Answer the server's messages about one slot until it closes the connection.

    `sizes` are the bytes of an element of each tensor.
    """
    input_names = [name for name, _ in tensors.inputs]
    output_names = [name for name, _ in tensors.outputs]

    def layout(shapes: Shapes) -> list[tuple[int, int, tuple[int, ...]]]:
        found = runner.inputs_at(shapes)
        return [(memory.offset_of(found[name][0]), found[name][1], ()) for name in input_names]

    places = layout(tensors.first_shapes) if tensors.first_shapes is not None else [(0, 0, ())] * len(input_names)
    if not memory.size_bytes:
        memory.allocate(mmap.PAGESIZE)
    text = "\n".join(f"{datatype} {name}" for name, datatype in (*tensors.inputs, *tensors.outputs))
    hello = encode(
        HELLO,
        [*places, *[(0, 0, ())] * len(output_names)],
        inputs=len(input_names),
        rows=tensors.max_batch_size,
        size=memory.size_bytes,
        patience_s=tensors.patience_s,
        text=text,
    )
    files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory.file]))]
    connection.sendmsg([hello], files)
    known: dict[bytes, tuple[int, int, Shapes]] = {}  # packets come again and again: they are sizes of batches
    answers: dict[Any, bytes] = {}
    while packet := connection.recv(LONGEST):
        try:
            if packet not in known:
                kind, rows, shapes = decode(packet)
                _make_room(known)[packet] = (kind, rows, dict(zip(input_names, shapes, strict=True)))
            kind, rows, named = known[packet]
            if kind == GROW:
                answer = encode(LAYOUT, layout(named), size=memory.size_bytes)
            else:
                found = runner.run_in_place(rows, named)
                key = (memory.size_bytes, *(found[name] for name in output_names))
                if key not in answers:
                    outputs = [_placed(memory, sizes[name], *found[name]) for name in output_names]
                    _make_room(answers)[key] = encode(DONE, outputs, size=memory.size_bytes)
                answer = answers[key]
        except Exception as error:
            traceback.print_exc()
            answer = encode(ERROR, text=str(error) or type(error).__name__)
        connection.send(answer)
