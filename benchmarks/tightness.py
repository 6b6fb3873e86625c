"""Judge certified rates by two figures: how often they are false, and what share of the real capacity they are.

    python benchmarks/tightness.py OUT [--times 10] [--seed 0] [--seconds 30] [--then-seconds 30]
                                   [--case 'NAME=--model m.onnx --p99 50ms' ...]

A case is a command line of `optimize`; without one, the models of `examples/` with 2 minutes each. All cases run
so many times on this machine, in a mixed order or, with `--seed -1`, in that given. After each certificate a new
server serves the same configuration, and gets its certified rate for `--seconds` after a warm-up, then rates above
or below it by bisection, for `--then-seconds` each, until the highest that met the limit and the lowest that did
not are 5 % apart. No code of the search takes part. OUT/tightness.jsonl has a line per run; what it has is not
measured again, so `--times 0` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from audit import arrivals_of, options_of, payload_of
from lib.plain_bisection import Reading, bisected
from lib.raw_lines import Line, add_line, lines_of

from loadgen.measurement.request_log import RequestLog
from loadgen.processes import scratch_folder
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target
from loadgen.statistics.slo_test import certify
from model_repo.server.hosts import serve_repository
from search.records.recommendation import RecommendationRecord

ROOT = Path(__file__).parents[1]
OPTIMIZE = (sys.executable, "-P", "-c", "from optimizer.cli import main; main()")
BUDGET = "--time-budget 2m"
EXAMPLES = {
    "ranking_mlp": f"--p99 50ms {BUDGET}",
    "small_cnn": f"--p99 50ms --protocol grpc {BUDGET}",
    "small_transformer": f"--p99 100ms --shape input_ids:64 --shape attention_mask:64 {BUDGET}",
}
WARMUP_S, RESOLUTION, STEP, SURE = 2.0, 0.05, 1.2, 0.99
GOOD = 0.7


def main() -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--then-seconds", type=float, default=30.0)
    parser.add_argument("--case", action="append", default=[], metavar="NAME=OPTIONS")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    cases = dict(one.split("=", 1) for one in arguments.case) or examples(out)
    order = [(name, number) for number in range(arguments.times) for name in cases]
    if arguments.seed >= 0:
        random.Random(arguments.seed).shuffle(order)
    raw = out / "tightness.jsonl"
    known = {(line["case"], line["number"]) for line in lines_of(raw)}
    before = None
    for name, number in order:
        if (name, number) not in known:
            line = measured(out / f"{name}-{number}", shlex.split(cases[name]), arguments)
            line = add_line(raw, {"case": name, "number": number, "after": before, **line})
            print(json.dumps(line), file=sys.stderr, flush=True)
        before = name
    report(lines_of(raw))
    return 0


def examples(out: Path) -> dict[str, str]:
    """Write the models of `examples/`; return the options of each."""
    cases = {}
    for name, options in EXAMPLES.items():
        model = out / f"{name}.onnx"
        model.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(ROOT / "examples" / f"{name}.py"), str(model)], check=True)
        cases[name] = f"--model {shlex.quote(str(model))} {options}"
    return cases


def measured(run: Path, options: list[str], arguments: argparse.Namespace) -> Line:
    """Run `optimize`, and measure the capacity of what it recommends; a folder without a line was interrupted."""
    shutil.rmtree(run, ignore_errors=True)
    began, began_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    command = [*OPTIMIZE, *options, "--output", str(run)]
    # Started in the checkout, so that a factory in a file there is found.
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=run.parent, env=environment())
    line: Line = {"began": began, "exit": done.returncode, "wall_s": round(time.monotonic() - began_s, 1)}
    file = run / "recommendation.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    line["reason"] = record.get("status_reason", done.stderr[-500:])
    if not record.get("winner"):
        return {**line, "certified_per_s": None}
    found = RecommendationRecord.model_validate(record)
    certificate = found.winner.certificate
    assert certificate is not None
    slow = certificate.slow_phases
    line |= {
        "certified_per_s": certificate.rate_per_s,
        "estimated_per_s": found.winner.rate_at_limit_per_s,
        "usual_per_s": None if slow is None else slow.usual_per_s,
        "slow_share": None if slow is None else slow.share,
        "unseen_every_s": certificate.unseen_every_s,
        "load_s": found.seconds.load,
        "standalone_per_s": found.standalone_per_s,
        "config": found.winner.config.model_dump(
            mode="json", include={"engine", "max_batch_size", "instance_count"}
        ),
    }
    return {**line, **capacity(found, run, certificate.rate_per_s, arguments)}


def environment() -> dict[str, str]:
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def capacity(
    found: RecommendationRecord, run: Path, certified_per_s: float, arguments: argparse.Namespace
) -> Line:
    """Return whether a new server met the certified rate, and the rates between which its capacity is."""
    seen: list[Reading] = []
    lags_ms: list[float] = []
    limit = found.slo.first
    with (
        scratch_folder("tightness") as scratch,
        serve_repository(run / found.repository, options_of(scratch, found)) as standing,
        LoadGenerator(max(1, (os.cpu_count() or 1) // 2)) as generator,
    ):
        target = Target(url=standing.endpoint.url(found.workload.protocol), model_name=found.model.name)
        payload, arrivals = payload_of(run, found.workload), arrivals_of(run, found.workload)

        def surely_violated(log: RequestLog) -> bool:
            return certify(log, limit, confidence=SURE).answer == "violated"

        def read(rate_per_s: float) -> Reading:
            lasts_s = arguments.then_seconds if seen else arguments.seconds
            plan = LoadPlan(
                rate_per_s=rate_per_s,
                duration_s=WARMUP_S + lasts_s,
                seed=70_000 + len(seen),
                arrivals=arrivals,
                timeout_s=10.0,
            )
            # A rate that is surely violated need not be sent to the end.
            done = generator.run(target, plan, payload=payload, limit_ms=limit.limit_ms, watch=surely_violated)
            late = done.log.between(WARMUP_S, WARMUP_S + lasts_s).latency_failures_last_ns > limit.limit_ns
            share, early = float(late.mean()) if len(late) else 1.0, done.stopped is not None
            reading = Reading(
                rate_per_s=rate_per_s,
                met=not early and share <= limit.allowed,
                sure=True,
                overloaded=early,
                share=share,
                requests=len(done.log),
            )
            seen.append(reading)
            lags_ms.append(done.measurement.send_lag_p99_ms)
            time.sleep(2.0)  # what is still queued is answered
            return reading

        between = bisected(
            read, certified_per_s, step=STEP, floor_per_s=certified_per_s / 20, resolution=RESOLUTION
        )
    return {
        "met": seen[0].met,
        "capacity_per_s": between.rate_per_s,
        "capacity_low_per_s": between.low_per_s,
        "readings": [[one.rate_per_s, one.met, one.share, lag] for one, lag in zip(seen, lags_ms, strict=True)],
    }


def report(lines: list[Line]) -> None:
    """Print a row per case, and a last one of all."""
    head = (
        "case", "runs", "exit 0", "certified", "false", "share of capacity: median", "lowest", f"below {GOOD:g}",
        "certified/s", "capacity/s", "s in all, median",
    )  # fmt: skip
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name in [*dict.fromkeys(line["case"] for line in lines), "all"]:
        mine = [line for line in lines if name in ("all", line["case"])]
        print("| " + " | ".join([name, *cells(mine, mixed=name == "all")]) + " |")


def cells(lines: list[Line], *, mixed: bool) -> list[str]:
    """Return the figures of these runs."""
    certified = [line for line in lines if line["certified_per_s"]]
    shares = sorted(
        line["certified_per_s"] / line["capacity_per_s"] for line in certified if line["capacity_per_s"]
    )
    return [
        str(len(lines)),
        str(sum(line["exit"] == 0 for line in lines)),
        str(len(certified)),
        str(sum(not line["met"] for line in certified)),
        f"{median(shares):.2f}" if shares else "-",
        f"{shares[0]:.2f}" if shares else "-",
        str(sum(share < GOOD for share in shares)),
        "-" if mixed else span([line["certified_per_s"] for line in certified]),
        "-" if mixed else span([line["capacity_per_s"] for line in certified]),
        f"{median(line['wall_s'] for line in lines):.0f}",
    ]


def span(rates: list[float]) -> str:
    return f"{min(rates):,.0f} to {max(rates):,.0f}" if rates else "-"


if __name__ == "__main__":
    sys.exit(main())
