"""The card at the top of a report: the lines of `config.pbtxt` to set, and what they are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.records.formats import UNKNOWN, format_ms, format_rate
from loadgen.reports.kit import Bar, Card
from optimizer.reports.tables import compared_with, latency_near_ms, million_usd, million_usd_text
from optimizer.run.recommendation import DIFF_FILE
from search.labels import LIBRARIES, is_own, runtime_text
from search.records.recommendation import RecommendationRecord
from search.records.trial import ConfigRecord, TrialRecord

THREADS = "intra_op_thread_count"


def answer_card(found: RecommendationRecord) -> Card:
    """Return the card of a recommendation."""
    lines = config_lines(found.winner.config, on_gpu=bool(found.machine.gpus))
    note = f"The whole file is in {found.repository}/ of the run's directory."
    if THREADS in lines and found.runtime.runtime != "native":
        note += f" Measured with tritune's backend, where {THREADS} is called intra_op_threads."
    if found.config_diff:
        note = f"{DIFF_FILE} in the run's directory is the same for patch -p1. {found.model.batching}"
        lines = found.config_diff
    return Card(
        title="What to set", code=lines.rstrip("\n"), note=note, facts=(*_facts(found),), compared=(*_bars(found),)
    )


def config_lines(config: ConfigRecord, *, on_gpu: bool) -> str:
    """Return the lines of `config.pbtxt` that differ between configurations, named as in Triton's own backends."""
    kind = "" if is_own(config) else f" kind: KIND_{'GPU' if on_gpu else 'CPU'}"
    lines = [
        f"max_batch_size: {config.max_batch_size}",
        f"instance_group [ {{ count: {config.instance_count}{kind} }} ]",
    ]
    if config.dynamic_batching:
        delay = config.max_queue_delay_us
        parts = [f"preferred_batch_size: {size} " for size in config.preferred_batch_sizes]
        parts += [f"max_queue_delay_microseconds: {delay} "] if delay else []
        lines.append(f"dynamic_batching {{ {''.join(parts)}}}")
    backend, graphs = config.engine.partition("-")[0], bool(config.cuda_graph_batch_sizes)
    known = {THREADS: config.intra_op_threads if backend == "onnxruntime" else 0, "cuda_graphs": int(graphs)}
    if backend == "tensorrt" and known.pop("cuda_graphs"):
        lines.append("optimization { cuda { graphs: true } }")
    for key, value in known.items():
        lines += [f'parameters {{\n  key: "{key}"\n  value: {{ string_value: "{value}" }}\n}}'] if value else []
    return "\n".join(lines)


def _facts(found: RecommendationRecord) -> Iterator[tuple[str, str]]:
    backend, _, precision = found.winner.config.engine.partition("-")
    certificate, workload = found.winner.certificate, found.workload
    if not is_own(found.winner.config):
        yield "engine", f"{LIBRARIES.get(backend, backend)} {precision}"
    shared = ", inputs in shared memory" if workload.shared_memory == "system" else ""
    yield "protocol", f"{'gRPC' if workload.protocol == 'grpc' else 'HTTP'}{shared}"
    deployed = ", which the bundle deploys" if workload.shared_memory == "none" else ""
    yield "measured on", f"{runtime_text(found.runtime, backend)}{deployed}"
    if certificate is not None:
        runs = f"{certificate.runs} run{'s' * (certificate.runs > 1)}"
        yield "tested with", f"{certificate.requests:,} requests in {runs}"


def _bars(found: RecommendationRecord) -> Iterator[tuple[str, tuple[Bar, ...]]]:
    """Yield rate, latency and cost of the recommendation and of what it is compared with.

    Latencies are at one rate, the lowest that was certified, if all were measured there; else at each one's own.
    """
    trials = {"recommended": found.winner, **compared_with(found)}
    first, certificates = found.slo.first, [trial.certificate for trial in trials.values()]
    estimates = [trial.rate_at_limit_per_s for trial in trials.values()]
    rates = [None if one is None else one.rate_per_s for one in certificates]
    texts = [
        f"about {format_rate(about)}/s, not certified" if rate is None else f"{format_rate(rate)}/s"
        for rate, about in zip(rates, estimates, strict=True)
    ]
    twice = certificates[0] is not None and certificates[0].confirmed_again
    lengths = [about if rate is None else rate for rate, about in zip(rates, estimates, strict=True)]
    yield "Certified rate" if twice else "Provisional rate", _compared(trials, lengths, texts)
    lowest = min((rate for rate in rates if rate is not None), default=0.0)
    latencies = [latency_near_ms(trial, lowest, first) for trial in trials.values()]
    where, at = f"at {format_rate(lowest)}/s", [""] * len(trials)
    if None in latencies:
        latencies = [None if one is None else one.first.latency_ms for one in certificates]
        where, at = "at the rate above", [f" at {format_rate(rate)}/s" for rate in rates]
    texts = [
        UNKNOWN if ms is None else f"{format_ms(ms)} ms{more}" for ms, more in zip(latencies, at, strict=True)
    ]
    name = f"{first.name} {where}, limit {first.limit_ms:g} ms"
    yield name, _compared(trials, latencies, texts, whole=first.limit_ms)
    costs = [million_usd(found, trial) for trial in trials.values()]
    texts = [million_usd_text(found, trial) for trial in trials.values()]
    yield "Cost per million inferences", _compared(trials, costs, texts)


def _compared(
    trials: dict[str, TrialRecord], lengths: Sequence[float | None], texts: Sequence[str], whole: float = 0.0
) -> tuple[Bar, ...]:
    longest = max([whole, *(one for one in lengths if one is not None)]) or 1.0
    return tuple(
        Bar(
            name=name,
            text=text,
            share=None if length is None else length / longest,
            style=style if trial.certificate is not None else f"{style} estimated",
        )
        for style, (name, trial), length, text in zip(
            ("winner", "baseline", "start"), trials.items(), lengths, texts, strict=False
        )
    )
