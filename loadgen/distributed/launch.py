"""`loadtest --worker HOST`: the worker processes of one machine, until their master ends."""

from __future__ import annotations

import os
import sys

from loadgen.distributed.secret import VARIABLE
from loadgen.errors import BadInput, ClientFailed
from loadgen.processes import die_with_parent
from loadgen.spec.target import WorkerRights


def work_on_all(host: str, port: int, rights: WorkerRights, *, processes: int) -> int:
    """Run `processes` workers until the master has ended. Raises ClientFailed if there is no master."""
    for _ in range(processes - 1):
        _fork(host, port, rights)
    _work(host, port, rights)
    return 0


def _fork(host: str, port: int, rights: WorkerRights) -> None:
    """Start one more process, by fork before Locust is imported: so no secret is in a command line.

    It ends with this process at the latest.
    """
    parent = os.getpid()
    if os.fork():
        return
    try:
        die_with_parent(parent)
        _work(host, port, rights)
    finally:
        os._exit(0)


def _work(host: str, port: int, rights: WorkerRights) -> None:
    from loadgen.distributed.cluster import WrongSecret
    from loadgen.distributed.worker import work

    def report_connection() -> None:
        sys.stderr.write(f"Worker {os.getpid()} is connected to {host}:{port}.\n")

    try:
        work(host, port, rights, on_connected=report_connection)
    except SystemExit as error:  # Locust's answer to Ctrl-C while it waits for the master
        raise KeyboardInterrupt from error
    except WrongSecret as error:
        raise BadInput(
            f"The program on {host}:{port} has another secret than this worker, or is not a master.",
            f"Set {VARIABLE} to the same secret for the master and for every worker.",
        ) from error
    except ConnectionError as error:
        raise ClientFailed(
            f"No master answers on {host}:{port}.", "Start it first: loadtest --master --expect-workers N ..."
        ) from error
