"""A load test that another judge sends and decides, beside our verdict on the same requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loadgen.command.live import LiveView
from loadgen.command.measure import warm_up
from loadgen.command.verdict import LoadTestResult
from loadgen.errors import BadInput, Interrupted
from loadgen.judges import mlperf
from loadgen.measurement.request_log import RequestLog
from loadgen.options.load_test import LoadTestOptions
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.statistics.checks import judge as judge_log

LOADGEN_FOLDER = Path("mlperf-loadgen")
"""Where LoadGen's files go without --keep-log."""


def judged_order(order: LoadTest, options: LoadTestOptions) -> LoadTest:
    """Return the order as MLPerf LoadGen can carry it out. Raises BadInput for what does not apply to it."""
    refused = {
        "--concurrency": (options.concurrency is not None, "its queries do not wait for each other"),
        "--trace": (options.trace is not None, "it draws Poisson arrivals"),
        "--arrivals": (options.arrivals not in (None, "poisson"), "it draws Poisson arrivals"),
        "--max-in-flight": (options.max_in_flight is not None, "it holds no query back"),
        "--processes": (options.processes != 1, "it is one process"),
        "--master": (options.master, "it is one process on this machine"),
        "--find-max": (options.find_max, "it judges one rate"),
        "--fail-fast": (options.fail_fast, "it cannot end early"),
        "--accept-observed": (options.accept_observed, "its own verdict counts"),
        "--compare": (options.compare is not None, "it judges one run"),
        "--max-errors": (options.max_error_ratio is not None, "it knows no errors; they count as over the limit"),
    }
    for flag, (given, reason) in refused.items():
        if given:
            raise BadInput(
                f"{flag} does not apply to --judge mlperf: {reason}.",
                f"Leave {flag} or --judge out.",
            )
    limits, plan = order.limits.latency, order.plan
    if len(limits) != 1:
        given_limits = ", ".join(limit.text for limit in limits) or "none"
        raise BadInput(
            f"--judge mlperf judges one latency limit, and {given_limits} was given.",
            "Give one, such as --p99 50ms.",
        )
    assert isinstance(plan, LoadPlan)
    if order.is_long:
        raise BadInput(
            f"{plan.expected_requests:,.0f} queries are more than LoadGen is given, {order.most_kept:,}.",
            "Lower --rate or --duration.",
        )
    mlperf.check_installed()
    return replace(
        order,
        plan=replace(plan, arrivals=Arrivals(kind="mlperf")),
        arrivals_text="poisson, drawn by MLPerf LoadGen",
        judge="mlperf",
        outputs=replace(order.outputs, log=order.outputs.log or LOADGEN_FOLDER),
    )


def judged(order: LoadTest, view: LiveView, stop: Callable[[], bool]) -> LoadTestResult:
    """Warm up by ourselves, let LoadGen send and judge the load, and judge the same requests by our own rule.

    Raises Interrupted once `stop` is True: LoadGen's verdict is on whole runs.
    """
    plan, folder = order.plan, order.outputs.log
    assert isinstance(plan, LoadPlan)
    assert folder is not None
    [limit] = order.limits.latency

    def or_raise() -> bool:
        if stop():
            raise Interrupted(
                "Stopped.", "MLPerf LoadGen judges whole runs only: there is no verdict of this one."
            )
        return False

    def watch(log: RequestLog) -> bool:
        view.look(log)
        return or_raise()

    with LoadGenerator() as generator:
        warm_up(order, generator, view, or_raise)
    or_raise()
    with mlperf.loadgen_in(folder) as scratch:
        settings = mlperf.Settings(
            rate_per_s=plan.rate_per_s,
            duration_s=plan.duration_s,
            limit_ms=limit.limit_ms,
            quantile=limit.quantile,
            seed=plan.seed,
            folder=str(scratch),
        )
        with mlperf.mlperf_generator(settings) as generator:
            view.phase(f"MLPerf LoadGen measures {order.target.model_name}", plan.duration_s)
            run = generator.run(order.target, plan, payload=order.payload, limit_ms=limit.limit_ms, watch=watch)
        verdict = mlperf.read_verdict(scratch, settings, plan)
    verdict = verdict.model_copy(update={"folder": str(folder)})
    return LoadTestResult(run=run, checks=judge_log(run.log, order.limits), judge=verdict)
