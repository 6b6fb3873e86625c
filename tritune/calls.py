"""Carry out the calls of `tritune`: options in, records out."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.command.app import check_address_space
from loadgen.errors import BadInput, UserError
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.options.sources import given_in_call, take_variables
from optimizer.call_options import CallOptions
from tritune.messages import LOADTEST, OPTIMIZE, converted
from tritune.records import Recommendation, Result, opened, recommended

if TYPE_CHECKING:
    from loadgen.console import SafeConsole
    from search.records.recommendation import RecommendationRecord


def _console(progress: bool | None) -> SafeConsole:
    """Return the console of a call's progress: stderr, or with None only in a notebook and at a prompt."""
    from loadgen.console import SafeConsole

    if hasattr(sys, "ps1") if progress is None else progress:
        return SafeConsole(stderr=True)
    # With FORCE_COLOR it would be a terminal, and a live display be drawn.
    return SafeConsole(file=io.StringIO(), quiet=True, force_terminal=False)


_ONE_RUN = threading.Lock()
"""A run restricts the GPUs of its process, and has its log."""


def optimized(
    arguments: Mapping[str, object],
    on_event: Callable[[Any], object] | None,
    stop: Callable[[], bool] | None,
    progress: bool | None,
) -> Recommendation:
    """See `tritune.optimize`."""
    check_address_space("optimize")
    from optimizer.command import session
    from optimizer.command.arguments import config_of_call
    from optimizer.run.pipeline import optimize
    from optimizer.run.progress import Progress
    from search.trials import events

    begun: list[Path] = []
    broken: list[Exception] = []

    def asked() -> bool:
        try:
            return stop is not None and stop()
        except Exception as error:
            broken.append(error)
            raise KeyboardInterrupt from error  # ends the run as Ctrl-C does, and it can be resumed

    def search(config: Any, **given: Any) -> RecommendationRecord:
        begun.append(config.output)
        return optimize(config, **given)

    @contextmanager
    def shown(budget_s: float) -> Iterator[events.OnEvent]:
        with Progress(_console(progress), budget_s=budget_s) as show:

            def both(event: events.Event) -> None:
                show(event)
                if on_event is not None:
                    on_event(event)

            yield both

    try:
        with converted("optimize", OPTIMIZE, arguments), _only_run():
            values, origins = given_in_call("optimize", OPTIMIZE, arguments)
            call = made_of(CallOptions, values, str)
            config, notes = config_of_call(call, values, origins)
            found, _ = session.carry_out(
                config,
                notes,
                call,
                search,
                display=shown(config.time_budget_s),
                heeding=lambda _: nullcontext(asked),
            )
    except UserError as error:
        with suppress(UserError):
            error.result = opened(begun[0]) if begun else None
        raise
    except KeyboardInterrupt:
        if broken:
            raise broken[0] from None
        raise
    return recommended(found, config.output)


@contextmanager
def _only_run() -> Iterator[None]:
    """Hide the commands' variables, which may hold secrets, from a run's processes; undo what a run changes.

    Raises BadInput if another run goes on in this process.
    """
    from optimizer.child import TELEMETRY
    from optimizer.machine.hardware import VISIBLE

    if not _ONE_RUN.acquire(blocking=False):
        raise BadInput(
            "Another call of tritune.optimize goes on in this process.",
            "Wait for it, or make this call in a process of its own.",
        )
    ours = (VISIBLE, TELEMETRY)
    before = {name: text for name, text in os.environ.items() if name in ours or name.startswith("TRITUNE_")}
    try:
        take_variables(os.environ, "optimize")
        os.environ.setdefault(TELEMETRY, "1")
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ.update(before)
        _ONE_RUN.release()


def load_tested(arguments: Mapping[str, object], progress: bool | None) -> Result:
    """See `tritune.loadtest`."""
    check_address_space("loadtest")
    from loadgen.command.arguments import order_from_options
    from loadgen.command.run import carry_out
    from loadgen.spec.load_test import Note

    with converted("loadtest", LOADTEST, arguments):
        values, _ = given_in_call("loadtest", LOADTEST, arguments)
        assumed: list[str] = []
        options = made_of(LoadTestOptions, values, assumed.append)
        order, notes = order_from_options(options, os.environ)
        record, problems = carry_out(
            order,
            [*(Note(text=text) for text in assumed), *notes],
            console=_console(progress),
            # No signal is watched for: Ctrl-C raises KeyboardInterrupt in the main thread, as in any Python.
            heeding=lambda _: nullcontext(lambda: False),
            web_port=options.web_port if options.web else None,
        )
        found = Result(**dict(record))
        if problems:
            problems[0].result = found
            raise problems[0]
    return found
