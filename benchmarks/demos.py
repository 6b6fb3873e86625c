"""Repeat the demo on this machine as it is, and audit every rate that it certifies.

    python benchmarks/demos.py --out DIR [--demos 20] [--audits-each 1] [--over-minutes 60]
                               [--model .demo/ranking_mlp.onnx]

`make demo` writes the model. Each demo is `optimize --model MODEL --p99 50ms --time-budget 2m` into DIR/demo-N,
all with the same seed; each knows what runs of the last day saw of the machine. Then each certified configuration
is served again, and its certified rate is sent for `--audit-s` with new arrivals; the audits are evenly spread
over the minutes. DIR/demos.jsonl has a line per demo and per audit. What it has is not measured again, so
`--demos 0 --audits-each 0` prints the table alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from audit import audited
from lib.raw_lines import Line, add_line, lines_of
from pydantic import TypeAdapter

from search.records.recommendation import AnyRecommendation, RecommendationRecord

RAW = "demos.jsonl"
ANY_RECOMMENDATION: TypeAdapter[AnyRecommendation] = TypeAdapter(AnyRecommendation)
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--demos", type=int, default=20)
    parser.add_argument("--audits-each", type=int, default=1, help="of each certified rate")
    parser.add_argument("--over-minutes", type=float, default=60.0, help="from the first audit to the last")
    parser.add_argument("--audit-s", type=float, default=60.0)
    parser.add_argument("--model", type=Path, default=Path(".demo/ranking_mlp.onnx"))
    parser.add_argument("--p99", default="50ms")
    parser.add_argument("--time-budget", default="2m")
    arguments = parser.parse_args()
    if not arguments.model.is_file():
        print(
            f"{arguments.model} does not exist.\nRun `make demo` once, or name another --model.", file=sys.stderr
        )
        return 2
    raw = arguments.out / RAW
    for demo in missing(raw, "demo", range(arguments.demos)):
        show(add_line(raw, {"phase": "demo", "demo": demo, **demo_of(arguments, arguments.out / f"demo-{demo}")}))
    audit_all(arguments, raw)
    report(raw)
    return 0


def missing(raw: Path, phase: str, wanted: range) -> list[int]:
    """Return the wanted numbers of demos that have no line of this phase yet."""
    known = {line["demo"] for line in lines_of(raw) if line["phase"] == phase}
    return [number for number in wanted if number not in known]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def show(line: Line) -> None:
    said = (
        "phase",
        "demo",
        "exit",
        "certified_per_s",
        "wall_s",
        "knobs",
        "p99_ms",
        "met",
        "problems",
        "contention",
    )
    print(", ".join(f"{name} {line[name]}" for name in said if name in line), file=sys.stderr, flush=True)


def demo_of(arguments: argparse.Namespace, run: Path) -> Line:
    """Run one demo; a folder without a line in the file is of a demo that was interrupted."""
    shutil.rmtree(run, ignore_errors=True)
    limits = ["--p99", arguments.p99, "--time-budget", arguments.time_budget]
    command = [OPTIMIZE, "--model", str(arguments.model), *limits, "--output", str(run)]
    began, began_s = now(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line: Line = {"began": began, "exit": done.returncode, "wall_s": round(time.monotonic() - began_s, 1)}
    found = run / "recommendation.json"
    if not found.is_file():
        return {**line, "certified_per_s": None, "stderr": done.stderr[-2000:]}
    record = ANY_RECOMMENDATION.validate_json(found.read_text())
    line["status"] = record.status
    if record.winner is None:
        return {**line, "certified_per_s": None}
    certificate = record.winner.certificate
    return {
        **line,
        "certified_per_s": None if certificate is None else certificate.rate_per_s,
        "certificate_s": None if certificate is None else certificate.seconds,
        "unseen_every_s": None if certificate is None else certificate.unseen_every_s,
        "knobs": record.winner.config.model_dump(mode="json"),
        "seconds": record.seconds.model_dump(include={"load", "loading_models"}),
    }


def audit_all(arguments: argparse.Namespace, raw: Path) -> None:
    """Audit the certified runs in turn, at even distances; after an interruption the rest keeps the distance."""
    certified = [line for line in lines_of(raw) if line["phase"] == "demo" and line["certified_per_s"]]
    wanted = [(audit, line) for audit in range(arguments.audits_each) for line in certified]
    known = {(line["audit"], line["demo"]) for line in lines_of(raw) if line["phase"] == "audit"}
    rest = [(audit, line) for audit, line in wanted if (audit, line["demo"]) not in known]
    apart_s = 60 * arguments.over_minutes / max(1, len(wanted) - 1)
    began_s = time.monotonic()
    for number, (audit, line) in enumerate(rest):
        time.sleep(max(0.0, began_s + number * apart_s - time.monotonic()))
        run = arguments.out / f"demo-{line['demo']}"
        record = RecommendationRecord.model_validate_json((run / "recommendation.json").read_text())
        began, seed = now(), 90_000 + 1_000 * audit + line["demo"]
        figures = audited(record, run, line["certified_per_s"], arguments.audit_s, seed=seed)
        show(add_line(raw, {"phase": "audit", "demo": line["demo"], "audit": audit, "began": began, **figures}))


def report(raw: Path) -> None:
    """Print a row per demo, and a summary; an audit is met if p99 was within the limit, whatever disturbed it."""
    lines = lines_of(raw)
    demos = sorted((line for line in lines if line["phase"] == "demo"), key=lambda line: int(line["demo"]))
    audits = [line for line in lines if line["phase"] == "audit"]
    print("| demo | exit | certified/s | configuration | s in all | audits: p99, ms |\n" + "|---" * 6 + "|")
    for line in demos:
        p99s = ", ".join(p99_of(audit) for audit in audits if audit["demo"] == line["demo"])
        rate = "-" if line["certified_per_s"] is None else f"{line['certified_per_s']:,.0f}"
        cells = (line["demo"], line["exit"], rate, words_of(line), f"{line['wall_s']:.0f}", p99s or "-")
        print("| " + " | ".join(map(str, cells)) + " |")
    if not demos:
        return
    rates = [line["certified_per_s"] for line in demos if line["certified_per_s"]]
    summary = (
        f"{sum(line['exit'] == 0 for line in demos)} of {len(demos)}",
        f"{max(rates) / min(rates):.2f}" if rates else "-",
        f"{median(line['wall_s'] for line in demos):.0f}",
        f"{sum(audit['met'] for audit in audits)} of {len(audits)}",
        f"{sum(audit['answer'] == 'inconclusive' for audit in audits)}",
    )
    print("\n| exit 0 | highest / lowest certified | s in all, median | audits met | audits disturbed |")
    print("|---" * len(summary) + "|\n| " + " | ".join(summary) + " |")


def words_of(line: Line) -> str:
    knobs = line.get("knobs")
    if not knobs:
        return "-"
    return "{max_batch_size} x {instance_count}, {intra_op_threads} threads, {max_queue_delay_us} us".format(
        **knobs
    )


def p99_of(audit: Line) -> str:
    p99 = "none" if audit["p99_ms"] is None else f"{audit['p99_ms']:.1f}"
    return p99 if audit["met"] else f"**{p99}**"


if __name__ == "__main__":
    sys.exit(main())
