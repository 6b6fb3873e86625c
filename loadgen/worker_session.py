"""`loadtest --worker HOST`: the worker processes of one machine, until their master ends."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from loadgen.command import ClientFailed
from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from loadgen.worker_rights import WorkerRights


def work_on_all(host: str, port: int, rights: WorkerRights, *, processes: int) -> int:
    """Be `processes` workers; returns when the master has ended. Raises ClientFailed where there is no master."""
    if not 1 <= processes <= 1024:
        raise BadInput(f"--processes {processes} cannot be started.", "Use 1 or more; one a core.")
    children = [_forked(host, port, rights) for _ in range(processes - 1)]
    try:
        _work(host, port, rights)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)
    return 0


def _forked(host: str, port: int, rights: WorkerRights) -> int:
    """One more process, forked before Locust is imported: secrets are in no command line."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        from loadgen.worker import die_with_parent

        die_with_parent(parent)
        _work(host, port, rights)
        code = 0
    finally:
        os._exit(code)


def _work(host: str, port: int, rights: WorkerRights) -> None:
    from loadgen.distributed_worker import work

    def say_hello() -> None:
        sys.stderr.write(f"Worker {os.getpid()} is connected to {host}:{port}.\n")

    try:
        work(host, port, rights, on_connected=say_hello)
    except SystemExit as error:  # Locust's answer to Ctrl-C while it waits for the master
        raise KeyboardInterrupt from error
    except ConnectionError as error:
        raise ClientFailed(
            f"No master answers on {host}:{port}.", "Start it first: loadtest --master --expect-workers N ..."
        ) from error
