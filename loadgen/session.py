"""A load test around its flow: what the terminal shows, which files are written, and the exit code."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.command import complain
from loadgen.compare import check_comparable, read_baseline
from loadgen.console import SafeConsole
from loadgen.finding import Finding
from loadgen.headers import errors_without_secrets
from loadgen.interrupts import finish_on_first_interrupt
from loadgen.live import LiveView
from loadgen.loadtest import find_out, record_of
from loadgen.reports.terminal import answer_view
from loadgen.reports.write import ReportNotWritten, check_writable, record_json, write_reports
from loadgen.runner import LoadGenerator
from loadgen.web import WebDashboard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.distributed import DistributedGenerator
    from loadgen.order import Note, Order
    from loadgen.reports.record import LoadTestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Where the master of a test that several machines send listens, for how many workers, and their secret."""

    host: str
    port: int
    workers: int
    secret: bytes = field(repr=False)


def run(
    order: Order,
    notes: Sequence[Note],
    *,
    as_json: bool,
    web_port: int | None = None,
    fleet: Fleet | None = None,
) -> int:
    """Carry the order out, show and write what came of it; returns the exit code.

    `web_port` None: no web UI. `fleet` None: this machine alone sends the load.
    """
    check_writable(order.outputs)
    baseline = None
    if order.compare is not None:
        baseline = read_baseline(order.compare)
        check_comparable(baseline, order)
    started_at = datetime.now(UTC)
    finding = _carried_out(order, notes, web_port, fleet)
    record = record_of(
        order,
        finding,
        notes=notes,
        started_at=started_at,
        baseline=baseline,
        machines=1 if fleet is None else fleet.workers,
    )
    problems = [
        *show(record, as_json=as_json),
        *write_reports(
            record,
            None if finding.run is None else finding.run.log,
            order.outputs,
            tally=None if finding.run is None else finding.run.tally,
        ),
    ]
    for problem in problems:
        complain(problem.what, problem.fix, problem.exit_code)
    return record.exit_code or (problems[0].exit_code if problems else 0)


def _carried_out(order: Order, notes: Sequence[Note], web_port: int | None, fleet: Fleet | None) -> Finding:
    """What came of the order, with everything around it that has to end again."""
    with ExitStack() as stack:
        dashboard = None
        if web_port is not None:
            dashboard = stack.enter_context(WebDashboard(order.target, web_port))
        view = stack.enter_context(
            LiveView(
                SafeConsole(stderr=True),
                timeout_s=order.plan.timeout_s,
                limit_ms=order.limits.strictest_ms,
                dashboard=dashboard,
            )
        )
        for note in notes:
            view.note(note.text, warning=note.loud)
        if dashboard is not None:
            view.note(f"Locust's web UI is on {dashboard.url}; its percentiles are rounded, those below are not.")

        def announce() -> None:
            view.note("Stopping; waiting for requests in flight. Ctrl-C again drops everything.", warning=True)

        interrupted = stack.enter_context(finish_on_first_interrupt(announce))

        def stop() -> bool:
            return interrupted() or (dashboard is not None and dashboard.stop_asked())

        stack.enter_context(errors_without_secrets(order.target.headers))
        if fleet is None:
            return find_out(order, stack.enter_context(LoadGenerator(order.processes)), view, stop)
        workers = stack.enter_context(_generator_of(fleet))
        view.phase(f"Waiting for {fleet.workers} workers on port {fleet.port}")
        if not workers.wait_for_workers(stop):
            return Finding(run=None, interrupted=True)
        return find_out(order, workers, view, stop)


def _generator_of(fleet: Fleet) -> DistributedGenerator:
    from loadgen.distributed import DistributedGenerator  # brings Locust into this process

    return DistributedGenerator(host=fleet.host, port=fleet.port, workers=fleet.workers, secret=fleet.secret)


def show(record: LoadTestRecord, *, as_json: bool) -> list[ReportNotWritten]:
    """The result on stdout, as JSON or for people; an error where stdout takes no more: files may still get it."""
    try:
        if as_json:
            sys.stdout.write(record_json(record))
        else:
            SafeConsole().print(answer_view(record))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, `head` for one, has seen enough
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        return [ReportNotWritten(f"The result could not be printed: {error.strerror}.", "Use --output as well.")]
    return []


def _drop_stdout() -> None:
    """Or the interpreter would try again at its end, and fail again."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
