"""A load test around its flow: what the terminal shows, which files are written, and the exit code."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from loadgen.command import complain, unforeseen
from loadgen.compare import check_comparable, read_baseline
from loadgen.console import SafeConsole
from loadgen.finding import Finding
from loadgen.headers import errors_without_secrets
from loadgen.interrupts import finish_on_first_interrupt
from loadgen.live import LiveView
from loadgen.loadtest import find_out, record_of
from loadgen.printing import print_result
from loadgen.reports.terminal import answer_view
from loadgen.reports.write import check_writable, record_json, write_reports
from loadgen.runner import LoadGenerator
from loadgen.web import WebDashboard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.distributed import DistributedGenerator
    from loadgen.order import Note, Order
    from loadgen.reports.record import LoadTestRecord
    from loadgen.user_errors import UserError


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
    finding, problems = _measured(order, notes, web_port, fleet)
    make = partial(
        record_of,
        order,
        finding,
        notes=notes,
        started_at=started_at,
        machines=1 if fleet is None else fleet.workers,
    )
    try:
        record = make(baseline=baseline)
    except Exception as error:
        if baseline is None:
            raise
        record = make(baseline=None)
        problems.append(unforeseen(error))
    run = finding.run
    log, tally = (None, None) if run is None else (run.log, run.tally)
    problems += write_reports(record, log, order.outputs, tally=tally)
    problems += show(record, as_json=as_json)
    for problem in problems:
        complain(problem.what, problem.fix, problem.exit_code)
    return record.exit_code or (problems[0].exit_code if problems else 0)


def _measured(
    order: Order, notes: Sequence[Note], web_port: int | None, fleet: Fleet | None
) -> tuple[Finding, list[UserError]]:
    """What came of the order, and what went wrong around it after that."""
    found: list[Finding] = []
    problems: list[UserError] = []
    try:
        broken = _carry_out(order, notes, web_port, fleet, found.append)
        if broken is not None:
            problems.append(unforeseen(broken))
    except Exception as error:
        if not found:
            raise
        return found[0], [unforeseen(error)]
    return found[0], problems


def _carry_out(
    order: Order,
    notes: Sequence[Note],
    web_port: int | None,
    fleet: Fleet | None,
    on_found: Callable[[Finding], None],
) -> Exception | None:
    """Carry the order out, with everything around it that has to end again; returns what broke the display."""
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
            on_found(find_out(order, stack.enter_context(LoadGenerator(order.processes)), view, stop))
            return view.broken
        workers = stack.enter_context(_generator_of(fleet))
        view.phase(f"Waiting for {fleet.workers} workers on port {fleet.port}")
        if not workers.wait_for_workers(stop):
            on_found(Finding(run=None, interrupted=True))
            return view.broken
        on_found(find_out(order, workers, view, stop))
        return view.broken


def _generator_of(fleet: Fleet) -> DistributedGenerator:
    from loadgen.distributed import DistributedGenerator  # brings Locust into this process

    return DistributedGenerator(host=fleet.host, port=fleet.port, workers=fleet.workers, secret=fleet.secret)


def show(record: LoadTestRecord, *, as_json: bool) -> list[UserError]:
    """The result on stdout, as JSON or for people; what went wrong in it."""

    def document() -> str:
        return record_json(record)

    if as_json:
        return print_result(lambda: print(document(), end=""), document=document)  # noqa: T201
    return print_result(lambda: SafeConsole().print(answer_view(record)), document=document)
