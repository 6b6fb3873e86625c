"""A whole load test on a simulated load generator, in virtual time."""

from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console

from loadgen.command.arguments import order_from_options
from loadgen.command.live import LiveView
from loadgen.command.measure import record_of, run_load_test
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.records.record import LoadTestRecord
from loadgen.sending.generator import Generator
from loadgen.spec.load_test import LoadTest


def order_of(**options: Any) -> LoadTest:
    """Return the order that these options of `loadtest` make."""
    return order_from_options(made_of(LoadTestOptions, options, str), {})[0]


def carried_out(
    given: LoadTest, generator: Generator, *, stop_after: int | None = None, **options: Any
) -> LoadTestRecord:
    """Return the record of the load test, which is stopped once it has asked `stop_after` times."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return stop_after is not None and asked > stop_after

    with LiveView(Console(file=StringIO()), timeout_s=given.plan.timeout_s, limit_ms=50.0) as view:
        finding = run_load_test(given, generator, view, stop)
    return record_of(given, finding, notes=(), started_at=datetime.now(UTC), **options)
