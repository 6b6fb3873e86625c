"""The card at the top of a report: the lines of `config.pbtxt` to set, and what they are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.records.formats import format_dollars, format_ms, format_rate
from loadgen.reports.kit import Bar, Card
from optimizer.reports.tables import compared_with, latency_near_ms, million_usd
from optimizer.run.recommendation import DIFF_FILE
from search.labels import LIBRARIES, is_own, runtime_text
from search.records.recommendation import RecommendationRecord
from search.records.trial import ConfigRecord, TrialRecord

STYLES = ("winner", "baseline", "start")


def answer_card(found: RecommendationRecord) -> Card:
    """Return the card of a recommendation."""
    config = found.winner.config
    diff = found.config_diff if is_own(config) else None
    note = f"The changes to your repository, for patch -p1; {DIFF_FILE} in the run's directory is the same."
    return Card(
        title="What to set",
        code=(diff or config_lines(config, on_gpu=bool(found.machine.gpus))).rstrip("\n"),
        note=note if diff else _native_note(found),
        facts=tuple(_facts(found)),
        compared=tuple(_compared(found)),
    )


def config_lines(config: ConfigRecord, *, on_gpu: bool) -> str:
    """Return the lines of `config.pbtxt` that differ between configurations; those of each member if it has some.

    The number of threads has the name of Triton's own ONNX Runtime backend.
    """
    kind = "" if is_own(config) else f" kind: KIND_{'GPU' if on_gpu else 'CPU'}"
    lines = [
        f"max_batch_size: {config.max_batch_size}",
        f"instance_group [ {{ count: {config.instance_count}{kind} }} ]",
    ]
    if config.dynamic_batching:
        parts = [f"preferred_batch_size: {size}" for size in config.preferred_batch_sizes]
        if config.max_queue_delay_us:
            parts.append(f"max_queue_delay_microseconds: {config.max_queue_delay_us}")
        lines.append(" ".join(["dynamic_batching {", *parts, "}"]))
    lines += [
        f'parameters {{\n  key: "{key}"\n  value: {{ string_value: "{value}" }}\n}}'
        for key, value in _parameters(config)
    ]
    if config.engine.startswith("tensorrt-") and config.cuda_graph_batch_sizes:
        lines.append("optimization { cuda { graphs: true } }")
    return "\n".join(lines)


def _parameters(config: ConfigRecord) -> Iterator[tuple[str, int]]:
    if config.intra_op_threads and config.engine.startswith("onnxruntime-"):
        yield "intra_op_thread_count", config.intra_op_threads
    if config.cuda_graph_batch_sizes and not config.engine.startswith("tensorrt-"):
        yield "cuda_graphs", 1


def _native_note(found: RecommendationRecord) -> str:
    """Return where the whole file is, and that the threads have another name in it if it is for our backend."""
    where = f"The whole file is in {found.repository}/ of the run's directory."
    ours = found.runtime is None or found.runtime.runtime != "native"
    if ours and any(key == "intra_op_thread_count" for key, _ in _parameters(found.winner.config)):
        where += " Measured with tritune's backend, where intra_op_thread_count is called intra_op_threads."
    return where


def _facts(found: RecommendationRecord) -> Iterator[tuple[str, str]]:
    backend, _, precision = found.winner.config.engine.partition("-")
    certificate, workload = found.winner.certificate, found.workload
    if not is_own(found.winner.config):
        yield "engine", f"{LIBRARIES.get(backend, backend)} {precision}"
    shared = ", inputs in shared memory" if workload.shared_memory == "system" else ""
    yield "protocol", f"{'gRPC' if workload.protocol == 'grpc' else 'HTTP'}{shared}"
    if found.runtime is not None:
        yield "measured on", runtime_text(found.runtime, backend)
    if certificate is not None:
        runs = f"{certificate.runs} run{'s' * (certificate.runs > 1)}"
        yield "tested with", f"{certificate.requests:,} requests in {runs}"


def _compared(found: RecommendationRecord) -> Iterator[tuple[str, tuple[Bar, ...]]]:
    """Yield rate, latency and cost of the recommendation and of what it is compared with.

    Latencies are at one rate, the lowest that was certified, if all were measured there; else at each one's own.
    """
    trials = {"recommended": found.winner, **compared_with(found)}
    first, shown, certificate = found.slo.first, list(trials.values()), found.winner.certificate
    rates = [None if one.certificate is None else one.certificate.rate_per_s for one in shown]
    texts = [_rate_text(one, rate) for one, rate in zip(shown, rates, strict=True)]
    lengths = [one.rate_at_limit_per_s if rate is None else rate for one, rate in zip(shown, rates, strict=True)]
    twice = certificate is not None and certificate.confirmed_again
    yield "Certified rate" if twice else "Provisional rate", _bars(trials, lengths, texts)
    lowest = min((rate for rate in rates if rate is not None), default=0.0)
    latencies = [latency_near_ms(one, lowest, first) for one in shown]
    where, at = f"at {format_rate(lowest)}/s", [""] * len(shown)
    if None in latencies:
        latencies = [None if one.certificate is None else one.certificate.first.latency_ms for one in shown]
        where, at = "at the rate above", [f" at {format_rate(rate)}/s" for rate in rates]
    texts = ["-" if ms is None else f"{format_ms(ms)} ms{more}" for ms, more in zip(latencies, at, strict=True)]
    name = f"{first.name} {where}, limit {first.limit_ms:g} ms"
    yield name, _bars(trials, latencies, texts, whole=first.limit_ms)
    costs = [million_usd(found, one) for one in shown]
    yield "Cost per million inferences", _bars(trials, costs, list(map(format_dollars, costs)))


def _rate_text(trial: TrialRecord, rate_per_s: float | None) -> str:
    if rate_per_s is not None:
        return f"{format_rate(rate_per_s)}/s"
    about = trial.rate_at_limit_per_s
    return "not certified" if about is None else f"about {format_rate(about)}/s, not certified"


def _bars(
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
        for style, (name, trial), length, text in zip(STYLES, trials.items(), lengths, texts, strict=False)
    )
