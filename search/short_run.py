"""One short load run of a trial, given up once a limit is certainly broken, and told to whoever watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.measurement import known
from loadgen.probing import seen_from_probe
from loadgen.several import certify_each, joint_answer
from search import events

if TYPE_CHECKING:
    from loadgen.capacity import Probe
    from loadgen.measurement import RequestLog
    from loadgen.probing import Seen
    from search.attempts import Attempts


def short_run(
    attempts: Attempts, rate_per_s: float, seconds: float, *, number: int, repeat: int
) -> tuple[Probe, Seen, int]:
    """What came of the run, how it reads, and its seed, which is another one for each repetition of a trial's."""
    slo = attempts.slo

    def hopeless(requests: RequestLog) -> bool:
        return attempts.stop() or joint_answer(certify_each(requests, slo.limits)) == "broken"

    seed = attempts.seed + 104_729 * (1 + number) + 7919 * repeat
    probe = attempts.bench.measure(rate_per_s, seconds, seed, hopeless)
    seen = seen_from_probe(probe, rate_per_s, limit_ms=slo.limit_ms, quantile=slo.quantile, also=slo.further)
    return probe, seen, seed


def tell(on_event: events.OnEvent, number: int, seen: Seen, *, kept: bool) -> None:
    """Show a trial's run, and whether it looks kept."""
    on_event(
        events.Probed(
            number=number,
            rate_per_s=seen.rate_per_s,
            p99_ms=known(seen.first.latency_ms),
            verdict="kept" if kept else "broken",
            quantile=seen.first.quantile,
        )
    )
