"""`optimize autoscale`: a day of traffic on a run's recommendation, under many settings of its autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from deploy.autoscaler import Behavior
from deploy.day import (
    STEP_S,
    Day,
    Replica,
    autoscaled,
    by_minute,
    candidates,
    cheapest,
    fixed,
    foreseen,
    replica_of,
)
from deploy.scaling import DEFAULT_MAX_REPLICAS, scaling_for, start_of, traffic_from
from loadgen.console import SafeConsole, print_result
from loadgen.errors import BadInput
from loadgen.files import write_atomically
from loadgen.records.formats import format_dollars, format_percent, format_rate, format_seconds
from loadgen.reports import kit
from loadgen.spec.limits import quantile_name
from optimizer.call_options import AutoscaleOptions
from optimizer.command.day_traffic import due_per_second
from optimizer.run.bundle import winner_of
from optimizer.run.workload_inputs import kept_input_data, workload_of
from optimizer.run_file import saved_config, slo_of
from search.arrays import Floats
from search.cost.cost import replicas
from search.knobs import KNOBS
from search.records.autoscale import AUTOSCALE_FILE, AutoscaleRecord, FleetDayRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import from_here, named_run, read_recommendation
from search.simulator.service_times_file import read_curves
from search.simulator.surrogate import Surrogate
from search.space import MachineLimits, SearchSpace, knobs_of

LEAST = 2
"""Replicas that there are always, unless the user wants fewer: one may be drained or lose its node."""

NOTE = (
    "Window: the time that must not have needed a replica before it is removed. Minutes over: those with more "
    "than {allowed} of the requests late. Cost: of all replicas from their start on. Recommended: the cheapest of "
    "{tried} settings that keep the limit. Bundle's rule: what optimize bundle does without this replay. Fixed "
    "fleet: enough for the peak at the certified rate. Foresight: as many as each second needs, at once."
)
NOTICED = 1e-4  # a smaller share of late requests is not told apart


def autoscale_run(given: AutoscaleOptions) -> None:
    """Replay the traffic, write the record and the page, and print the table. Raises UserError."""
    directory = named_run(given.run)
    found = read_recommendation(directory)
    due_per_s = due_per_second(given.traffic)
    replica = _replica(directory, found)
    SafeConsole(stderr=True, highlight=False).print(
        f"Replaying {format_seconds(len(due_per_s) * STEP_S)} of traffic"
    )
    record, *days = _replayed(given, found, due_per_s, replica)
    report = _report(found, record, days, replica, directory)
    output = directory / AUTOSCALE_FILE
    write_atomically(output, record.model_dump_json(indent=2) + "\n")
    write_atomically(output.with_suffix(".html"), kit.page(report))
    view = None if given.json else partial(_view, report, output)
    for problem in print_result(lambda: record.model_dump_json(indent=2) + "\n", view):
        raise problem


def _replica(directory: Path, found: RecommendationRecord) -> Replica:
    """Return the simulated server of the recommendation, at its measured capacity. Raises BadInput."""
    config, winner = kept_input_data(saved_config(directory)), winner_of(directory, found)
    capacity_per_s = found.winner.rate_at_limit_per_s or 0.0
    limit = found.slo.first
    surrogate = Surrogate(
        space=SearchSpace(
            engines=(winner.engine,),
            values={name: (int(knob.read(winner)),) for name, knob in KNOBS.items()},
            limits=MachineLimits(cores=found.machine.cores, memory_bytes=found.machine.memory_bytes),
        ),
        slo=slo_of(config),
        seed=config.seed,
        workload=workload_of(config, batched=winner.max_batch_size > 0),
        curves=read_curves(directory),
    )
    if winner.members or not surrogate.profiled(knobs_of(winner)) or not capacity_per_s > 0:
        raise BadInput(
            f"{directory} has no service times of its recommendation: ensembles and old versions have none.",
            "Give a run of one model that this version of tritune has profiled.",
        )
    try:
        return replica_of(surrogate.server(winner), limit, capacity_per_s=capacity_per_s, seed=config.seed)
    except ValueError as error:
        raise BadInput(
            f"The service times in {directory} do not meet {limit.limit_ms:g} ms at any rate.",
            "Repeat the run, on a machine without other work.",
        ) from error


def _replayed(
    given: AutoscaleOptions, found: RecommendationRecord, due_per_s: Floats, replica: Replica
) -> tuple[AutoscaleRecord, Day, Day]:
    """Return the record, and the days of the best settings and of perfect foresight. Raises BadInput."""
    assert found.winner.certificate is not None
    certified_per_s, allowed = found.winner.certificate.rate_per_s, found.slo.first.allowed
    mean, peak = float(due_per_s.mean()), float(due_per_s.max())
    needed, usual = replicas(peak, certified_per_s), replicas(mean, certified_per_s)
    most = given.max_replicas or min(2 * needed + 2, DEFAULT_MAX_REPLICAS)
    if needed > most:
        raise BadInput(
            f"A peak of {format_rate(peak)}/s needs {needed:,} replicas, more than the limit of {most:,}.",
            "Raise --max-replicas, or give other traffic.",
        )
    served = found.served.replica_start_s if found.served is not None else None
    start_s, _ = start_of(given.replica_start_s, served)

    def row(name: str, day: Day, behavior: Behavior | None = None) -> FleetDayRecord:
        return FleetDayRecord(
            name=name,
            target_rate_per_s=None if behavior is None else behavior.target_per_s,
            down_window_s=None if behavior is None else behavior.down_window_s,
            min_replicas=int(day.replicas.min()) if behavior is None else behavior.min_replicas,
            max_replicas=int(day.replicas.max()) if behavior is None else behavior.max_replicas,
            late_share=day.late_share,
            minutes_over=day.minutes_over(allowed),
            replica_hours=day.replica_hours,
            usd=day.replica_hours * found.cost.price.usd_per_hour,
        )

    least = (given.min_replicas,) if given.min_replicas else (LEAST, usual + 1, needed)
    tried = candidates(certified_per_s, least, most)
    behavior, chosen = cheapest(due_per_s, replica, tried, start_s=start_s, allowed=allowed)
    traffic = traffic_from(certified_rate_per_s=certified_per_s, rate_per_s=mean, peak_rate_per_s=peak)
    rule = scaling_for(traffic, certified_rate_per_s=certified_per_s, start_s=start_s, max_replicas=10**6)
    of_rule = Behavior(
        target_per_s=rule.target_rate_per_s, min_replicas=rule.min_replicas, max_replicas=rule.max_replicas
    )
    perfect = fixed(due_per_s, replica, foreseen(due_per_s, replica))
    record = AutoscaleRecord(
        traffic=Path(given.traffic).name,
        duration_s=len(due_per_s) * STEP_S,
        mean_rate_per_s=mean,
        peak_rate_per_s=peak,
        capacity_per_s=replica.capacity_per_s,
        start_s=start_s,
        allowed_share=allowed,
        settings_tried=len(tried),
        kept=chosen.late_share <= allowed,
        chosen=row("recommended", chosen, behavior),
        others=(
            row("bundle's rule", autoscaled(due_per_s, replica, of_rule, start_s=start_s), of_rule),
            row("fixed fleet", fixed(due_per_s, replica, np.full(len(due_per_s), needed))),
            row("foresight", perfect),
        ),
    )
    return record, chosen, perfect


def _late(share: float) -> str:
    return f"< {format_percent(NOTICED)}" if 0 < share < NOTICED else format_percent(share)


def _table_of(record: AutoscaleRecord) -> kit.Table:
    rows = []
    for one in (record.chosen, *record.others):
        window = "-" if one.down_window_s is None else format_seconds(one.down_window_s)
        figures = (
            format_rate(one.target_rate_per_s),
            f"{one.min_replicas:,} to {one.max_replicas:,}",
            window,
            _late(one.late_share),
            f"{one.minutes_over:,}",
            format_dollars(one.usd),
        )
        rows.append((one.name, [kit.Cell(text=figure, style=kit.NUMBER) for figure in figures]))
    return kit.table_of_texts(("", "target/s", "replicas", "window", "late", "minutes over", "cost"), rows)


def _report(
    found: RecommendationRecord, record: AutoscaleRecord, days: Sequence[Day], replica: Replica, directory: Path
) -> kit.Report:
    """Return the page; `days` are those of the best settings and of perfect foresight."""
    chosen, first, price = record.chosen, found.slo.first, found.cost.price
    limit = f"{quantile_name(first.quantile)} within {first.limit_ms:g} ms"
    settings = f"One replica for each {format_rate(chosen.target_rate_per_s)}/s, at least {chosen.min_replicas}"
    headline = f"{settings}: {_late(chosen.late_share)} late, {format_dollars(chosen.usd)}"
    if not record.kept:
        headline = (
            f"No settings keep {format_percent(record.allowed_share)} late; the best of {record.settings_tried} "
            f"have {format_percent(chosen.late_share)}"
        )
    duration = format_seconds(record.duration_s)
    mean, peak = format_rate(record.mean_rate_per_s), format_rate(record.peak_rate_per_s)
    capacity, start = format_rate(record.capacity_per_s), format_seconds(record.start_s)
    usd = format_dollars(price.usd_per_hour)
    day = f"{record.traffic}: {duration}, {mean} requests/s on average, {peak} at most. Limit: {limit}."
    does = f"A replica can do {capacity}/s at the machine's usual speed, and starts in {start}."
    costs = f"It costs {usd} an hour ({price.describes})."
    advice = (
        f"optimize bundle {from_here(directory)} uses these settings."
        if record.kept
        else "Quicker replicas (--replica-start), more of them (--min-replicas) or a lower target help; "
        "optimize bundle does not use these settings."
    )
    return kit.Report(
        title=f"Autoscaling of {found.model.name}",
        subject=f"{found.model.name} · {record.traffic}",
        headline=headline,
        tone="met" if record.kept else "violated",
        lead=(day, does, costs),
        caveats=(advice,),
        sections=[
            kit.Section(
                title="Settings",
                table=_table_of(record),
                note=NOTE.format(allowed=format_percent(record.allowed_share), tried=record.settings_tried),
            ),
            kit.Section(
                title="The traffic, minute by minute",
                plot=("day", _plot(found, days, replica)),
                caption="The replicas that exist, those that perfect foresight would have, and the latency at the "
                "limit's quantile in the slowest second of each minute, all by simulation.",
            ),
        ],
        footer="tritune",
    )


def _plot(found: RecommendationRecord, days: Sequence[Day], replica: Replica) -> kit.Data:
    day, perfect = days
    latency_ms = np.interp(day.due_per_s / np.maximum(1, day.ready), replica.loads_per_s, replica.latency_ms)
    latency_ms += 1e3 * day.waits_s
    seconds = np.bincount(np.arange(len(latency_ms)) // round(60 / STEP_S))
    starts = np.cumsum(seconds) - seconds
    rows = zip(
        starts * STEP_S / 3600,
        by_minute(day.due_per_s) / seconds,
        day.replicas[starts],
        perfect.replicas[starts],
        np.maximum.reduceat(latency_ms, starts),
        strict=True,
    )
    names = ("hour", "rate", "replicas", "perfect", "ms")
    limit = found.slo.first
    return {
        "minutes": [dict(zip(names, map(float, row), strict=True)) for row in rows],
        "limits": [{"ms": limit.limit_ms, "name": f"{quantile_name(limit.quantile)} limit"}],
    }


def _view(report: kit.Report, output: Path) -> RenderableType:
    """Return the same for the terminal."""
    table = report.sections[0].table
    assert table is not None
    lines = (report.sections[0].note, *report.lead, *report.caveats)
    page_line = f"Page  {from_here(output.with_suffix('.html'))}"
    return Group(
        Text(report.headline, style="bold"), "", kit.terminal_table(table), "", *map(Text, (*lines, page_line))
    )
