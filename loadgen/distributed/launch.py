"""`loadtest --worker HOST`: knock at the master's door, then run the worker processes of one machine."""

from __future__ import annotations

import os
import socket
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from loadgen.distributed.secret import VARIABLE
from loadgen.distributed.sockets import worker_options
from loadgen.errors import BadInput, ClientFailed
from loadgen.processes import die_with_parent
from loadgen.spec.target import WorkerRights

_MASTER_S = 300.0
_REFUSALS = 3  # in a row, without a reason: a single one may come from a master that is just ending
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH  # ZeroMQ does not try again
_UNKNOWN = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def work_on_all(host: str, port: int, rights: WorkerRights, *, processes: int) -> None:
    """Run `processes` workers until the master has ended. Raises ClientFailed without a master, and BadInput.

    They are forks from before Locust is imported, so no secret is in a command line. They end with this process.
    """
    _knock(host, port, rights.secret)
    parent = os.getpid()
    try:
        if any(not os.fork() for _ in range(processes - 1)):
            die_with_parent(parent)
        from loadgen.distributed.worker import work

        work(host, port, rights)
    finally:
        if os.getpid() != parent:
            os._exit(0)


def _knock(host: str, port: int, secret: bytes) -> None:
    """Return when a master with the same secret answers, within five minutes."""
    refusals, end_s = 0, time.monotonic() + _MASTER_S
    with zmq.Context() as context, context.socket(zmq.DEALER) as door:
        for option, value in worker_options(secret).items():
            door.setsockopt(option, value)
        door.linger = 0
        door.ipv6 = socket.has_dualstack_ipv6()
        events = door.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED | _UNKNOWN)
        door.connect(f"tcp://{host}:{port}")
        while refusals < _REFUSALS:
            if not events.poll(max(0, round((end_s - time.monotonic()) * 1e3))):
                raise ClientFailed(
                    f"No master answers on {host}:{port}.",
                    "Start it first: loadtest --master --expect-workers N ...",
                )
            event = recv_monitor_message(events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            refusals += 1 if event == _UNKNOWN else _REFUSALS
    raise BadInput(
        f"The program on {host}:{port} has another secret than this worker, or is not a master.",
        f"Set {VARIABLE} to the same secret for the master and for every worker.",
    )
