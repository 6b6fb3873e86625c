"""Check a recommendation independently of the run that made it.

    python benchmarks/audit.py RUN_DIR [--audits 5] [--seconds 60]

Serves RUN_DIR/model_repository on a new server for each audit, sends the certified rate with arrivals that the run
never saw, and prints the share of requests over the limit and p99. An audit with a late client or with CPU
contention decides nothing. The exit code is 1 if a certified rate violates its limit, 96 if an audit was not
decided. No code of the search takes part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.audits import WARMUP_S, answer_of, audited_log, cpu_ticks, stolen_share, summary
from lib.raw_lines import add_line

from loadgen.exit_codes import CODES
from loadgen.measurement.cpu_contention import (
    CpuContention,
    NeighbourSampler,
    counters_of_family,
    mark_of,
    none_if_not_watched,
)
from loadgen.measurement.request_log import none_if_not_finite
from loadgen.processes import scratch_folder
from loadgen.records.formats import format_ms, format_percent
from loadgen.records.record import Answer
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import Arrivals, LoadPlan, Payload, arrivals_from_file, arrivals_from_text
from loadgen.spec.target import Target
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from search.records.recommendation import RecommendationRecord
from search.records.slo import Slo, WorkloadRecord

WORDS: Mapping[Answer, str] = {"met": "met", "violated": "VIOLATED", "inconclusive": "NOT DECIDED:"}


def main() -> int:
    """Run the audits and print one line per audit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--audits", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--share-of-rate", type=float, default=1.0, help="1.05 shows the edge")
    parser.add_argument("--json", type=Path, help="append the raw results to this file, a line each")
    arguments = parser.parse_args()
    found = RecommendationRecord.model_validate_json((arguments.run / "recommendation.json").read_text())
    assert found.winner.certificate is not None
    rate = found.winner.certificate.rate_per_s * arguments.share_of_rate
    print(
        f"{found.model.name}: {rate:,.1f} requests/s, p{100 * found.slo.first.quantile:g} within "
        f"{found.slo.first.limit_ms:g} ms, {arguments.audits} audits of {arguments.seconds:g} s"
    )
    answers: Counter[Answer] = Counter()
    for audit in range(arguments.audits):
        result = audited(found, arguments.run, rate, arguments.seconds, seed=90_000 + audit)
        answers[result["answer"]] += 1
        said = [*result["problems"], *([f"({result['contention']})"] if result["contention"] else [])]
        stolen, verdict = format_percent(result["stolen_share"]), " ".join([WORDS[result["answer"]], *said])
        p99, over = format_ms(result["p99_ms"]), format_percent(result["share_over_limit"])
        print(
            f"  {audit + 1}: p99 {p99} ms, {over} over the limit of {result['requests']:,} requests, "
            f"send lag p99 {format_ms(result['send_lag_p99_ms'])} ms, stolen {stolen}, {verdict}",
            flush=True,
        )
        if arguments.json:
            add_line(arguments.json, {"run": arguments.run.name, "audit": audit, **result})
    print(summary(answers))
    return exit_code(answers)


def exit_code(answers: Any) -> int:
    """Return 1 if a certified rate is violated, else 96 if an audit was not decided, else 0."""
    return 1 if answers["violated"] else CODES["inconclusive"] if answers["inconclusive"] else 0


def options_of(scratch: Path, found: RecommendationRecord) -> ServerOptions:
    """Return options for the embedded server; it takes shared memory if the run's requests used it."""
    return ServerOptions(run_dir=scratch, shared_memory=found.workload.shared_memory == "system")


def audited(
    found: RecommendationRecord, directory: Path, rate_per_s: float, seconds: float, *, seed: int
) -> dict[str, Any]:
    """Audit once: a new server, one run with new arrivals."""
    with (
        scratch_folder("audit") as scratch,
        serve_repository(directory / found.repository, options_of(scratch, found)) as standing,
        LoadGenerator() as generator,
    ):
        url = standing.endpoint.url(found.workload.protocol)
        before = cpu_ticks()
        with NeighbourSampler(counters_of_family()) as contention:
            run = generator.run(
                Target(url=url, model_name=found.model.name),
                LoadPlan(
                    rate_per_s=rate_per_s,
                    duration_s=WARMUP_S + seconds,
                    seed=seed,
                    arrivals=arrivals_of(directory, found.workload),
                    timeout_s=10.0,
                ),
                payload=payload_of(directory, found.workload),
            )
    return {
        "rate_per_s": rate_per_s,
        "seconds": seconds,
        "seed": seed,
        **audited_run(run, found.slo, none_if_not_watched(contention.seen), seconds),
        "stolen_share": stolen_share(before, cpu_ticks()),
    }


def audited_run(run: LoadRun, slo: Slo, seen: CpuContention | None, seconds: float) -> dict[str, Any]:
    """Return the figures of a run after its warm-up, with `seen` of the machine meanwhile."""
    figures = audited_log(run.log.between(WARMUP_S, WARMUP_S + seconds), slo)
    problems, mark = run.measurement.problems, mark_of(seen)
    return {
        **figures,
        "answer": answer_of(figures, problems, mark),
        "send_lag_p99_ms": none_if_not_finite(run.measurement.send_lag_p99_ms),
        "problems": list(problems),
        "contention": mark,
    }


def payload_of(directory: Path, workload: WorkloadRecord) -> Payload:
    """Return requests like those of the run."""
    shapes = json.loads((directory / "run.json").read_text())["shapes"]
    return Payload(
        batch_size=workload.rows_per_request,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        data_file=None if workload.input_data is None else directory / workload.input_data,
        shared_memory=workload.shared_memory,
    )


def arrivals_of(directory: Path, workload: WorkloadRecord) -> Arrivals:
    """Return the shape of the run's traffic."""
    if workload.trace is not None:
        return arrivals_from_file(directory / workload.trace)
    return arrivals_from_text(workload.arrivals)


if __name__ == "__main__":
    sys.exit(main())
