"""`loadtest --worker HOST`: the worker processes of one machine, until their master ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from loadgen.cluster_secret import VARIABLE
from loadgen.command import ClientFailed
from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from loadgen.worker_rights import WorkerRights

_ASK_EVERY_S, _ASK_TIMES = 0.05, 40


def work_on_all(host: str, port: int, rights: WorkerRights, *, processes: int) -> int:
    """Be `processes` workers; returns when the master has ended. Raises ClientFailed where there is no master."""
    if not 1 <= processes <= 1024:
        raise BadInput(f"--processes {processes} cannot be started.", "Use 1 or more; one a core.")
    children = [_forked(host, port, rights) for _ in range(processes - 1)]
    try:
        _work(host, port, rights)
    finally:
        for child in children:
            _end(child)
    return 0


def _end(child: int) -> None:
    """End a process that we started: with SIGTERM, and with SIGKILL where it is stopped and does not obey."""
    os.kill(child, signal.SIGTERM)
    for _ in range(_ASK_TIMES):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(_ASK_EVERY_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _forked(host: str, port: int, rights: WorkerRights) -> int:
    """One more process, forked before Locust is imported: secrets are in no command line."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        from loadgen.parent import die_with_parent

        die_with_parent(parent)
        _work(host, port, rights)
        code = 0
    finally:
        os._exit(code)


def _work(host: str, port: int, rights: WorkerRights) -> None:
    from loadgen.cluster import WrongSecret
    from loadgen.distributed_worker import work

    def say_hello() -> None:
        sys.stderr.write(f"Worker {os.getpid()} is connected to {host}:{port}.\n")

    try:
        work(host, port, rights, on_connected=say_hello)
    except SystemExit as error:  # Locust's answer to Ctrl-C while it waits for the master
        raise KeyboardInterrupt from error
    except WrongSecret as error:
        raise BadInput(
            f"What answers on {host}:{port} has another secret than this worker, or is no master.",
            f"Set {VARIABLE} to the same secret for the master and for every worker.",
        ) from error
    except ConnectionError as error:
        raise ClientFailed(
            f"No master answers on {host}:{port}.", "Start it first: loadtest --master --expect-workers N ..."
        ) from error
