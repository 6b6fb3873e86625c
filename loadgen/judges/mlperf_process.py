"""The process in which MLPerf LoadGen issues its queries over our wire."""

from __future__ import annotations

import _socket
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import locust  # noqa: F401 - it replaces parts of the standard library: before anything else uses them

from loadgen.judges.mlperf import FIRST_LETTERS, Settings
from loadgen.judges.query_loop import QueryLoop
from loadgen.measurement.result import ShardResult
from loadgen.processes import die_with_parent
from loadgen.sending.messages import Channel
from loadgen.sending.request_table import LogTable
from loadgen.sending.shard import PreparedTarget, Shard, without_collections
from loadgen.sending.worker import Worker, go_first, raise_file_limit
from loadgen.transport.poller import original, precise_timers

_SWITCH_S = 1e-4
"""How long one of the two threads may keep the interpreter from the other; Python's own value is 5 ms."""


class MlperfWorker(Worker):
    """Prepares the target as every load process does; then LoadGen decides when requests leave."""

    def __init__(self, channel: Channel, settings: Settings) -> None:
        super().__init__(channel)
        self._settings = settings

    def _run(self, shard: Shard, table: LogTable, prepared: PreparedTarget, origin_ns: int) -> ShardResult:
        wire = prepared.wire
        before = (wire.bytes_sent, wire.bytes_received, wire.connections_opened)
        test = LoadGenTest(self._settings)
        loop = QueryLoop(
            limit_ms=self._settings.limit_ms,
            complete=test.complete,
            parts={
                "table": table,
                "part": 0,
                "parts": 1,
                "wire": wire,
                "poller": self._poller,
                "timeout_ns": round(shard.timeout_s * 1e9),
                "tick": lambda *_: False,  # LoadGen ends when all its queries have ended, and not before
            },
        )
        wire.finished = loop.finished
        wire.error_example = None
        with without_collections():
            wall, cpu = max(time.monotonic_ns(), origin_ns), time.process_time_ns()
            test.begin(loop, origin_ns)
            loop.run_until(lambda: test.over)
            wall, cpu = max(1, time.monotonic_ns() - wall), time.process_time_ns() - cpu
        loop.set_clock_back()
        return ShardResult(
            rows=loop.rows_sent,
            overloaded=False,
            wall_s=wall / 1e9,
            cpu_s=cpu / 1e9,
            bytes_sent=wire.bytes_sent - before[0],
            bytes_received=wire.bytes_received - before[1],
            connections_opened=wire.connections_opened - before[2],
            error_example=wire.error_example,
        )


class LoadGenTest:
    """One test of LoadGen, in a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        import mlperf_loadgen

        self._library: Any = mlperf_loadgen
        self._settings = settings
        self.over = False

    def complete(self, names: Sequence[int]) -> None:
        """Report the end of queries; LoadGen takes the time."""
        response = self._library.QuerySampleResponse
        self._library.QuerySamplesComplete([response(name, 0, 0) for name in names])

    def begin(self, loop: QueryLoop, origin_ns: int) -> None:
        """Start the test, about at `origin_ns` (monotonic clock)."""

        def conduct() -> None:
            try:
                precise_timers()
                go_first()
                original("time", "sleep")(max(0.0, (origin_ns - time.monotonic_ns()) * 1e-9))
                self._conduct(loop)
            except BaseException as error:  # nobody else would see it
                loop.error = loop.error or error
            finally:
                self.over = True

        # A real thread: gevent, which Locust brings, would take it for one of its own.
        original("_thread", "start_new_thread")(conduct, ())

    def _conduct(self, loop: QueryLoop) -> None:
        library = self._library
        system = library.ConstructFastSUT(loop.issue, _nothing)
        samples = library.ConstructQSL(1, 1, _nothing, _nothing)
        # Without an audit.config that happens to lie in the current folder, which would change the settings.
        library.StartTestWithLogSettings(
            system, samples, self._test_settings(), self._log_settings(), "/dev/null/audit.config"
        )
        library.DestroyQSL(samples)
        library.DestroySUT(system)

    def _test_settings(self) -> Any:
        library, wanted = self._library, self._settings
        settings = library.TestSettings()
        settings.scenario = library.TestScenario.Server
        settings.mode = library.TestMode.PerformanceOnly
        settings.server_target_qps = wanted.rate_per_s
        settings.server_target_latency_ns = round(wanted.limit_ms * 1e6)
        settings.server_target_latency_percentile = wanted.quantile
        settings.min_duration_ms = round(wanted.duration_s * 1e3)
        settings.min_query_count = 1  # whether they are enough is for the rule of early stopping
        settings.schedule_rng_seed = wanted.seed
        settings.sample_index_rng_seed = wanted.seed
        settings.qsl_rng_seed = wanted.seed
        return settings

    def _log_settings(self) -> Any:
        settings = self._library.LogSettings()
        settings.log_output.outdir = self._settings.folder
        settings.log_output.prefix = FIRST_LETTERS
        settings.enable_trace = False  # a kilobyte per request
        return settings


def _nothing(*_: object) -> None:
    """Our wire has its inputs ready, and sends at once."""


def main() -> None:
    """`python -m loadgen.judges.mlperf_process PARENT_PID SETTINGS`, with one end of a socket pair as stdin."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides about Ctrl-C
    logging.basicConfig(level=logging.WARNING)
    raise_file_limit()
    precise_timers()
    go_first()
    sys.setswitchinterval(_SWITCH_S)
    try:
        MlperfWorker(Channel(_socket.socket(fileno=os.dup(0))), Settings.from_json(sys.argv[2])).serve()
    except (EOFError, ConnectionError):
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # LoadGen's threads may still run, and would end the interpreter's end with a crash
    os._exit(0)


if __name__ == "__main__":
    main()
