"""The paragraph on the time of a request: the largest stage, its bound, and possible remedies."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.records.formats import format_rate
from search.answer.analysis import similar_rates
from search.records.engine_profile import Bound, EngineProfileRecord
from search.records.trial import STAGES, ConfigRecord, MeasurementRecord, TrialRecord

_IN_WORDS = {
    "client and network": "in client and network",
    "queue": "waiting in the queue",
    "input": "on the way into the model",
    "inference": "in the model",
    "output": "on the way out of it",
    "response": "in the rest of the server",
}
MIN_SHOWN_SHARE = 0.03
"""Stages below 3 % of a request's time are left out of the sentence. Layers are left out if the whole engine takes
less than that, standalone."""

SLOWER_SERVED = 1.25
"""An engine that takes over 1.25 times its standalone time in the server gets a sentence on the difference."""

GRAPH_GAIN = 1.05


def time_summary(
    winner: TrialRecord, profile: EngineProfileRecord | None, baseline: TrialRecord | None = None
) -> str:
    """Return the paragraph. `profile` is of the winner's engine; `baseline` is None if it is the winner itself.

    "" if the server gave no timings.
    """
    measured = winner.measurement
    if measured is None or measured.server is None:
        return ""
    sentences = [_split(measured), _largest(winner.config, measured)]
    if profile is not None:
        sentences += [*_engine(winner.config, measured, profile)]
    if baseline is not None and baseline.measurement is not None:
        sentences.append(_against(measured, baseline.measurement))
    return " ".join(filter(None, sentences))


def _known(measured: MeasurementRecord) -> dict[str, float]:
    return {stage: ms for stage, ms in measured.stages_ms.items() if ms is not None and ms > 0}


def _split(measured: MeasurementRecord) -> str:
    parts = _known(measured)
    whole = sum(parts.values())
    listed = [
        f"{100 * ms / whole:.0f} % {_IN_WORDS[stage]}"
        for stage, ms in sorted(parts.items(), key=lambda item: -item[1])
        if ms >= MIN_SHOWN_SHARE * whole
    ]
    rate = format_rate(measured.rate_per_s)
    return f"Of {whole:.3g} ms that a request takes on average at {rate}/s, {_joined(listed)}."


def _joined(parts: list[str]) -> str:
    if len(parts) == 1:
        return f"{parts[0]}"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _largest(config: ConfigRecord, measured: MeasurementRecord) -> str:
    """Return the remedy for the largest stage; "" for inference, which has sentences of its own."""
    parts = _known(measured)
    stage = max(parts, key=lambda name: parts[name], default="inference")
    if stage == "queue":
        if 1000 * parts[stage] <= 1.2 * config.max_queue_delay_us:
            return "That wait is the queue delay, which buys larger batches."
        return "Waiting is the price of that rate: it shrinks with a lower rate a replica, or with more replicas."
    if stage in {"input", "output"}:
        return "Moving tensors takes longer than computing on them: smaller inputs or outputs help most."
    if stage in {"client and network", "response"}:
        return (
            "The way to the server and back takes longer than the model: gRPC, smaller inputs, or clients that do "
            "not share the server's cores help most."
        )
    return ""


def _engine(config: ConfigRecord, measured: MeasurementRecord, profile: EngineProfileRecord) -> Iterator[str]:
    assert measured.server is not None
    served_ms, alone_ms = measured.server.compute_infer_ms, profile.execution_ms
    alone = f"Standalone, the engine takes {alone_ms:.3g} ms for a batch of {profile.batch_size}"
    whole_ms = sum(_known(measured).values())
    if alone_ms < MIN_SHOWN_SHARE * whole_ms:
        yield f"{alone}, {100 * alone_ms / whole_ms:.1g} % of that: the rest is around it, not in its layers."
        return
    if served_ms > SLOWER_SERVED * alone_ms:
        why = (
            f"{config.instance_count} instances share the machine with the server and the load"
            if config.instance_count > 1
            else "it shares the machine with the server and the load"
        )
        yield f"{alone}; served it takes {served_ms:.3g} ms: {why}, and every batch passes through Python."
    else:
        yield f"{alone}."
    if profile.layers:
        yield _layers(profile)
        yield _bound(config, profile)
    yield _graphs(config, profile)


def _layers(profile: EngineProfileRecord) -> str:
    operator, share = next(iter(profile.operator_shares.items()), ("?", 0.0))
    slowest = profile.layers[0]
    return (
        f"{100 * share:.0f} % of its layers' time is {operator}; the slowest of {profile.layer_count} layers, "
        f"{slowest.name} ({slowest.operator}), takes {100 * slowest.share:.0f} %."
    )


def _bound(config: ConfigRecord, profile: EngineProfileRecord) -> str:
    known = [pair for pair in profile.bound_shares.items() if pair[0] != "unknown"]
    bound, share = known[0] if known else ("unknown", 0.0)
    part = f"{100 * share:.0f} %"
    ceilings = profile.ceilings
    if bound == "arithmetic" and ceilings.flops_per_s is not None:
        at = flops_text(ceilings.flops_per_s)
        return (
            f"Arithmetic bounds {part} of it (this machine multiplies matrices at {at}): a lower precision or a "
            "smaller model helps, faster memory does not."
        )
    if bound == "bytes" and ceilings.bytes_per_s is not None:
        at = f"{ceilings.bytes_per_s / 1e9:,.3g} GB/s"
        return (
            f"Memory traffic bounds {part} of it (this machine moves {at}): a lower precision, fewer operators "
            "between the large ones, or larger batches that share the weights help."
        )
    if bound == "overhead":
        fewer = "CUDA graphs" if profile.other_graph_ms is not None else _threads(config)
        return (
            f"Neither arithmetic nor memory explains {part} of it: the layers are too small for the time that "
            f"starting them takes. Larger batches{fewer and f', {fewer}'} or fewer operators help."
        )
    return ""


def _threads(config: ConfigRecord) -> str:
    return "" if config.intra_op_threads == 1 else "fewer threads an instance"


def _graphs(config: ConfigRecord, profile: EngineProfileRecord) -> str:
    """Return the sentence on launch overhead, which is the difference that CUDA graphs make."""
    other_ms = profile.other_graph_ms
    if other_ms is None:
        return ""
    with_ms, without_ms = profile.execution_ms, other_ms
    if not config.cuda_graph_batch_sizes:
        with_ms, without_ms = without_ms, with_ms
    if not without_ms > GRAPH_GAIN * with_ms:
        return "Launching kernels does not hold it up: CUDA graphs change nothing."
    saved = 100 * (1 - with_ms / without_ms)
    launch = f"{saved:.0f} % of an execution is launching kernels"
    return f"{launch} if CUDA graphs are off{'' if config.cuda_graph_batch_sizes else ', as they are here'}."


def _against(measured: MeasurementRecord, other: MeasurementRecord) -> str:
    """Return the sentence on the stage in which the two differ most; "" if their rates differ too much."""
    mine, theirs = _known(measured), _known(other)
    if not theirs or not similar_rates(measured.rate_per_s, other.rate_per_s):
        return ""
    stage = max(STAGES, key=lambda name: abs(mine.get(name, 0.0) - theirs.get(name, 0.0)))
    whole = f"{sum(theirs.values()):.3g} ms at {format_rate(other.rate_per_s)}/s"
    return (
        f"Triton's default takes {whole}; the largest difference is "
        f"{theirs.get(stage, 0.0):.3g} instead of {mine.get(stage, 0.0):.3g} ms {_IN_WORDS[stage]}."
    )


def flops_text(per_s: float) -> str:
    """Return text such as `92 GFLOP/s` or `640 TFLOP/s`."""
    return f"{per_s / 1e12:,.3g} TFLOP/s" if per_s >= 1e12 else f"{per_s / 1e9:,.3g} GFLOP/s"


BOUND_WORDS: dict[Bound, str] = {
    "arithmetic": "arithmetic",
    "bytes": "memory traffic",
    "overhead": "overhead",
    "unknown": "not known",
}
