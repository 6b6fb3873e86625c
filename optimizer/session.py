"""One run of `optimize` around the pipeline: its directory, its log, what the terminal shows, its exit code."""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.command import complain
from loadgen.console import SafeConsole
from loadgen.interrupts import finish_on_first_interrupt
from loadgen.printable import printable
from loadgen.printing import print_result
from loadgen.scratch import scratch_folder
from optimizer.config import OptimizeConfig, save_config
from optimizer.errors import BadInput
from optimizer.gpu_choice import use_gpus
from optimizer.progress import Progress
from optimizer.run_lock import locked
from search import events
from search.secrets import shown_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadgen.user_errors import UserError
    from search.events import OnEvent
    from search.records import RecommendationRecord

LOG_FILE = "optimize.log"

log = logging.getLogger("tritune")


def run(
    config: OptimizeConfig, notes: list[str], *, as_json: bool, resume: bool, baseline: Path | None = None
) -> int:
    """Carry out the run and show its answer; returns the exit code, which tells of a worse one than `baseline`."""
    from optimizer.pipeline import optimize
    from optimizer.verdict import NothingFound

    before = None if baseline is None else _read_baseline(baseline, config)

    gpus = use_gpus(config.gpu, config.workers)
    make_directory(config.output, resume=resume)
    stderr = SafeConsole(stderr=True)
    with locked(config.output), logging_to(config.output / LOG_FILE):
        save_config(config, config.output)
        with Progress(stderr, budget_s=config.time_budget_s) as progress:
            on_event = to_log_and(progress)
            for note in notes:
                on_event(events.Note(text=note))

            def announce() -> None:
                on_event(events.Note(text="Finishing with the best so far. Ctrl-C again stops now.", warning=True))

            with finish_on_first_interrupt(announce) as stop:
                try:
                    found = optimize(config, gpus=gpus, on_event=on_event, stop=stop)
                except NothingFound:
                    _write_report(config.output, on_event)
                    raise
            _write_report(config.output, on_event)
    problems = _show(found, config.output, as_json=as_json)
    for problem in problems:
        complain(problem.what, problem.fix, problem.exit_code)
    if baseline is None or before is None:
        return problems[0].exit_code if problems else 0
    return _show_comparison(before, found, names=(str(baseline), str(config.output)), on_stderr=as_json)


def _show(found: RecommendationRecord, directory: Path, *, as_json: bool) -> list[UserError]:
    """The answer on stdout, as JSON or for people; what went wrong in it. It is on the disk already."""
    from optimizer.report import recommendation_view

    def document() -> str:
        return found.model_dump_json(indent=2) + "\n"

    if as_json:
        return print_result(lambda: print(document(), end=""), document=document)  # noqa: T201
    return print_result(lambda: SafeConsole().print(recommendation_view(found, directory)), document=document)


def _read_baseline(directory: Path, config: OptimizeConfig) -> RecommendationRecord:
    from optimizer.comparing import read_baseline

    return read_baseline(directory, config.slo)


def _show_comparison(
    before: RecommendationRecord, now: RecommendationRecord, *, names: tuple[str, str], on_stderr: bool
) -> int:
    from optimizer.comparing import TOLERANCE, check_same_demand, comparison_view, exit_code_of
    from search.comparison import compare_runs

    check_same_demand(before, now, name=names[0])
    comparison = compare_runs(before, now, names=names, tolerance=TOLERANCE)
    SafeConsole(stderr=on_stderr, highlight=False).print(comparison_view(comparison))
    return exit_code_of(comparison)


def _write_report(directory: Path, on_event: OnEvent) -> None:
    """Write the run's page. The answer is on the disk already, and nothing about a page may lose it."""
    from optimizer.reports.write import write_report

    try:
        write_report(directory)
    except Exception as error:
        log.exception("no report")
        on_event(events.Note(text=f"report.html was not written: {error}", warning=True))


def show_plan(config: OptimizeConfig, notes: list[str]) -> None:
    """Print what a run would do; nothing is started and nothing is written."""
    from optimizer.prepare import prepare
    from optimizer.report import plan_view

    console = SafeConsole()
    for note in notes:
        console.print(f"note: {note}", highlight=False)
    use_gpus(config.gpu, config.workers)
    with scratch_folder("plan") as folder:
        prepared = prepare(config, work_dir=folder, may_build=False)
        console.print(plan_view(prepared, config))


def make_directory(directory: Path, *, resume: bool) -> None:
    """Make the run's directory; with `resume` it may hold something, but no links. Raises BadInput."""
    try:
        if resume:
            _check_links(directory)
        if not resume and directory.exists() and any(directory.iterdir()):
            raise BadInput(
                f"--output {directory} is not empty.",
                f"Give a new directory, or go on with the run in it: --resume {directory}",
            )
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"0" * 4096)
    except OSError as error:
        raise BadInput(
            f"--output {directory} cannot be written: {error.strerror or error}.",
            "Give another directory with --output.",
        ) from error


def _check_links(directory: Path) -> None:
    """Refuse a directory from which something would be written elsewhere. Raises BadInput, OSError."""
    for folder, folders, files in os.walk(directory):
        link = next((path for name in (*folders, *files) if (path := Path(folder, name)).is_symlink()), None)
        if link is not None:
            raise BadInput(
                f"{link} is a link, and what is written there would go elsewhere.",
                "Remove it, or give another directory.",
            )
        # Folders of servers that were killed hold links of ours; an earlier version called them `server`.
        folders[:] = [name for name in folders if name != "server" and not name.startswith(".tritune-")]


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Until the block ends, our log goes to this file, the command line and an error's traceback among it."""
    handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_PrintableLines("%(asctime)s %(levelname)-7s %(message)s"))
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    try:
        log.info("arguments: %s", " ".join(shown_arguments(sys.argv[1:])))
        yield
    except BaseException as error:
        log.debug("ended by %s: %s", type(error).__name__, error, exc_info=True)
        raise
    finally:
        log.info("peak memory of this process: %.0f MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        log.removeHandler(handler)
        with suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """A log that takes no more, because its disk is full, ends nothing and says nothing: the run will say it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Drop the record."""


class _PrintableLines(logging.Formatter):
    """Lines that may be looked at with `cat`, whatever a server or a model said."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        text = super().format(record)
        return printable(text, most=len(text), lines=True)


def to_log_and(progress: Progress) -> OnEvent:
    """Events to the log as well as to the terminal."""

    def on_event(event: events.Event) -> None:
        log.debug("%s", event)
        try:
            progress(event)
        except Exception:  # no run ends for a line that cannot be shown
            log.exception("not shown")

    return on_event
