"""Records of a trial: configuration, measurements, answers, certificate, and the reason for the trial."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from loadgen.finite import Count
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.records.formats import format_rate
from loadgen.records.record import Answer, FiguresRecord
from search.record import Rate, Record
from search.records.certificate import CertificateRecord


class AnswersRecord(Record):
    """How answers under load compare with those to the same requests, sent one at a time to the same server."""

    compared: Count = Field(default=0, description="Answers under load that were compared.")
    differing: Count = Field(
        default=0,
        description="Those that differ. Of a configuration that is recommended, they are of few requests, such as "
        "near ties.",
    )
    failed: Count = Field(default=0, description="Requests under load without an answer.")
    mean_batch_size: float | None = Field(
        default=None, description="Mean number of rows in the batches meanwhile; null if not measured."
    )
    mixed: bool = Field(default=False, description="True if so many differ that batches must mix their rows.")
    unseen: str = Field(default="", description="Why mixed rows would not have been seen; empty if they would.")

    @property
    def text(self) -> str:
        """What was seen, in a sentence without its full stop."""
        if self.mixed:
            return (
                f"{self.differing:,} of {self.compared:,} answers under load differ from the answers to the same "
                "requests sent one at a time: the rows of a batch are mixed"
            )
        if self.unseen:
            return f"It was not seen whether batches mix their rows: {self.unseen}"
        batches = (
            "" if self.mean_batch_size is None else f", in batches of {self.mean_batch_size:.1f} rows on average,"
        )
        few = f", but for {self.differing:,}" if self.differing else ""
        same = "equal the answers to the same requests sent one at a time"
        return f"{self.compared:,} answers under load{batches} {same}{few}"


Cause = Literal["baseline", "start", "predicted", "adjacent", "landmark", "sampler", "fastest", "profile"]
"""baseline: Triton's default configuration. start: that of --start-from. predicted: it may beat the best by its
prediction. adjacent: one step from the best. landmark: it spans the space. sampler: Optuna chose it. fastest: no
configuration meets the SLO, and it comes nearest. profile: the measurement of its execution times failed."""

TrialState = Literal["complete", "infeasible", "pruned", "failed"]
"""complete: its capacity is known. infeasible: no rate meets the SLO. pruned: it cannot beat the best so far, so
its measurement ended early. failed: it could not be served or measured."""


class ServiceTimesRecord(Record):
    """The execution times behind a prediction; `service_times.json` has the whole curves."""

    model: str | None = Field(default=None, description="The member of an ensemble that saturates first.")
    batch_sizes: tuple[int, ...]
    one_busy_ms: tuple[float, ...] = Field(description="Mean execution time per size while one instance executes.")
    all_busy_ms: tuple[float, ...] = Field(description="Mean execution time per size while all instances execute.")
    overhead_ms: float = Field(description="Time of a request outside its execution and the queue.")
    let_through_per_s: float | None = Field(
        default=None, description="Highest rate of the closed loops to it; null if not known."
    )


class PredictionRecord(Record):
    """The capacity that was predicted before the trial, and the best capacity so far."""

    rate_per_s: float = Field(description="The predicted capacity.")
    sd: float = Field(description="Standard error of its logarithm.")
    simulated_per_s: float = Field(description="The simulated capacity, without the correction by earlier trials.")
    rank: int = Field(ge=1, description="Rank among the untried predictions by their optimistic rate.")
    untried: int = Field(description="Number of untried predictions, this one included.")
    to_beat_per_s: float | None = Field(description="The best capacity so far; null if there was none.")
    service_times: ServiceTimesRecord


class WhyRecord(Record):
    """Why a trial was made, as known when it began."""

    cause: Cause
    best_trial: int | None = Field(
        default=None, description="Number of the best trial so far; null if there was none."
    )
    resumed: bool = Field(default=False, description="True if the trial began after --resume.")
    retaken: bool = Field(default=False, description="True if it was begun before and not finished.")
    prediction: PredictionRecord | None = Field(default=None, description="null if there was no prediction.")


SCHEMA_VERSION: Literal[2] = 2


class ConfigRecord(Record):
    """A serving configuration; see Triton's model configuration for the terms."""

    engine: str = Field(description="Backend and precision, such as `onnxruntime-fp32`.")
    max_batch_size: int = Field(ge=0, description="0: the model is served without batching.")
    instance_count: int = Field(ge=1)
    dynamic_batching: bool
    max_queue_delay_us: int = Field(ge=0)
    preferred_batch_sizes: tuple[int, ...] = ()
    intra_op_threads: int = Field(ge=0, description="ONNX Runtime threads per instance; 0: one per core.")
    cuda_graph_batch_sizes: tuple[int, ...] = ()
    backend_options: tuple[tuple[str, str], ...] = Field(
        default=(), description="Pairs of name and value for the engine's runtime."
    )
    members: tuple[ConfigRecord, ...] = Field(
        default=(), description="Of the models that it calls, such as those of an ensemble."
    )

    @property
    def batching_sizes(self) -> tuple[int, ...]:
        """The largest batches that the server forms of several requests, in this model and in its members."""
        return tuple(one.max_batch_size for one in (*self.members, self) if one.dynamic_batching)


class ServerTimingsRecord(Record):
    """Mean time of a request in each stage inside Triton, in ms, and how large batches were."""

    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    mean_batch_size: float | None
    response_ms: float | None = Field(
        default=None,
        description="The rest of the time from arrival to response. null in files of earlier versions.",
    )


class GpuRecord(Record):
    """The GPUs of a load run: mean utilization (0 to 1), mean power and peak memory; null if not measured."""

    utilization: float | None
    memory_used_bytes: int | None
    power_w: float | None
    energy_per_1000_inferences_j: float | None


STAGES = ("client and network", "queue", "input", "inference", "output", "response")
"""The stages of a request in order. In `output` the result is taken from the model, in `response` it leaves the
server."""


class MeasurementRecord(FiguresRecord, Record):
    """One load run. null is unknown, never zero. The `problems` of a certified trial are too long at most."""

    rate_per_s: Rate = Field(description="The planned request rate.")
    lost_answers: Count = Field(
        default=0, description="Failures that the server counts as answered: its HTTP front end lost them."
    )
    server: ServerTimingsRecord | None
    gpu: GpuRecord | None = Field(default=None, description="null without a GPU, or if it cannot be read.")

    @property
    def stages_ms(self) -> dict[str, float | None]:
        """The mean ms of a request in each stage; None if not measured."""
        server = self.server
        values = (None,) * 5 if server is None else (
            server.queue_ms, server.compute_input_ms, server.compute_infer_ms, server.compute_output_ms,
            server.response_ms,
        )  # fmt: skip
        return dict(zip(STAGES, (self.network_and_client_ms, *values), strict=True))

    def latency_at_ms(self, quantile: float) -> float | None:
        """Return the latency at one of the recorded quantiles; None for another one, or if it is not known."""
        return self.latencies_ms.get(quantile)

    def least_late(self, limit_ms: float) -> int:
        """Return the number of requests that were over the limit at least, by the recorded percentiles."""
        late = [
            q for q, latency_ms in self.latencies_ms.items() if latency_ms is not None and latency_ms > limit_ms
        ]
        return math.floor((1 - min(late)) * self.requests) if late else self.failures


class SentLoadRecord(Record):
    """One load run of a search, and its verdict on the SLO."""

    rate_per_s: Rate
    latency_ms: float | None = Field(description="At the first limit's quantile; null: too many requests failed.")
    met: bool
    answer: Answer | None = Field(
        default=None,
        description="What the run decides by itself, at 95 %; null: an earlier version did not keep it.",
    )
    seconds: float | None = Field(default=None, description="Until the last response.")
    requests: Count | None = Field(default=None, description="Requests without those of the warm-up.")
    violations: Count | None = Field(default=None, description="Those that failed or took longer than the limit.")
    overloaded: bool | None = Field(
        default=None, description="True if requests were sent faster than they were answered."
    )
    problems: tuple[str, ...] = ()
    model: str | None = Field(default=None, description="The colocated model that requests and violations are of.")
    change: str | None = Field(
        default=None,
        description="How the run changed in its middle, in words: nearly all late requests were in one half. "
        "null: it did not, or it was overloaded.",
    )
    began_unix_s: float | None = Field(
        default=None, description="When it began; null: an earlier version did not keep it."
    )

    @property
    def word(self) -> str:
        """The answer, or the tendency, in a word or two, with the colocated model whose limit was not met."""
        word = run_word(
            self.answer, met=self.met, overloaded=bool(self.overloaded), late=self.violations, n=self.requests
        )
        return word if self.model is None or self.met else f"{self.model} {word}"


class LoadRunRecord(SentLoadRecord):
    """One load run of a trial."""

    trusted: bool = Field(description="False if the client or the machine disturbed the run; see `problems`.")
    seed: int | None = Field(default=None, description="Seed of the arrivals.")


def run_word(answer: str | None, *, met: bool, overloaded: bool, late: int | None, n: int | None) -> str:
    """Return overloaded, met, violated, looks met, looks violated or inconclusive, by what a load run showed.

    `late` of `n` requests violated a limit, None if that was not kept.
    """
    if overloaded:
        return "overloaded"
    if answer in ("met", "violated"):
        return answer
    if met:
        return "looks met"
    return "looks violated" if late is None or n is None or late else "inconclusive"


class ReplayRecord(Record):
    """A replay: the arrivals of a load run in the simulator, with execution times scaled to match the run."""

    slowdown: float = Field(description="Execution times in the run over those of the profile.")
    rate_per_s: float = Field(description="The capacity with execution times scaled by `slowdown`.")
    error: float | None = Field(description="Standard error of its logarithm; null if no rate meets the SLO.")


class TrialRecord(Record):
    """One line of `trials.jsonl`."""

    schema_version: Literal[2] = SCHEMA_VERSION
    number: int
    config: ConfigRecord
    state: TrialState
    reason: str
    rate_at_limit_per_s: float | None = Field(
        description="The estimated capacity, the highest rate that meets the SLO, and not below one that met it. "
        "Pruned: an upper bound of it. Infeasible: 0 if no rate meets the SLO. Failed: null."
    )
    rate_low_per_s: float | None
    rate_high_per_s: float | None
    lone_latency_ms: float | None = Field(
        description="Median latency on an idle server; null if it was not measured."
    )
    measurement: MeasurementRecord | None
    probes: Count = Field(description="Number of load runs.")
    loading_s: float
    load_s: float
    certificate: CertificateRecord | None
    load_runs: tuple[LoadRunRecord, ...] = Field(
        default=(),
        description="The winner of an earlier version may have one more, at the certified rate of the default.",
    )
    memory_bytes: int | None = Field(default=None, description="Peak memory of the server; null if not measured.")
    why: WhyRecord | None = Field(default=None, description="null in files of earlier versions.")
    replay: ReplayRecord | None = Field(
        default=None, description="null if nothing was replayed, or the replay had no result."
    )
    hardware: str | None = Field(default=None, description="The machine that measured it.")
    worker: str | None = Field(
        default=None, description="The worker that measured it; null for the process of the run."
    )
    contention: CpuContention | None = Field(
        default=None, description="CPU contention during the trial; null if not measured."
    )
    answers: AnswersRecord | None = Field(
        default=None,
        description="Compared when a rate was first met in certification; null before, and in files of earlier "
        "versions. A trial whose batches mix rows fails, as do those with the same engine and no smaller batches.",
    )

    @property
    def mixes_rows(self) -> bool:
        """True if batches as large as its own, with its engine, mix the rows of requests."""
        return self.answers is not None and self.answers.mixed

    @property
    def changes(self) -> list[str]:
        """How load runs changed in their middle: `at 700/s 30 of the 30 requests over ... came in ...`."""
        return [f"at {format_rate(run.rate_per_s)}/s {run.change}" for run in self.load_runs if run.change]
