"""The paragraph on the time of a request: its stages, what bounds the engine, and what would help."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.records.formats import format_rate
from search.answer.recommend import similar_rates
from search.labels import baseline_words
from search.records.recommendation import Bound, EngineProfileRecord
from search.records.trial import STAGES, ConfigRecord, MeasurementRecord, TrialRecord

MIN_SHOWN_SHARE = 0.03
"""Stages below 3 % of a request's time are left out of the sentence. Layers are left out if the whole engine takes
less than that, standalone."""

_MOVES = "Tensors take longer to move than to compute: smaller inputs or outputs help most."
_WAY = "The way to the server and back takes longest: smaller inputs, or clients elsewhere help most."
REMEDIES = {
    "queue": "The wait shrinks with a lower rate per replica, or with more replicas.",
    "input": _MOVES,
    "output": _MOVES,
    "client and network": _WAY,
    "response": _WAY,
}
"""What helps if a stage takes longest. For inference, the profile of the engine says it."""

BOUND_WORDS: dict[Bound, str] = {
    "arithmetic": "arithmetic",
    "bytes": "memory traffic",
    "overhead": "overhead",
    "unknown": "not known",
}
HELPS: dict[Bound, str] = {
    "arithmetic": "a lower precision or a smaller model helps, faster memory does not",
    "bytes": "a lower precision, fewer operators, or larger batches that share the weights help",
    "overhead": "larger batches or fewer operators help, as layers take longer to start than to compute",
}


def time_summary(
    winner: TrialRecord, profile: EngineProfileRecord | None, baseline: TrialRecord | None = None
) -> str:
    """Return the paragraph. `profile` is of the winner's engine; `baseline` is None if it is the winner itself.

    "" if the server gave no timings.
    """
    measured = winner.measurement
    if measured is None or measured.server is None:
        return ""
    parts = _known(measured)
    longest = max(parts, key=lambda stage: parts[stage], default="inference")
    remedy = REMEDIES.get(longest, "")
    if longest == "queue" and 1000 * parts[longest] <= 1.2 * winner.config.max_queue_delay_us:
        remedy = "The wait is the queue delay, which buys larger batches."
    whole_ms = sum(parts.values())
    shown = sorted(
        (pair for pair in parts.items() if pair[1] >= MIN_SHOWN_SHARE * whole_ms), key=lambda pair: -pair[1]
    )
    listed = ", ".join(f"{stage} {100 * ms / whole_ms:.0f} %" for stage, ms in shown)
    at = f"{format_rate(measured.rate_per_s)}/s"
    sentences = [f"A request takes {whole_ms:.3g} ms on average at {at}: {listed}.", remedy]
    if profile is not None:
        sentences += _engine(winner.config, measured.server.compute_infer_ms, whole_ms, profile)
    if baseline is not None and baseline.measurement is not None:
        sentences.append(_against(measured, baseline.measurement, baseline.config))
    return " ".join(filter(None, sentences))


def _known(measured: MeasurementRecord) -> dict[str, float]:
    return {stage: ms for stage, ms in measured.stages_ms.items() if ms is not None and ms > 0}


def _engine(
    config: ConfigRecord, served_ms: float, whole_ms: float, profile: EngineProfileRecord
) -> Iterator[str]:
    yield (
        f"Standalone, the engine takes {profile.execution_ms:.3g} ms for a batch of {profile.batch_size}, in the "
        f"server {served_ms:.3g} ms."
    )
    if profile.layers and profile.execution_ms >= MIN_SHOWN_SHARE * whole_ms:
        operator, share = next(iter(profile.operator_shares.items()), ("?", 0.0))
        slowest = profile.layers[0]
        yield (
            f"{100 * share:.0f} % of its layers' time is {operator}; the slowest of {profile.layer_count} layers, "
            f"{slowest.name} ({slowest.operator}), takes {100 * slowest.share:.0f} %."
        )
        bound, part = next(
            ((one, part) for one, part in profile.bound_shares.items() if one in HELPS), (None, 0.0)
        )
        if bound is not None:
            yield f"{BOUND_WORDS[bound].capitalize()} bounds {100 * part:.0f} % of it: {HELPS[bound]}."
    if profile.other_graph_ms is not None:
        with_ms, without_ms = profile.execution_ms, profile.other_graph_ms
        if not config.cuda_graph_batch_sizes:
            with_ms, without_ms = without_ms, with_ms
        yield f"An execution takes {with_ms:.3g} ms with CUDA graphs and {without_ms:.3g} ms without."


def _against(measured: MeasurementRecord, other: MeasurementRecord, baseline: ConfigRecord) -> str:
    """Return the sentence on the stage in which the two differ most; "" if their rates differ too much."""
    mine, theirs = _known(measured), _known(other)
    if not theirs or not similar_rates(measured.rate_per_s, other.rate_per_s):
        return ""
    stage = max(STAGES, key=lambda name: abs(mine.get(name, 0.0) - theirs.get(name, 0.0)))
    words = baseline_words(baseline, "Triton's default")
    there, here = theirs.get(stage, 0.0), mine.get(stage, 0.0)
    return (
        f"{words[0].upper()}{words[1:]} takes {sum(theirs.values()):.3g} ms at {format_rate(other.rate_per_s)}/s; "
        f"the largest difference is in {stage}, {there:.3g} instead of {here:.3g} ms."
    )
