"""One run of `optimize`: the display on the terminal around the pipeline, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic_core import to_json
from rich.console import Console

from loadgen.command.app import as_user_error, complain, finish_on_first_interrupt, stop_on_first_interrupt
from loadgen.console import SafeConsole, print_result
from loadgen.errors import Interrupted, UserError
from loadgen.exit_codes import CODES, exit_code
from loadgen.processes import scratch_folder
from loadgen.records.comparison import check_same
from model_repo.server.launchers import check_launcher
from optimizer.call_options import CallOptions
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import gpus_for
from optimizer.reports.report import REPORT_FILE, write_report
from optimizer.reports.terminal import answer_view, comparison_view, plan_record, plan_view
from optimizer.reports.text import resume_command
from optimizer.run.prepare import check_model, exported, prepare, read_inputs
from optimizer.run.progress import Progress
from optimizer.run.recommendation import keep_failure, write_recommendation
from optimizer.run.run_directory import (
    LOG_FILE,
    check_directory,
    check_events,
    events_to,
    locked,
    log,
    logging_to,
    make_directory,
    to_log_and,
)
from optimizer.run.workload_inputs import checked_workload, keep_input_data, kept_input_data, workload_of
from optimizer.run_file import save_config, slo_of
from search.answer.comparison import RunComparisonRecord, compare_runs, conditions
from search.certification.policy import POLICY
from search.records.recommendation import NoRecommendationRecord, RecommendationRecord
from search.records.run_files import (
    RECOMMENDATION_FILE,
    RUN_FILE,
    TRIALS_FILE,
    named_run,
    read_recommendation,
    shown_directory,
)
from search.trials import events
from search.trials.events import OnEvent

FINISHED_IN_S = POLICY.when_stopped_s + 10.0
"""After Ctrl-C: the last confirmation, and 10 s for what is under way before it and for files after it."""


def run(
    config: OptimizeConfig,
    notes: list[str],
    call: CallOptions,
    *,
    search: Callable[..., RecommendationRecord] | None = None,
) -> int:
    """Carry out the run, show its recommendation, and return the exit code.

    `search` is `optimizer.run.pipeline.optimize` unless given. `recommendation.json` is written for every outcome
    once the run's directory is locked. Raises UserError if the run recommends nothing.
    """
    from optimizer.run.pipeline import optimize

    stderr = SafeConsole(stderr=True, quiet=call.quiet)
    try:
        found, comparison = carry_out(
            config,
            notes,
            call,
            search or partial(optimize, preparing=stop_on_first_interrupt),
            display=Progress(stderr, budget_s=config.time_budget_s),
            heeding=_finishing,
            log_on=stderr if call.verbose else None,
            arguments=sys.argv[1:],
        )
    except KeyboardInterrupt as error:
        raise (_stopped(config.output) if (config.output / RUN_FILE).is_file() else error) from error
    view = None if call.json else partial(answer_view, found, config.output, config, whole=call.verbose)
    problems = print_result(lambda: found.model_dump_json(indent=2) + "\n", view)
    for problem in problems:
        complain(problem.what, problem.fix, problem.exit_code)
    if comparison is not None:
        SafeConsole(stderr=call.json, highlight=False).print(comparison_view(comparison))
    facts = [found.status, *(problem.status for problem in problems)]
    return exit_code(facts, accept_provisional=call.accept_provisional)


def _finishing(on_event: OnEvent) -> AbstractContextManager[Callable[[], bool]]:
    """Until the block ends, the first Ctrl-C asks the search to finish, and the second stops it."""
    text = f"Finishing: one confirmation, {FINISHED_IN_S:.0f} s at most. Ctrl-C again stops now."
    return finish_on_first_interrupt(partial(on_event, events.Note(text=text, warning=True)))


def carry_out(
    config: OptimizeConfig,
    notes: list[str],
    call: CallOptions,
    search: Callable[..., RecommendationRecord],
    *,
    display: AbstractContextManager[OnEvent],
    heeding: Callable[[OnEvent], AbstractContextManager[Callable[[], bool]]],
    log_on: Console | None = None,
    arguments: Sequence[str] | None = None,
) -> tuple[RecommendationRecord, RunComparisonRecord | None]:
    """Carry out the run in its directory; return its recommendation, and the comparison with the baseline's.

    `display` gets the events; `log_on` gets the log's lines, which begin with the command's `arguments`, if any.
    `heeding` yields what says whether the search should finish. Nothing else is printed, and no signal is handled,
    except by these. Raises UserError if the run recommends nothing.
    """
    before, resume, baseline = None, call.resume is not None, call.baseline and named_run(call.baseline)
    if baseline is not None:
        before = _read_baseline(baseline, keep_input_data(config) if resume else config)
        if config.protocol == "auto":
            config = replace(config, protocol=before.workload.protocol)
    if call.events is not None:
        check_events(call.events, config.output)
    if not resume:
        check_model(config)
    mine, gpus = gpus_for(config.gpu, config.workers)
    os.environ.update(mine)  # for libraries and processes that this one starts
    model = config.model if config.repository is None else config.repository / config.model
    make_directory(config.output, resume=resume, model=model)
    with locked(config.output), logging_to(config.output / LOG_FILE, also=log_on, arguments=arguments):
        save_config(config, config.output)
        with display as shown, events_to(call.events, to_log_and(shown)) as on_event:
            for note in notes:
                on_event(events.Note(text=note))
            with heeding(on_event) as stop:
                try:
                    found = search(config, gpus=gpus, on_event=on_event, stop=stop)
                    comparison = None
                    if baseline is not None and before is not None:
                        comparison = compare_runs(before, found, paths=(baseline, config.output))
                except KeyboardInterrupt:
                    _keep_failure(config.output, _stopped(config.output), on_event)
                    raise
                except Exception as error:
                    failure = as_user_error(error, "optimize")
                    _keep_failure(config.output, failure, on_event)
                    failure.kept = _kept(config.output, failure)
                    raise failure from (None if failure is error else error)
            found = _with_final_status(found, comparison, accept_provisional=call.accept_provisional)
            write_recommendation(config.output, found)
            _write_report(config.output, on_event)
    return found, comparison


def _stopped(directory: Path) -> Interrupted:
    return Interrupted("Stopped.", f"Go on with {resume_command(directory)}")


def _kept(directory: Path, failure: UserError) -> str:
    """Return where a failed run is, and the command that goes on with it if it only lacked time."""
    report, shown = directory / REPORT_FILE, shown_directory(directory)
    place = f"Report: {shown}/{REPORT_FILE}" if report.is_file() else f"Files: {shown}"
    longer = resume_command(directory, failure.fix)
    return f"To go on: {longer}. {place}" if "--time-budget" in longer else place


def _keep_failure(directory: Path, failure: UserError, on_event: OnEvent) -> None:
    """Write the outcome, and the report if a trial was finished; what cannot be written is only a note."""
    nothing = False
    try:
        nothing = isinstance(keep_failure(directory, failure), NoRecommendationRecord)
    except OSError as error:
        on_event(events.Note(text=f"{RECOMMENDATION_FILE} was not written: {error.strerror}", warning=True))
    if (nothing or failure.status != "interrupted") and (directory / TRIALS_FILE).is_file():
        _write_report(directory, on_event)


def _with_final_status(
    found: RecommendationRecord, comparison: RunComparisonRecord | None, *, accept_provisional: bool
) -> RecommendationRecord:
    """Return the recommendation with the status after the comparison, and with the exit code."""
    code = exit_code([found.status], accept_provisional=accept_provisional)
    if code or comparison is None or comparison.answer != "worse":
        return found.model_copy(update={"exit_code": code})
    worse = ", ".join(figure.figure for figure in comparison.figures if figure.answer == "worse")
    reason = f"Worse than {comparison.baseline}, beyond the uncertainties of both: {worse}."
    return found.model_copy(update={"status": "worse", "exit_code": CODES["worse"], "status_reason": reason})


def _write_report(directory: Path, on_event: OnEvent) -> None:
    """Write the run's HTML page. The recommendation is on disk already, so a failure here is only a note."""
    try:
        write_report(directory)
    except Exception as error:
        log.exception("no report")
        on_event(events.Note(text=f"report.html was not written: {error}", warning=True))


def show_plan(config: OptimizeConfig, notes: list[str], call: CallOptions) -> None:
    """Print the plan of a run, as text or as JSON; no server is started, and no file of a run is written.

    Raises UserError for what would end the run before its server starts.
    """
    console, shown = SafeConsole(), list[str]()

    def note(text: str) -> None:
        shown.append(text)
        if not call.json:
            console.print(f"note: {text}", highlight=False, markup=False)

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.Note) and event.warning:
            note(event.text)

    for text in notes:
        note(text)
    if call.resume is not None:
        config = kept_input_data(config)
    if call.baseline is not None:
        _read_baseline(named_run(call.baseline), config)
    check_directory(config.output, resume=call.resume is not None)
    if call.events is not None:
        check_events(call.events, config.output)
    with explained():
        check_launcher(config.server)
    os.environ.update(gpus_for(config.gpu, config.workers)[0])
    with scratch_folder("plan") as folder:
        inputs = exported(config, read_inputs(config, work_dir=folder, on_event=on_event), on_event=on_event)
        prepared = prepare(config, inputs, may_build=False, on_event=on_event)
        workload = checked_workload(config, prepared.engines[0])
        plan = plan_record(prepared, config, workload, shown)
        if call.json:
            print(to_json(plan, indent=2).decode())  # noqa: T201
        else:
            console.print(plan_view(plan))


def _read_baseline(directory: Path, config: OptimizeConfig) -> RecommendationRecord:
    """Return the recommendation of an earlier run. Raises UserError if this run is not comparable with it."""
    before = read_recommendation(directory)
    protocol = before.workload.protocol if config.protocol == "auto" else config.protocol
    workload = workload_of(replace(config, protocol=protocol), batched=True)
    check_same(directory, conditions(before.slo, before.workload), conditions(slo_of(config), workload.record))
    return before
