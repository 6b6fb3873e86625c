"""Commands for load tests of several processes, and a user without a secret."""

import socket
import sys
import time

LOADTEST = [sys.executable, "-c", "from loadgen.cli import main; main()"]


def free_port() -> int:
    """A port on the loopback address that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def master_command(url: str, port: int, *options: str, workers: int = 2) -> list[str]:
    """`loadtest --master`, with its record on stdout."""
    command = [*LOADTEST, url, "--model", "delay", "--master", "--expect-workers", str(workers)]
    return [*command, "--port", str(port), "--json", *options]


def worker_command(port: int, *options: str) -> list[str]:
    """`loadtest --worker` for a master on this machine."""
    return [*LOADTEST, "--worker", "127.0.0.1", "--port", str(port), *options]


def wait_until_listening(port: int) -> None:
    """Return when something accepts connections."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")
