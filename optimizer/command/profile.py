"""`optimize profile`: a run's recommendation under its rate, with everything that happens on one clock."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from deploy.render import REPOSITORY
from loadgen.console import SafeConsole, print_result
from loadgen.errors import BadInput, UserError
from loadgen.files import write_atomically
from loadgen.processes import scratch_folder
from loadgen.records.formats import format_ms, format_percent, format_rate
from loadgen.reports.kit import (
    NUMBER,
    Bar,
    Card,
    Cell,
    Report,
    Section,
    Table,
    page,
    table_of_texts,
    terminal_table,
)
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target
from model_repo.server.hosts import serve_repository
from model_repo.server.options import TRACE_FILE, ServerOptions
from optimizer.call_options import ProfileOptions
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import hardware
from optimizer.profiling import timeline
from optimizer.run.serving import request_timeout_s
from optimizer.run.workload_inputs import kept_input_data, payload_with, workload_of
from optimizer.run_file import saved_config, slo_of
from search.records.recommendation import RecommendationRecord
from search.records.run_files import from_here, named_run, read_recommendation

WARM_UP_S, WINDOW_S, MOST_REQUESTS = 1.0, 2.0, 40_000
"""After a second, two seconds are looked at, or the time of 40,000 requests: Triton's trace has 1 kB of each."""

WRITTEN_WITHIN_S = 60.0
"""The runtimes may take a minute to write what the GPU did, and Triton to write its trace when it ends."""

ATTEMPTS = 3
"""Triton 2.51 crashed while it unloaded the model, before it wrote its trace, in 2 of 190 runs."""

NAMED = 44  # characters of a kernel's name, so that its row fits a terminal of 80 columns


def profile_run(given: ProfileOptions) -> None:
    """Write the trace file and the page of its sums, and print the sums. Raises UserError."""
    directory = named_run(given.run)
    found, config = read_recommendation(directory), kept_input_data(saved_config(directory))
    output = given.timeline or directory / "timeline.json"
    if not (directory / REPOSITORY).is_dir() or config.with_models:
        raise BadInput(
            f"{directory} holds no model repository of one model that the embedded server takes.",
            "Give the output directory of a run of --server embedded, without --with-model.",
        )
    console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
    with scratch_folder("timeline") as folder, explained():
        plan = _plan(found, config)
        console.print(f"Serving {found.model.name} without tracing")
        plain = _loaded(found, config, plan, folder / "plain", traced=False)
        for attempt in range(ATTEMPTS):
            console.print(f"Serving {found.model.name} with tracing{' again' if attempt else ''}")
            written = folder / f"traced-{attempt}"
            traced = _loaded(found, config, plan, written, traced=True)
            if (written / TRACE_FILE).exists():
                break
        line, missing = _timeline(found, written, traced)
    report = _report(found, line, (plain, traced), missing, (directory, output))
    try:
        write_atomically(output, timeline.trace_text(timeline.trace_events(line)))
        write_atomically(output.with_suffix(".html"), page(report))
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}.", "Give another --timeline FILE.") from error
    for problem in print_result(lambda: "", lambda: _view(report, output)):
        raise problem


def _plan(found: RecommendationRecord, config: OptimizeConfig) -> LoadPlan:
    assert found.winner.certificate is not None
    rate_per_s = found.winner.certificate.rate_per_s
    return LoadPlan(
        rate_per_s=rate_per_s,
        duration_s=WARM_UP_S + min(WINDOW_S, MOST_REQUESTS / rate_per_s),
        seed=config.seed,
        arrivals=workload_of(config, batched=found.winner.config.max_batch_size > 0).arrivals,
        timeout_s=request_timeout_s(slo_of(config)),
        most_send_lag_ms=math.inf,
    )


def _loaded(
    found: RecommendationRecord, config: OptimizeConfig, plan: LoadPlan, folder: Path, *, traced: bool
) -> LoadRun:
    """Serve the run's repository, and send the load; return the window, whose traces `folder` then has."""
    folder.mkdir()
    options = ServerOptions(
        run_dir=folder,
        gpu=bool(hardware().gpus),
        shared_memory=config.shared_memory == "system",
        timeline=folder if traced else None,
        exit_grace_s=WRITTEN_WITHIN_S,
    )
    with (
        serve_repository(config.output / REPOSITORY, options) as server,
        LoadGenerator(max(1, len(os.sched_getaffinity(0)) // 2)) as generator,
    ):
        (folder / "begin").touch()
        target = Target(url=server.endpoint.url(found.workload.protocol), model_name=found.model.name)
        run = generator.run(target, plan, payload=payload_with(config, config.shapes))
        (folder / "end").touch()
        deadline_s = time.monotonic() + WRITTEN_WITHIN_S
        while any(folder.glob("recording-*")) and time.monotonic() < deadline_s:
            time.sleep(0.05)
    log = run.log.between(WARM_UP_S, plan.duration_s)
    if not len(log) or log.failed.all():
        raise UserError(
            f"{found.model.name} answered no request at {format_rate(plan.rate_per_s)}/s.",
            f"Try it by itself: optimize serve {shlex.quote(str(config.output))}",
        )
    return replace(run, log=log)


def _timeline(found: RecommendationRecord, folder: Path, load: LoadRun) -> tuple[timeline.Timeline, str]:
    """Return the timeline of a traced load, and why the GPU's part is missing; "" if it is not."""
    if not (folder / TRACE_FILE).exists():
        raise UserError("Triton wrote no trace.", "Run `optimize doctor` to see if this server is complete.")
    served, executions = timeline.read_trace(folder / TRACE_FILE, found.model.name, found.workload.protocol)
    requests = timeline.joined(load.log, load.began_ns, served)
    start_ns, end_ns = int(requests[0, 0]), int(requests[-1, 0])
    gpus = len(found.machine.gpus)
    return timeline.Timeline(
        start_ns=start_ns,
        end_ns=end_ns,
        instances=found.winner.config.instance_count * max(1, gpus),
        requests=requests,
        executions=executions[(executions[:, 3] > start_ns) & (executions[:, 0] < end_ns)],
        on_gpu=gpus > 0,
        **timeline.device_spans(folder, start_ns, end_ns),
    ), next((path.read_text() for path in sorted(folder.glob("missing-*"))), "")


def _report(
    found: RecommendationRecord,
    line: timeline.Timeline,
    loads: tuple[LoadRun, LoadRun],
    missing: str,
    paths: tuple[Path, Path],
) -> Report:
    """Return the page of the sums; `loads` without and with tracing, `paths` of the run and of the trace file."""
    sums, seconds = timeline.sums_of(line), (line.end_ns - line.start_ns) / 1e9
    directory, output = (shlex.quote(str(from_here(path))) for path in paths)
    without_ms, with_ms = (
        [format_ms(ns / 1e6) for ns in np.quantile(load.log.latency_failures_last_ns, (0.5, 0.99))]
        for load in loads
    )
    caveats = []
    if sums.graph_share is not None:
        caveats.append(f"{format_percent(sums.graph_share)} of the kernels' time is under CUDA graphs.")
    if sums.overlapped_share is not None:
        caveats.append(f"{format_percent(sums.overlapped_share)} of the copies' time is beside kernels.")
    costs = f"p50 {with_ms[0]} instead of {without_ms[0]} ms, p99 {with_ms[1]} instead of {without_ms[1]} ms"
    caveats.append(f"What tracing costs: {costs}.")
    if missing:
        caveats.append(f"What the GPU did is not known: {missing}. Run: pip install cupti-python")
    whole_ms = sum(mean for mean, _ in sums.stages.values())
    of_request = {name: mean / whole_ms for name, (mean, _) in sums.stages.items()}
    shares = {
        "A request": of_request,
        f"{line.instances} instances": sums.instances,
        "The GPU" if line.on_gpu else "Operators of ONNX Runtime": sums.device,
    }
    compared = tuple(
        (title, tuple(Bar(name=name, text=format_percent(part), share=part) for name, part in parts.items()))
        for title, parts in shares.items()
        if parts
    )
    stages = [
        (name, (format_ms(mean), format_percent(of_request[name]), format_ms(high)))
        for name, (mean, high) in sums.stages.items()
    ]
    longest_work = [
        (name[:NAMED], (format_percent(part), f"{count:,}", f"{mean_us:,.1f}"))
        for name, part, count, mean_us in sums.top
    ]
    serve = f"optimize serve {directory} --port 8000"
    return Report(
        title=f"Timeline of {found.model.name}",
        subject=f"{found.model.name} · {', '.join(found.machine.gpus) or found.machine.cpu}",
        headline=f"{sums.requests:,} requests in {seconds:.2g} s, {sums.requests_per_execution:.3g} in an "
        f"execution. The longest stage: {max(of_request, key=of_request.__getitem__)}",
        card=Card(
            title="Open the trace",
            code=output,
            note="In https://ui.perfetto.dev or chrome://tracing.",
            compared=compared,
        ),
        lead=(f"Of {directory}, at its certified rate.",),
        caveats=tuple(caveats),
        sections=[
            Section(title="A request", table=_figures(("stage", "mean ms", "share", "p99 ms"), stages)),
            *(
                Section(title=title, table=_figures(("", "share"), [(bar.name, (bar.text,)) for bar in bars]))
                for title, bars in compared[1:]
            ),
            Section(
                title=f"Longest {'kernels' if line.on_gpu else 'operators'}",
                table=_figures(("name", "share", "count", "mean us"), longest_work) if longest_work else None,
                commands=(
                    ("Systems", f"nsys profile --trace=cuda,osrt --cuda-graph-trace=node -o timeline {serve}"),
                    ("Kernels", f"ncu --target-processes all --launch-count 50 -o kernels {serve}"),
                )
                if line.on_gpu
                else (),
            ),
        ],
        footer="tritune",
    )


def _figures(headings: tuple[str, ...], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    return table_of_texts(headings, [(name, [Cell(text=one, style=NUMBER) for one in of]) for name, of in rows])


def _view(report: Report, output: Path) -> RenderableType:
    """Return the same for the terminal."""
    parts: list[RenderableType] = [Text(report.headline, style="bold"), ""]
    for section in report.sections:
        if section.table is not None:
            parts += [Text(section.title, style="bold"), terminal_table(section.table), ""]
        parts += [Text(f"{purpose}: {command}") for purpose, command in section.commands]
    trace = f"Trace  {from_here(output)} (for https://ui.perfetto.dev or chrome://tracing)"
    parts += map(Text, (*report.caveats, trace, f"Page   {from_here(output.with_suffix('.html'))}"))
    return Group(*parts)
