"""Load processes whose ids are noted, for tests that stop or kill them."""

from collections.abc import Callable

from loadgen.sending.children import LoadProcess


def noting(pids: list[int]) -> Callable[[], LoadProcess]:
    """Return what starts a load process, and adds its id to `pids`."""

    def start() -> LoadProcess:
        process = LoadProcess()
        pids.append(process.pid)
        return process

    return start
