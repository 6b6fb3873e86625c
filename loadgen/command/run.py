"""A load test around its flow: what the terminal shows, which files are written, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console

from loadgen.command.app import complain, finish_on_first_interrupt
from loadgen.command.live import LiveView
from loadgen.command.measure import load_record, record_of, run_load_test
from loadgen.command.verdict import LoadTestResult, read_baseline
from loadgen.command.web import WebDashboard, web_dashboard
from loadgen.console import SafeConsole, print_result
from loadgen.errors import UserError, unforeseen
from loadgen.exit_codes import exit_code
from loadgen.options.load_test import LoadTestOptions
from loadgen.records.formats import format_seconds
from loadgen.records.record import LoadTestRecord
from loadgen.reports.views import answer_view
from loadgen.reports.write import check_writable, record_json, write_reports
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.target import errors_without_secrets

if TYPE_CHECKING:
    from loadgen.distributed.master import DistributedGenerator  # brings Locust into this process


def run(
    order: LoadTest, notes: Sequence[Note], options: LoadTestOptions, fleet: DistributedGenerator | None
) -> int:
    """Carry the order out, show and write the result as the options say; returns the exit code.

    `fleet` None: this machine alone sends the load.
    """
    record, problems = carry_out(
        order,
        notes,
        console=SafeConsole(stderr=True, quiet=options.quiet),
        heeding=finish_on_first_interrupt,
        web_port=options.web_port if options.web else None,
        fleet=fleet,
        verbose=options.verbose,
    )
    problems += show(record, as_json=options.json)
    for problem in problems:
        complain(problem.what, problem.fix, problem.exit_code)
    return exit_code([record.outcome, *(problem.status for problem in problems)])


Heeding = Callable[[Callable[[], None]], AbstractContextManager[Callable[[], bool]]]


def carry_out(
    order: LoadTest,
    notes: Sequence[Note],
    *,
    console: Console,
    heeding: Heeding,
    web_port: int | None = None,
    fleet: DistributedGenerator | None = None,
    verbose: bool = False,
) -> tuple[LoadTestRecord, list[UserError]]:
    """Carry the order out and write its files; return the result, and the problems after it was measured.

    `console` shows the progress. `heeding` yields what says whether to stop with the result so far, and gets what
    announces that. No signal is handled except by it. `web_port` None: no web UI. `verbose`: a line of figures a
    second.
    """
    check_writable(order.outputs)
    baseline = None
    if order.compare is not None:
        limits = [limit.text for limit in order.limits.latency]
        baseline = read_baseline(order.compare, load_record(order), limits, find_max=order.find_max)
    started_at = datetime.now(UTC)
    finding: LoadTestResult | None = None
    try:
        with ExitStack() as stack:
            dashboard = None if web_port is None else stack.enter_context(web_dashboard(order.target, web_port))
            view = LiveView(
                console,
                timeout_s=order.plan.timeout_s,
                limit_ms=order.limits.strictest_ms,
                dashboard=dashboard,
                verbose=verbose,
            )
            finding = _send(order, notes, stack.enter_context(view), dashboard, heeding, fleet, stack)
            broken = view.broken
    except Exception as error:
        if finding is None:
            raise
        broken = error
    problems = [] if broken is None else [unforeseen(broken)]
    machines = 1 if fleet is None else fleet.count
    record = record_of(order, finding, notes=notes, started_at=started_at, baseline=baseline, machines=machines)
    problems += write_reports(record, None if finding.run is None else finding.run.log, order.outputs)
    return record, problems


def _send(
    order: LoadTest,
    notes: Sequence[Note],
    view: LiveView,
    dashboard: WebDashboard | None,
    heeding: Heeding,
    fleet: DistributedGenerator | None,
    stack: ExitStack,
) -> LoadTestResult:
    """Carry the order out; what has to be ended afterwards is left to the `stack`."""
    for note in notes:
        view.note(note.text, warning=note.loud)
    if dashboard is not None:
        view.note(f"Locust's web UI is on {dashboard.url}; its percentiles are rounded, those below are not.")

    def announce() -> None:
        waits = f"waiting for requests in flight, {format_seconds(order.plan.timeout_s)} at most"
        view.note(f"Stopping; {waits}. Ctrl-C again drops everything.", warning=True)

    interrupted = stack.enter_context(heeding(announce))

    def stop() -> bool:
        return interrupted() or (dashboard is not None and dashboard.stop_asked())

    stack.enter_context(errors_without_secrets(order.target.secrets))
    if fleet is None:
        return run_load_test(order, stack.enter_context(LoadGenerator(order.processes)), view, stop)
    generator = stack.enter_context(fleet)
    view.phase(f"Waiting for {fleet.count} workers on port {fleet.port}")
    if not fleet.wait_for_workers(stop):
        return LoadTestResult(run=None, interrupted=True)
    return run_load_test(order, generator, view, stop)


def show(record: LoadTestRecord, *, as_json: bool) -> list[UserError]:
    """Print the result on stdout, as JSON or for people; return the problems of printing it."""
    return print_result(lambda: record_json(record), None if as_json else lambda: answer_view(record))
