"""Compare `optimize` with Triton Model Analyzer on one engine, one runtime and one server.

    python benchmarks/model_analyzer.py ours quick brute optuna check table --out DIR \\
        --model-analyzer VENV/bin/model-analyzer --perf-analyzer PATH [--minutes 6]

Both tune the small CNN of examples/ under p99 50 ms over gRPC, on the embedded Triton with our Python backend and
ONNX Runtime. Model Analyzer starts that server itself, from Triton's default configuration, and loads it with
perf_analyzer in a closed loop; its recommendation is the highest throughput that met the limit. It needs its own
environment (`python -m venv VENV; VENV/bin/pip install triton-model-analyzer==1.58.0`). perf_analyzer comes with
the wheel tritonclient==2.41.0; LD_LIBRARY_PATH must lead to its libb64 and libcudart.

Each step is independent of the others, and done once: DIR/runs.jsonl gets its raw lines.

- `ours`: `optimize --time-budget`, with the whole preparation
- `quick`, `brute`, `optuna`: a mode of Model Analyzer. After `--minutes` it is interrupted, and the best of what
  it measured counts; if it hangs or crashes, the table has the reason
- `check`: for each recommendation, audits at its promise, each on a new server with new Poisson arrivals, and the
  capacity of its configuration by bisection. No code of the search takes part
- `table`: the table, of what is known

Another model, precision and engine (on a GPU: such as `--precision fp16 --engine tensorrt_rtx-fp16`) is for runs
by hand: the versions that work together differ from host to host. With `--repository DIR --model NAME` both tune a
model of the Python backend in a user's repository, from the configuration that it has there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib.audits import WARMUP_S, answer_of, audited_log
from lib.model_analyzer.profile import MODES, profiled
from lib.model_analyzer.table import table
from lib.plain_bisection import Run, Untrusted, bisected, noting, reader
from lib.raw_lines import Line, add_line, lines_of

from loadgen.measurement.cpu_contention import counters_of_family, mark_of, none_if_not_watched
from loadgen.spec.limits import LatencyLimit
from model_repo.repository.write import write_repository
from model_repo.spec import Engine
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import hardware, hardware_label
from optimizer.run.prepare import Prepared, prepare, read_inputs
from optimizer.run.serving import serving_bench
from optimizer.run.workload_inputs import workload_of
from optimizer.run_file import slo_of
from search.space import default_config, engine_label
from search.trials.bench import BenchFailed
from search.trials.triton_bench import TritonBench

ROOT = Path(__file__).parents[1]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))
LIMIT_MS = 50.0
KNOBS = ("max_batch_size", "instance_count", "intra_op_threads", "max_queue_delay_us")
STEPS = ("ours", *MODES, "check", "table")
AUDIT_SEED, CAPACITY_SEED = 6_000_011, 7_000_003
"""These seeds give arrivals that no search sees."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--model-analyzer", type=Path, metavar="PATH")
    parser.add_argument("--perf-analyzer", type=Path, metavar="PATH")
    parser.add_argument("--minutes", type=float, default=6.0, help="limit of each mode, and our time budget")
    parser.add_argument("--audits", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each audit, and of a run of the bisection")
    parser.add_argument("--model", help="an ONNX file, or a model's name; default: examples/small_cnn.py")
    parser.add_argument("--repository", type=Path, metavar="DIR", help="the repository with the model --model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--engine", default="onnxruntime-fp32")
    options = parser.parse_args()
    if options.repository is not None and options.model is None:
        parser.error("--repository needs the name of its model: --model NAME")
    comparison = Comparison(options)
    for step in options.steps:
        if step == "check":
            comparison.check()
        elif step == "table":
            print(table(lines_of(comparison.runs)), end="")
        else:
            comparison.tune(step)


@dataclass(frozen=True)
class Comparison:
    """The steps; raw lines go to `runs`."""

    options: argparse.Namespace

    @property
    def out(self) -> Path:
        return Path(self.options.out).absolute()

    @property
    def runs(self) -> Path:
        return self.out / "runs.jsonl"

    @property
    def config(self) -> OptimizeConfig:
        """The settings of `optimize`, for the engine and for the server of the audits."""
        repository = self.options.repository
        model = Path(self.options.model or self.out / "small_cnn.onnx")
        if repository is None and not model.exists():
            subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(model)], check=True)
        folder = self.out / "prepared"
        folder.mkdir(parents=True, exist_ok=True)
        return OptimizeConfig(
            model=model,
            limits=(LatencyLimit(limit_ms=LIMIT_MS),),
            output=folder,
            repository=repository,
            precisions=(self.options.precision,) if repository is None else None,
            protocol="grpc",
            price_per_hour_usd=1.0,  # no figure here depends on the price
        )

    def lines(self, phase: str) -> list[Line]:
        return [line for line in lines_of(self.runs) if line["phase"] == phase]

    def add(self, phase: str, **figures: object) -> None:
        print(json.dumps(add_line(self.runs, {"phase": phase, **figures})), file=sys.stderr)

    def tune(self, by: str) -> None:
        """Get a recommendation, unless it is known."""
        if any(line["by"] == by for line in self.lines("tuned")):
            return
        with others_of_machine() as others:
            figures = self.ours() if by == "ours" else self.theirs(by)
        self.add("tuned", by=by, minutes=self.options.minutes, **figures, **others)

    def ours(self) -> dict[str, Any]:
        config, folder = self.config, self.out / "ours"
        command = [
            OPTIMIZE, "--model", str(config.model), "--p99", f"{LIMIT_MS:g}ms", "--protocol", config.protocol,
            "--time-budget", f"{self.options.minutes:g}m", "--price-per-hour", "1", "--output", str(folder),
            *(
                ["--precisions", self.options.precision]
                if config.repository is None
                else ["--repository", str(config.repository)]
            ),
        ]  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)  # left by a call that was ended
        began = time.monotonic()
        with (self.out / "ours.txt").open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False)
        figures: dict[str, Any] = {"wall_s": time.monotonic() - began, "ended": f"exit code {done.returncode}"}
        record = folder / "recommendation.json"
        found = json.loads(record.read_text()) if record.is_file() else {}
        if found.get("status_reason"):
            figures["ended"] += f": {found['status_reason']}"
        winner = found.get("winner") or {}
        if not winner.get("certificate"):
            return figures | {"knobs": None, "promised_per_s": None, "promised_p99_ms": None}
        return figures | {
            "knobs": {name: winner["config"][name] for name in KNOBS},
            "promised_per_s": winner["certificate"]["rate_per_s"],
            "promised_p99_ms": LIMIT_MS,
        }

    def theirs(self, mode: str) -> dict[str, Any]:
        engine = self.engine(prepare(self.config, read_inputs(self.config, work_dir=self.config.output)))
        repository = self.out / "repository"
        remove_warmup(write_repository(repository, default_config(engine)) / "config.pbtxt")
        return profiled(
            self.options.model_analyzer.absolute(),
            self.options.perf_analyzer.absolute(),
            repository,
            self.out / mode,
            mode=mode,
            limit_ms=LIMIT_MS,
            most_s=60 * self.options.minutes,
            gpu=engine.device == "gpu",
        )

    def engine(self, prepared: Prepared) -> Engine:
        own = self.options.repository is not None
        return next(one for one in prepared.engines if own or engine_label(one) == self.options.engine)

    def check(self) -> None:
        """Audit each recommendation, and measure the capacity of its configuration; what is done is left out."""
        prepared = prepare(self.config, read_inputs(self.config, work_dir=self.config.output))
        done = {(line["phase"], line["by"], line.get("audit")) for line in lines_of(self.runs)}
        for tuned in (line for line in self.lines("tuned") if line["knobs"] is not None):
            by = tuned["by"]
            for audit in range(self.options.audits):
                if ("audit", by, audit) not in done:
                    with self.serving(prepared, tuned) as bench, others_of_machine() as others:
                        figures = self.audited(bench, tuned["promised_per_s"], AUDIT_SEED + audit)
                    self.add("audit", by=by, audit=audit, **figures, **others)
            if ("capacity", by, None) not in done:
                with self.serving(prepared, tuned) as bench, others_of_machine() as others:
                    figures = self.capacity(bench, tuned["promised_per_s"])
                self.add("capacity", by=by, **figures, **others)

    @contextmanager
    def serving(self, prepared: Prepared, tuned: Line) -> Iterator[TritonBench]:
        """Serve a recommendation on a new server."""
        with tempfile.TemporaryDirectory() as folder:
            config = replace(self.config, output=Path(folder))
            workload = workload_of(config, batched=prepared.engines[0].batched)
            with serving_bench(config, prepared, workload) as bench:
                served = replace(default_config(self.engine(prepared)), **tuned["knobs"])
                bench.load(replace(served, dynamic_batching=served.max_batch_size > 1))
                yield bench

    def audited(self, bench: TritonBench, rate_per_s: float, seed: int) -> dict[str, Any]:
        probe = bench.measure(rate_per_s, WARMUP_S + self.options.seconds, seed)
        log = probe.log if probe.overloaded else probe.log.between(WARMUP_S, WARMUP_S + self.options.seconds)
        figures = audited_log(log, slo_of(self.config))
        figures["met"] = figures["met"] and not probe.overloaded
        mark = mark_of(none_if_not_watched(bench.spent.contention))
        answer = answer_of(figures, probe.problems, mark)
        return {
            "rate_per_s": rate_per_s,
            **figures,
            "answer": answer,
            "problems": list(probe.problems),
            "contention": mark,
        }

    def capacity(self, bench: TritonBench, start_per_s: float) -> dict[str, Any]:
        read = reader(bench.measure, slo_of(self.config), seconds=self.options.seconds, seed=CAPACITY_SEED)
        runs: list[Run] = []
        try:
            found = bisected(
                noting(read, runs), start_per_s, step=1.08, growth=1.5, floor_per_s=250 / LIMIT_MS, resolution=0.03
            )
        except (Untrusted, BenchFailed) as problem:
            return {"runs": runs, "failure": str(problem)}
        return {"runs": runs, **found.figures()}


def remove_warmup(file: Path) -> None:
    """Remove the warm-up, which Model Analyzer never adapts: a variant with smaller batches would not load."""
    from google.protobuf import text_format  # type: ignore[import-untyped]
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    config = text_format.Parse(file.read_text(), ModelConfig())
    config.ClearField("model_warmup")
    file.write_text(text_format.MessageToString(config))


@contextmanager
def others_of_machine() -> Iterator[dict[str, Any]]:
    """Yield a dictionary that gets the machine's name, and the cores that others took, at the end."""
    others: dict[str, Any] = {"machine": hardware_label(hardware())}
    counters = counters_of_family()
    before = counters()
    yield others
    after = counters()
    taken_s = after.busy_s - before.busy_s - (after.ours_s - before.ours_s) + after.stolen_s - before.stolen_s
    others["others_cores"] = round(max(0.0, taken_s / (after.at_s - before.at_s)), 3)


if __name__ == "__main__":
    main()
