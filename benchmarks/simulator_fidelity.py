"""Compare the simulator's capacity with that of the real server, over a grid of configurations.

    python benchmarks/simulator_fidelity.py sleep RESULTS.jsonl [--seconds 170]
    python benchmarks/simulator_fidelity.py cnn RESULTS.jsonl [--seconds 170]
    python benchmarks/simulator_fidelity.py report RESULTS.jsonl...

`sleep` serves a Python model that sleeps for 5 ms and 0.8 ms more per request: differences then come from the
batching rule. `cnn` serves examples/small_cnn.py as `optimize` does. Execution times are measured once for each
number of instances, with closed loops; all predictions follow from these. Each configuration is a line of RESULTS,
and existing lines are not measured again, so a long session can be cut into pieces of `--seconds`. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from loadgen.spec.limits import LatencyLimit

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from lib.raw_lines import add_line, lines_of
from lib.sleeping_model import Law, sleeping_engine

from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target
from loadgen.statistics.find_capacity import find_capacity
from loadgen.statistics.probe import Probe
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server, serve
from model_repo.spec import Engine, ServingConfig
from search.simulator.capacity import rate_at_limit
from search.simulator.replay import replayed_slowdown
from search.simulator.server import SimulatedServer
from search.simulator.service_times import ClosedLoop, ServiceCurve, ServiceTimes, measure_curve
from search.workload import unit_arrivals

CAPACITY_S = 14.0
PROFILE_S = 12.0
RESOLUTION = 0.01
LAW = Law(0.005, 0.0008)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    max_batch: int
    instances: int
    delay_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    limit_ms: float
    settings: tuple[Setting, ...]


def grid(max_batches: tuple[int, ...], instances: tuple[int, ...], delays_us: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(
        Setting(max_batch=b, instances=k, delay_us=d) for d, k, b in product(delays_us, instances, max_batches)
    )


GRIDS = {
    "sleep": Grid(limit_ms=50.0, settings=grid((2, 8, 16), (1, 2, 3), (0, 2000, 5000))),
    "cnn": Grid(limit_ms=50.0, settings=grid((2, 8, 32), (1, 2, 3), (0, 1000, 5000))),
}


class Bench:
    """The served model, under load."""

    def __init__(
        self,
        server: Server,
        generator: LoadGenerator,
        model: str,
        limit_ms: float,
        load: Callable[[Setting], None],
    ) -> None:
        self._server, self._generator, self._model, self._limit_ms = server, generator, model, limit_ms
        self.load: Callable[[Setting], None] = load
        self.runs: list[tuple[float, RequestLog]] = []

    def saturate(self, concurrency: int, duration_s: float, seed: int) -> ClosedLoop:
        plan = ClosedLoopPlan(concurrency=concurrency, duration_s=duration_s, seed=seed)
        run = self._generator.run(self._target(), plan)
        batches = run.measurement.server.batches if run.measurement.server else ()
        return ClosedLoop(concurrency=concurrency, log=run.log, batches=batches)

    def measure(
        self, rate_per_s: float, duration_s: float, seed: int, watch: Callable[[RequestLog], bool] | None = None
    ) -> Probe:
        plan = LoadPlan(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)
        run = self._generator.run(self._target(), plan, limit_ms=self._limit_ms, watch=watch)
        self.runs.append((rate_per_s, run.log))
        return Probe(log=run.log, overloaded=run.stopped == "overloaded", problems=tuple(run.measurement.problems))

    def _target(self) -> Target:
        endpoint = self._server.endpoint
        return Target(url=endpoint.url("http"), model_name=self._model, headers=endpoint.headers("http"))


def sleep(folder: Path) -> Engine:
    return sleeping_engine(folder, LAW)


def cnn(folder: Path) -> Engine:
    from small_cnn import main as write_cnn

    from optimizer.engines.candidates import onnxruntime_engine
    from optimizer.model.onnx_model import read_model

    write_cnn(folder / "small_cnn.onnx")
    return onnxruntime_engine(read_model(folder / "small_cnn.onnx"))


@contextmanager
def serving(engine: Engine, folder: Path, limit_ms: float) -> Iterator[Bench]:
    with serve(ServerOptions(run_dir=folder)) as server, LoadGenerator() as generator:

        def load(setting: Setting) -> None:
            server.load(
                ServingConfig(
                    engine=engine,
                    max_batch_size=setting.max_batch,
                    instance_count=setting.instances,
                    max_queue_delay_us=setting.delay_us,
                    intra_op_threads=1,
                )
            )

        yield Bench(server, generator, engine.model_name, limit_ms, load)


ENGINES = {"sleep": sleep, "cnn": cnn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*GRIDS, "report"])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=170.0, help="no configuration is begun later than that")
    options = parser.parse_args()
    if options.what == "report":
        for path in options.results:
            report(lines_of(path))
        return
    run(options.what, options.results[0], until=time.monotonic() + options.seconds)


def run(model: str, path: Path, *, until: float) -> None:
    """Measure the configurations that are missing in the file, while there is time."""
    done = [line for line in lines_of(path) if line["model"] == model]
    measured = {Setting(**line["setting"]) for line in done if line["kind"] == "rate"}
    left = [setting for setting in GRIDS[model].settings if setting not in measured]
    limit_ms = GRIDS[model].limit_ms
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(ENGINES[model](Path(folder)), Path(folder), limit_ms) as bench,
    ):
        for instances in sorted({setting.instances for setting in GRIDS[model].settings}):
            if curve_of(done, instances) is None and time.monotonic() + PROFILE_S < until:
                done.append(append(path, profiled(bench, model, instances, alone=curve_of(done, 1))))
        for setting in left:
            if time.monotonic() + CAPACITY_S + 2 > until:
                break
            if curve_of(done, setting.instances) is not None:
                append(path, compared(bench, model, setting, done))


def profiled(bench: Bench, model: str, instances: int, *, alone: ServiceCurve | None) -> dict[str, Any]:
    largest = max(setting.max_batch for setting in GRIDS[model].settings)
    bench.load(Setting(max_batch=largest, instances=instances, delay_us=0))
    started = time.monotonic()
    curve = measure_curve(
        bench.saturate,
        instances=instances,
        max_batch_size=largest,
        limit_s=GRIDS[model].limit_ms / 1e3,
        seed=1,
        alone=alone,
    )
    return {"kind": "profile", "model": model, "seconds": time.monotonic() - started, "curve": asdict(curve)}


def compared(bench: Bench, model: str, setting: Setting, done: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the predicted and the measured capacity of one configuration."""
    limit_ms = GRIDS[model].limit_ms
    server = predicted_server(setting, done)
    predicted = rate_at_limit(server, (LatencyLimit(limit_ms=limit_ms),), unit_arrivals(1))
    bench.load(setting)
    bench.runs.clear()
    found = find_capacity(
        bench.measure,
        limits=(LatencyLimit(limit_ms=limit_ms),),
        budget_s=CAPACITY_S,
        seed=7,
        start_rate_per_s=max(predicted, 1.0),
        resolution=RESOLUTION,
    )
    # Without the caution that a certified rate needs: the middle of what is known.
    middle_per_s = None if found.known is None else found.known.quantile(0.5)
    _, log = min(bench.runs, key=lambda run: abs(math.log(run[0] / (middle_per_s or predicted))))
    slowdown = replayed_slowdown(server, log.scheduled_ns / 1e9, log.latency_ns / 1e9)
    return {
        "kind": "rate",
        "model": model,
        "setting": asdict(setting),
        "predicted_per_s": predicted,
        "measured_per_s": middle_per_s,
        "measured_error": None if found.known is None else found.known.error,
        "outcome": found.outcome,
        "slowdown": slowdown,  # of the run nearest to the limit
        "load_s": found.load_s,
        "probes": [[seen.rate_per_s, seen.verdict.violations, seen.verdict.n] for seen in found.probes],
        "problems": sorted({problem for seen in found.probes for problem in seen.problems}),
    }


def predicted_server(setting: Setting, done: list[dict[str, Any]]) -> SimulatedServer:
    """Return the predicted server, from the curves of one instance and of all instances of the configuration."""
    busy = sorted({1, setting.instances})
    curves = [curve for curve in (curve_of(done, k) for k in busy) if curve is not None]
    times = ServiceTimes(curves=tuple(curves))
    return SimulatedServer(
        service_s=times.table(setting.max_batch, setting.instances),
        overhead_s=times.overhead_s,
        noise=times.noise,
        max_queue_delay_s=setting.delay_us / 1e6,
    )


def curve_of(done: list[dict[str, Any]], instances: int) -> ServiceCurve | None:
    for line in done:
        if line["kind"] == "profile" and line["curve"]["busy"] == instances:
            lists = {name: tuple(value) for name, value in line["curve"].items() if isinstance(value, list)}
            return ServiceCurve(**{**line["curve"], **lists})
    return None


def append(path: Path, line: dict[str, Any]) -> dict[str, Any]:
    add_line(path, line)
    print(json.dumps({name: line.get(name) for name in ("kind", "setting", "predicted_per_s", "measured_per_s")}))
    return line


def report(lines: list[dict[str, Any]]) -> None:
    """Print a table per model, and the errors: median and 90th percentile of their absolute values."""
    for model in sorted({line["model"] for line in lines}):
        mine = [line for line in lines if line["model"] == model]
        errors, scales, rules = [], [], []
        columns = "batch x instances, delay | predicted | measured (se) | error | slowdown | as slow as then"
        print(f"\n{model}\n\n| {columns} |")
        print("|---|---|---|---|---|---|")
        for line in mine:
            if line["kind"] != "rate":
                continue
            setting = Setting(**line["setting"])
            limits = (LatencyLimit(limit_ms=GRIDS[model].limit_ms),)
            server = predicted_server(setting, mine)
            predicted = rate_at_limit(server, limits, unit_arrivals(1))
            name = f"{setting.max_batch} x {setting.instances}, {setting.delay_us / 1000:g} ms"
            measured = line["measured_per_s"]
            if measured is None:
                print(f"| {name} | {predicted:.0f} | {line['outcome']} | - | - | - |")
                continue
            slowdown = line["slowdown"]
            errors.append(math.log(predicted / measured))
            scales.append(math.log(slowdown))
            rules.append(math.log(rate_at_limit(server.slowed(slowdown), limits, unit_arrivals(1)) / measured))
            print(
                f"| {name} | {predicted:.0f} | {measured:.0f} ({100 * line['measured_error']:.1f} %) "
                f"| {100 * errors[-1]:+.1f} % | {slowdown:.3f} | {100 * rules[-1]:+.1f} % |"
            )
        if len(errors) > 1:
            print(f"\n{len(errors)} configurations, rate at the limit: {spread(errors)}")
            print(f"Execution times in the replays: {spread(scales)}")
            print(f"The rate, with executions as slow as in the run near the limit: {spread(rules)}")


def spread(errors: list[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    ninth = statistics.quantiles(sizes, n=10)[8]
    return (
        f"median error {100 * statistics.median(sizes):.1f} %, 90th percentile {100 * ninth:.1f} %, "
        f"mean {100 * statistics.fmean(errors):+.1f} %"
    )


if __name__ == "__main__":
    main()
