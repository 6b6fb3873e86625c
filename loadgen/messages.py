"""What parent and load processes say to each other: small JSON documents, now and then with a file descriptor."""

from __future__ import annotations

import array
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.plan import Payload, Target
from loadgen.poller import original

if TYPE_CHECKING:
    import _socket
    from collections.abc import Mapping

Message = dict[str, Any]
_LENGTH_BYTES = 4


class Channel:
    """One end of a socket pair. Messages arrive whole and in order; a closed other end is EOFError."""

    def __init__(self, end: _socket.socket) -> None:
        self._socket = end
        self._poll = original("select", "poll")()
        self._poll.register(end.fileno(), 1)  # POLLIN

    def send(self, message: Message, fd: int | None = None) -> None:
        """Send a message, and a file descriptor with it. Raises OSError when the other end is gone."""
        data = json.dumps(message).encode()
        framed = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        sent = self._socket.sendmsg([framed], rights)
        while sent < len(framed):
            sent += self._socket.send(framed[sent:])

    def waits(self, timeout_s: float) -> bool:
        """Whether a message, or the end, is there within so many seconds."""
        return bool(self._poll.poll(timeout_s * 1e3))

    def receive(self) -> tuple[Message, int | None]:
        """The next message and the file descriptor that came with it. Blocks."""
        space = socket.CMSG_SPACE(array.array("i").itemsize)
        head, ancillary, _, _ = self._socket.recvmsg(_LENGTH_BYTES, space)
        if not head:
            raise EOFError
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        head += self._exactly(_LENGTH_BYTES - len(head))
        message: Message = json.loads(self._exactly(int.from_bytes(head, "big")))
        return message, fds[0] if fds else None

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Close this end; the other one reads EOFError."""
        self._socket.close()


def target_to_json(target: Target) -> Message:
    """All of a target, secrets included: for a pipe to a child, never for a file."""
    return {
        "url": target.url,
        "model_name": target.model_name,
        "model_version": target.model_version,
        "headers": [list(header) for header in target.headers],
        "ca_cert": None if target.ca_cert is None else str(target.ca_cert),
        "insecure": target.insecure,
    }


def target_from_json(message: Mapping[str, Any]) -> Target:
    """The inverse of `target_to_json`."""
    return Target(
        url=message["url"],
        model_name=message["model_name"],
        model_version=message["model_version"],
        headers=tuple((name, value) for name, value in message["headers"]),
        ca_cert=None if message["ca_cert"] is None else Path(message["ca_cert"]),
        insecure=message["insecure"],
    )


def payload_to_json(payload: Payload) -> Message:
    """All of a payload; the data file by its absolute path."""
    return {
        "batch_size": payload.batch_size,
        "shapes": {name: list(shape) for name, shape in payload.shapes.items()},
        "data_file": None if payload.data_file is None else str(payload.data_file.absolute()),
        "picked": payload.picked,
        "seed": payload.seed,
        "shared_memory": payload.shared_memory,
    }


def payload_from_json(message: Mapping[str, Any]) -> Payload:
    """The inverse of `payload_to_json`."""
    return Payload(
        batch_size=message["batch_size"],
        shapes={name: tuple(shape) for name, shape in message["shapes"].items()},
        data_file=None if message["data_file"] is None else Path(message["data_file"]),
        picked=None if message["picked"] is None else tuple(message["picked"]),
        seed=message["seed"],
        shared_memory=message["shared_memory"],
    )
