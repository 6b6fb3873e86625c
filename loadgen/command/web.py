"""Locust's web UI for a running load test, seen from the session."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.errors import BadInput
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.children import Channel, start_child
from loadgen.spec.target import Target

HOST = "127.0.0.1"
_START_S = 20.0
_NS_PER_MS = 1e6
_MAX_ROWS = 20_000  # per message; more rows wait for the next


@contextmanager
def web_dashboard(target: Target, port: int) -> Iterator[WebDashboard]:
    """Yield the UI, whose process ends with the block. Raises BadInput if it cannot start."""
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"Port {port} cannot be used for the web UI: {error}.", "Choose another --web-port."
        ) from error
    process, channel = start_child("loadgen.command.web_process", HOST, str(port), target.url)
    try:
        dashboard = WebDashboard(channel, f"http://{HOST}:{port}", target.model_name)
        if not channel.waits(_START_S) or not dashboard.receive():
            raise BadInput(
                f"The web UI did not start on {dashboard.url}.", "Use another --web-port, or leave --web out."
            )
        yield dashboard
    finally:
        channel.close()
        process.kill()
        process.wait()


class WebDashboard:
    """The UI's process as the load test sees it. It slows no request down: it only gets copies.

    Its Stop button is `stop_asked`. When the process ends by itself, the load goes on without it.
    """

    def __init__(self, channel: Channel, url: str, model_name: str) -> None:
        self.url = url
        self._model_name = model_name
        self._shown = 0
        self._channel: Channel | None = channel
        self._stop_asked = False

    def begin(self) -> None:
        """Start a new load: clear the figures of the one before."""
        self._shown = 0
        self._send({"do": "reset"})

    def look(self, log: RequestLog, timeout_ns: int) -> None:
        """Show the requests of the growing log that have not been shown yet."""
        rows = log.rows(self._shown, min(len(log), self._shown + _MAX_ROWS))
        self._shown += len(rows)
        latency_ms = rows.latency_charged_ns(timeout_ns) / _NS_PER_MS
        self._send(
            {
                "do": "rows",
                "name": self._model_name,
                "latency_ms": latency_ms.round(3).tolist(),
                "outcome": rows.outcome.tolist(),
            }
        )

    def stop_asked(self) -> bool:
        """True if Stop was pressed."""
        if self._channel is not None and self._channel.waits(0) and self.receive():
            self._stop_asked = True
        return self._stop_asked

    def receive(self) -> bool:
        """True if a message came; at the end of the channel the UI is gone."""
        assert self._channel is not None
        try:
            self._channel.receive()
        except (EOFError, ConnectionError):
            self._channel = None
            return False
        return True

    def _send(self, message: dict[str, object]) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except OSError:
            self._channel = None
