"""Run `optimize` on a simulated server, in its time."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import typer
from simulated_bench import SimulatedBench

from loadgen.command.app import run_app
from model_repo.spec import ServingConfig
from optimizer.call_options import CallOptions
from optimizer.command import session
from optimizer.config import OptimizeConfig
from optimizer.machine.stalls import SchedulingStalls
from optimizer.run.pipeline import optimize
from search.records.recommendation import FrontEndsRecord, RecommendationRecord


def on_simulated(
    bench: SimulatedBench, *delays_ms: float, front_ends: FrontEndsRecord | None = None
) -> Callable[..., RecommendationRecord]:
    """Return `optimize` on this server, on a machine that stalls for so long, with these front ends."""

    def bench_for(config: Any, prepared: Any, workload: Any) -> nullcontext[Any]:
        bench.limit_ms, bench.workload = config.limits[0].limit_ms, workload
        return nullcontext(bench)

    def measure_machine(seconds: float) -> SchedulingStalls:
        return SchedulingStalls(seconds=seconds, delays_ms=(delays_ms or (0.0,),))

    def clock() -> float:
        return bench.spent.load_s + bench.spent.loading_s

    return partial(
        optimize,
        bench_for=bench_for,
        clock=clock,
        measure_machine=measure_machine,
        measure_front_ends=lambda config, prepared: front_ends,
    )


def exit_code_of(config: OptimizeConfig, call: CallOptions, search: Callable[..., RecommendationRecord]) -> int:
    """Return the exit code of the command with this configuration and this search."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise typer.Exit(session.run(config, [], call, search=search))

    return run_app(app, [], name="optimize", when_stopped="Go on.")


def interrupted_after(loadings: int) -> SimulatedBench:
    """Return a bench during whose loading of a configuration the user presses Ctrl-C."""

    def faults(config: ServingConfig) -> None:
        if len(bench.loaded) == loadings:
            os.kill(os.getpid(), signal.SIGINT)

    bench = SimulatedBench(faults=faults)
    return bench
