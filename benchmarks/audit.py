"""Does a recommendation hold when somebody else checks it?

    python benchmarks/audit.py RUN_DIR [--audits 5] [--seconds 60]

Serves RUN_DIR/model_repository on a server of its own, started afresh for each audit, sends the certified rate
with arrivals that the run never saw, and prints the share of requests over the limit and p99. An audit that
measured a late client, or a machine that others used, decides nothing. The exit code is 1 when a promise is
broken, 96 when an audit was not decided. Nothing of the search takes part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.arrival_text import arrivals_from_file, arrivals_from_text
from loadgen.measurement import RequestLog, known
from loadgen.neighbours import NeighbourSampler, counters_of_family
from loadgen.plan import Arrivals, LoadPlan, Payload, Target
from loadgen.reports import words
from loadgen.reports.record import EXIT_CODES, Answer
from loadgen.runner import LoadGenerator, LoadRun
from loadgen.scratch import scratch_folder
from model_repo.options import ServerOptions
from model_repo.standing import serve_repository
from search.demand import DemandRecord
from search.neighbours import NeighboursRecord, mark_of, record_of
from search.records import RecommendationRecord, Slo

WARMUP_S = 2.0
WORDS: Mapping[Answer, str] = {"kept": "kept", "broken": "BROKEN", "undecided": "NOT DECIDED:"}


def main() -> int:
    """Run the audits and print a line for each."""
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
        f"{found.model.name}: {rate:,.1f} requests/s, p{100 * found.slo.quantile:g} within "
        f"{found.slo.limit_ms:g} ms, {arguments.audits} audits of {arguments.seconds:g} s"
    )
    answers: Counter[Answer] = Counter()
    for audit in range(arguments.audits):
        result = audited(found, arguments.run, rate, arguments.seconds, seed=90_000 + audit)
        answers[result["answer"]] += 1
        said = [*result["problems"], *([f"({result['neighbours']})"] if result["neighbours"] else [])]
        stolen, verdict = words.percent(result["stolen_share"]), " ".join([WORDS[result["answer"]], *said])
        p99, over = words.ms(result["p99_ms"]), words.percent(result["share_over_limit"])
        print(
            f"  {audit + 1}: p99 {p99} ms, {over} over the limit of {result['requests']:,} requests, "
            f"send lag p99 {words.ms(result['send_lag_p99_ms'])} ms, stolen {stolen}, {verdict}",
            flush=True,
        )
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps({"run": arguments.run.name, "audit": audit, **result}) + "\n")
    print(summary(answers))
    return exit_code(answers)


def exit_code(answers: Counter[Answer]) -> int:
    """That of a broken promise before that of an audit that was not decided; 0 where all were kept."""
    return 1 if answers["broken"] else EXIT_CODES["undecided"] if answers["undecided"] else 0


def summary(answers: Counter[Answer]) -> str:
    """`kept 3 of 4; 1 not decided`: what decides nothing counts on neither side."""
    decided = answers["kept"] + answers["broken"]
    rest = f"; {answers['undecided']} not decided" if answers["undecided"] else ""
    return f"kept {answers['kept']} of {decided}{rest}"


def options_of(scratch: Path, found: RecommendationRecord) -> ServerOptions:
    """The embedded server, which takes shared memory where the run's requests came in such."""
    return ServerOptions(run_dir=scratch, shared_memory=found.demand.shared_memory == "system")


def audited(
    found: RecommendationRecord, directory: Path, rate_per_s: float, seconds: float, *, seed: int
) -> dict[str, Any]:
    """One fresh server, one run with fresh arrivals."""
    with (
        scratch_folder("audit") as scratch,
        serve_repository(directory / found.repository, options_of(scratch, found)) as standing,
        LoadGenerator() as generator,
    ):
        url = standing.endpoint.url(found.demand.protocol)
        before = cpu_ticks()
        with NeighbourSampler(counters_of_family()) as neighbours:
            run = generator.run(
                Target(url=url, model_name=found.model.name),
                LoadPlan(
                    rate_per_s=rate_per_s,
                    duration_s=WARMUP_S + seconds,
                    seed=seed,
                    arrivals=arrivals_of(directory, found.demand),
                    timeout_s=10.0,
                ),
                payload=payload_of(directory, found.demand),
            )
    return {
        "rate_per_s": rate_per_s,
        "seconds": seconds,
        "seed": seed,
        **audited_run(run, found.slo, record_of(neighbours.seen), seconds),
        "stolen_share": stolen_share(before, cpu_ticks()),
    }


def audited_run(run: LoadRun, slo: Slo, seen: NeighboursRecord | None, seconds: float) -> dict[str, Any]:
    """What a run says after its warm-up, and `seen` of the machine meanwhile."""
    figures = audited_log(run.log.between(WARMUP_S, WARMUP_S + seconds), slo)
    problems, mark = run.measurement.problems, mark_of(seen)
    return {
        **figures,
        "answer": answer_of(figures, problems, mark),
        "send_lag_p99_ms": known(run.measurement.send_lag_p99_ms),
        "problems": list(problems),
        "neighbours": mark,
    }


def audited_log(log: RequestLog, slo: Slo) -> dict[str, Any]:
    """Whether the share over each limit is small enough; failed requests are over it. None: no such figure."""
    latency_ms = np.where(log.failed, np.inf, log.latency_ns / 1e6)
    if not len(latency_ms):
        return {"requests": 0, "p50_ms": None, "p99_ms": None, "share_over_limit": None, "kept": False}
    p50_ms, p99_ms = np.quantile(latency_ms, (0.5, 0.99), method="inverted_cdf")
    return {
        "requests": len(log),
        "p50_ms": known(float(p50_ms)),
        "p99_ms": known(float(p99_ms)),
        "share_over_limit": float(np.mean(latency_ms > slo.limit_ms)),
        "kept": all(np.mean(latency_ms > limit.limit_ms) <= 1 - limit.quantile for limit in slo.limits),
    }


def answer_of(figures: Mapping[str, Any], problems: Sequence[str], disturbed: str | None = None) -> Answer:
    """What an audit says. Nothing where the client was late, others used the machine, or nothing was sent."""
    if problems or disturbed or not figures["requests"]:
        return "undecided"
    return "kept" if figures["kept"] else "broken"


def cpu_ticks() -> dict[str, int]:
    """Ticks of all processors since boot: stolen by the hypervisor, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return {"steal": ticks[7], "all": sum(ticks)}


def stolen_share(before: dict[str, int], after: dict[str, int]) -> float:
    """Of all processors' time between two readings of `cpu_ticks`."""
    return (after["steal"] - before["steal"]) / max(1, after["all"] - before["all"])


def payload_of(directory: Path, demand: DemandRecord) -> Payload:
    """Requests like those of the run."""
    shapes = json.loads((directory / "run.json").read_text())["shapes"]
    return Payload(
        batch_size=demand.rows_per_request,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        data_file=None if demand.input_data is None else directory / demand.input_data,
        shared_memory=demand.shared_memory,
    )


def arrivals_of(directory: Path, demand: DemandRecord) -> Arrivals:
    """The shape of the run's traffic."""
    if demand.trace is not None:
        return arrivals_from_file(directory / demand.trace)
    return arrivals_from_text(demand.arrivals)


if __name__ == "__main__":
    sys.exit(main())
