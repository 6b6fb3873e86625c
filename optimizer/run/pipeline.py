"""The whole flow: from a model and an SLO to the cheapest configuration that is certified to meet it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread

from deploy.plan import BundleOptions
from loadgen.errors import UserError
from loadgen.files import write_atomically
from model_repo.repository.write import write_final_repository
from model_repo.spec import Runtime
from optimizer.child import ChildFailed, call_in_child
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import hardware_label
from optimizer.machine.stalls import SchedulingStalls, check_quiet, measure_stalls
from optimizer.model_source import label_of
from optimizer.profiling.breakdown import time_use_of
from optimizer.run.bundle import bundle_run
from optimizer.run.front_ends import MeasureFrontEnds, measure_front_ends, with_protocol
from optimizer.run.own_model import AskServer
from optimizer.run.prepare import MODELS_FOLDER, Prepared, prepare, read_inputs
from optimizer.run.recommendation import (
    DIFF_FILE,
    REPOSITORY,
    outcome_of,
    recommendation_record,
    write_recommendation,
)
from optimizer.run.serving import checked_inputs, completed_configs, serving_bench
from optimizer.run.workers import workers_for
from optimizer.run.workload_inputs import checked_workload, keep_files, keep_input_data
from optimizer.run_file import objective_of, save_config, slo_of
from search.find_best import NothingFound, SearchRequest, find_best
from search.records.recommendation import RecommendationRecord, SecondsRecord, StageRecord, StepRecord
from search.simulator.server import compile_simulator, is_compiled
from search.study.storage import import_libraries
from search.trials import events
from search.trials.bench import RunBench, Spent
from search.trials.context import Budget
from search.trials.events import OnEvent, timed_step
from search.workload import Workload

log = logging.getLogger("tritune")

EXPLAINED_IN_S = 5.0
"""The layers of the answer are profiled until 5 s after the time budget, or left out."""


def optimize(
    config: OptimizeConfig,
    *,
    gpus: Sequence[str] = (),
    on_event: OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
    bench_for: Callable[[OptimizeConfig, Prepared, Workload], AbstractContextManager[RunBench]] | None = None,
    clock: Callable[[], float] = time.monotonic,
    measure_machine: Callable[[float], SchedulingStalls] = measure_stalls,
    ask_server: AskServer | None = None,
    preparing: Callable[[], AbstractContextManager[None]] = nullcontext,
    measure_front_ends: MeasureFrontEnds = measure_front_ends,
) -> RecommendationRecord:
    """Find, certify and write the recommendation. All files go to `config.output`, which must exist.

    `gpus` get workers of their own; see `gpus_for`. `bench_for` returns the bench, and `ask_server` the
    configuration of a user's own model, None for a real Triton; `clock` returns the seconds of the time budget;
    `measure_machine` watches this machine for some seconds, and `measure_front_ends` both protocols; `preparing`
    is entered until the server starts, as there is nothing to finish with before. Raises UserError: BadInput,
    MachineStalls or CannotMeasure if this machine is too noisy, and NothingFound if no rate is certified.
    """
    budget = Budget(total_s=config.time_budget_s, clock=clock)
    on_event = seconds = SecondsOfRun(on_event=on_event, clock=clock)
    on_event(events.PhaseStarted(name="prepare", detail=label_of(config.model)))
    given, config = config, keep_input_data(config)
    libraries = Thread(target=_prepare_libraries, daemon=True)
    with preparing():
        inputs = read_inputs(config, work_dir=config.output / MODELS_FOLDER, on_event=on_event)
        with timed_step(on_event, "check of the machine"):
            check_quiet(
                config.limits[0], despite_noise=config.despite_noise, on_event=on_event, measure=measure_machine
            )
        libraries.start()  # not before: it would be noise
        inputs = checked_inputs(config, inputs, on_event)
        ask = ask_server or partial(completed_configs, config)
        prepared = prepare(config, inputs, ask_server=ask, on_event=on_event)
        keep_files(config)
        workload = checked_workload(config, prepared.engines[0])
        libraries.join()  # it would be noise; and two threads that import the same may see half of it
        config, front_ends = with_protocol(config, prepared, measure_front_ends, on_event)
    save_config(replace(given, protocol=config.protocol), config.output)
    budget.begin_search()
    workload = replace(workload, record=workload.record.changed(protocol=config.protocol))
    request = _search_request(config, prepared, workload)
    versions: list[str | None] = []
    served = bench_for or partial(serving_bench, on_version=versions.append, on_event=on_event)
    bench = served(config, prepared, workload)
    on_event(events.StepStarted(step="start of the server"))
    workers = workers_for(config, prepared, gpus, on_event)
    try:
        with explained():
            result = find_best(
                request, seconds.watching(bench), workers, budget=budget, on_event=on_event, stop=stop
            )
    except NothingFound as nothing:
        outcome = outcome_of(config.output, nothing)
        if isinstance(outcome, RecommendationRecord):
            return outcome
        nothing.what = outcome.status_reason  # the same on the terminal
        raise
    on_event(events.PhaseStarted(name="finish"))
    time_use = time_use_of(
        result.winner,
        result.baseline,
        # Whoever asks to finish does not wait for the layers, and those of another machine are not known.
        model=None if stop() or config.server == "remote" else prepared.model,
        seed=config.seed,
        input_data=config.input_data,
        most_s=max(0.0, budget.total_s - budget.elapsed_s() + EXPLAINED_IN_S),
        on_event=on_event,
    )
    found = recommendation_record(
        config,
        prepared,
        workload,
        result,
        seconds=seconds.record(result.seconds(budget.elapsed_s())),
        time_use=time_use,
        front_ends=front_ends,
        triton_version=next(iter(versions), None),
    )
    # A native backend needs none of our files; with those of the Python backend the repository also starts here.
    runtime: Runtime = "slots" if found.runtime.runtime == "slots" else "python"
    with explained():
        write_final_repository(config.output / REPOSITORY, result.winner.served, runtime=runtime)
    if found.config_diff:
        write_atomically(config.output / DIFF_FILE, found.config_diff)
    write_recommendation(config.output, found)
    _write_bundle(config, on_event)
    return found


def _prepare_libraries() -> None:
    """Import what the search takes seconds to import; a child compiles its simulator, if no run has done so."""
    import_libraries()
    if not is_compiled():
        with suppress(ChildFailed, OSError):
            call_in_child(compile_simulator)


def _search_request(config: OptimizeConfig, prepared: Prepared, workload: Workload) -> SearchRequest:
    return SearchRequest(
        space=prepared.space,
        directory=config.output,
        slo=slo_of(config),
        price=prepared.price,
        seed=config.seed,
        objective=objective_of(config),
        workload=workload,
        rate_to_serve_per_s=config.rate_to_serve_per_s,
        peak_rate_per_s=config.peak_rate_per_s,
        hardware=hardware_label(prepared.machine),
        storage=config.storage,
        study=config.study,
        despite_noise=config.despite_noise,
        ignore_slow_phases=config.ignore_slow_phases,
    )


def _write_bundle(config: OptimizeConfig, on_event: OnEvent) -> None:
    """Write the deployment bundle; if that fails, emit a note, as the recommendation is valid without it."""
    try:
        bundle_run(config.output, target="all", options=BundleOptions())
    except UserError as error:
        on_event(events.Note(text=f"No deployment bundle was written: {error.what} {error.fix}", warning=True))
    except Exception as error:
        log.exception("no bundle")
        on_event(events.Note(text=f"No deployment bundle was written: {error}", warning=True))


@dataclass(slots=True, kw_only=True)
class SecondsOfRun:
    """An event handler that adds up wall time, and passes every event on.

    A stage lasts from its `PhaseStarted` to the next one; stages may alternate. `clock` returns seconds.
    """

    on_event: OnEvent
    clock: Callable[[], float] = time.monotonic
    _bench: RunBench | None = field(default=None, init=False)
    _steps: list[StepRecord] = field(default_factory=list, init=False)
    _begun: list[tuple[str, float, Spent]] = field(default_factory=list, init=False)

    def __call__(self, event: events.Event) -> None:
        """Take note of the event, and pass it on."""
        match event:
            case events.PhaseStarted():
                self._begun.append((event.name, *self._now()))
            case events.StepEnded():
                self._steps.append(StepRecord(step=event.step, seconds=event.seconds, cached=event.cached))
        self.on_event(event)

    @contextmanager
    def watching(self, bench: AbstractContextManager[RunBench]) -> Iterator[RunBench]:
        """Enter `bench`, whose load and loading are added to the stages from now on."""
        with bench as entered:
            self._bench, before = entered, replace(entered.spent)
            self._begun = [(name, at_s, before) for name, at_s, _ in self._begun]
            yield entered

    def record(self, seconds: SecondsRecord) -> SecondsRecord:
        """Return `seconds` with the steps and stages until now."""
        stages: dict[str, StageRecord] = {}
        ends = [(at_s, spent) for _, at_s, spent in self._begun[1:]] + [self._now()]
        for (name, began_s, before), (ended_s, spent) in zip(self._begun, ends, strict=False):
            known = stages.get(name, StageRecord(stage=name, seconds=0.0, load=0.0, loading_models=0.0))
            stages[name] = known.changed(
                seconds=known.seconds + max(0.0, ended_s - began_s),
                load=known.load + spent.load_s - before.load_s,
                loading_models=known.loading_models + spent.loading_s - before.loading_s,
            )
        return seconds.changed(preparation=tuple(self._steps), stages=tuple(stages.values()))

    def _now(self) -> tuple[float, Spent]:
        return self.clock(), Spent() if self._bench is None else replace(self._bench.spent)
