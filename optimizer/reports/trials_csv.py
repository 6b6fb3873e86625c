"""The measured trials of a run in the columns of Model Analyzer's `metrics-model-*.csv`."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.errors import BadInput
from loadgen.reports.csv_files import table
from optimizer.reports.evidence import Evidence
from search.labels import is_ensemble, is_own, member_name
from search.records.slo import Slo
from search.records.trial import ConfigRecord, GpuRecord, MeasurementRecord, TrialRecord

TRIALS_CSV = "trials.csv"

_MB = 1e6  # as Model Analyzer counts
_NO_GPU = GpuRecord(utilization=None, memory_used_bytes=None, power_w=None, energy_per_1000_inferences_j=None)


def trials_csv(evidence: Evidence) -> str:
    """Return a line per measured trial, and no column that is empty in all of them. Raises BadInput without any.

    `Model Config Path` is the model's name with the trial's number, and the rate is that of an open loop: Model
    Analyzer, too, has `Request Rate` in place of `Concurrency` then.
    """
    measured = [(trial, trial.measurement) for trial in evidence.trials if trial.measurement is not None]
    if not measured:
        raise BadInput(
            f"{evidence.directory} has no trial that was measured.",
            f"Go on with optimize --resume {evidence.directory}",
        )
    gpus = any(one.gpu is not None for _, one in measured)
    if evidence.found is not None:
        gpus, rows_per_request = bool(evidence.found.machine.gpus), evidence.found.workload.rows_per_request
    else:
        assert evidence.config is not None
        rows_per_request = evidence.config.client_batch
    rows = [_row(evidence, trial, one, rows_per_request, on_gpu=gpus) for trial, one in measured]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return table(columns, [[row[name] for name in columns] for row in rows])


def _row(
    evidence: Evidence, trial: TrialRecord, seen: MeasurementRecord, rows_per_request: int, *, on_gpu: bool
) -> dict[str, object]:
    config, stages_ms, gpu = trial.config, seen.stages_ms, seen.gpu or _NO_GPU
    # The groups of a model of one's own may be of several kinds, which the record does not have.
    kind = "" if on_gpu and is_own(config) else ":GPU" if on_gpu else ":CPU"
    return {
        "Model": evidence.model_name,
        "Batch": rows_per_request,
        "Request Rate": _rounded(seen.rate_per_s),
        "Model Config Path": f"{evidence.model_name}_trial_{trial.number}",
        "Instance Group": _of_each(config, lambda one: f"{one.instance_count}{kind}"),
        "Max Batch Size": _of_each(config, lambda one: one.max_batch_size),
        "Satisfies Constraints": "Yes" if _satisfies(evidence.slo, trial, seen) else "No",
        "Throughput (infer/sec)": _rounded(rows_per_request * seen.achieved_rate_per_s),
        "Avg Latency (ms)": _rounded(seen.latency_mean_ms),
        "p90 Latency (ms)": _rounded(seen.latency_p90_ms),
        "p95 Latency (ms)": _rounded(seen.latency_p95_ms),
        "p99 Latency (ms)": _rounded(seen.latency_p99_ms),
        "Server Queue time (ms)": _rounded(stages_ms["queue"]),
        "Server Compute Input time (ms)": _rounded(stages_ms["input"]),
        "Server Compute Infer time (ms)": _rounded(stages_ms["inference"]),
        "Server Compute Output time (ms)": _rounded(stages_ms["output"]),
        "RAM Usage (MB)": _rounded(trial.memory_bytes, per=_MB),
        "GPU Memory Usage (MB)": _rounded(gpu.memory_used_bytes, per=_MB),
        "GPU Utilization (%)": _rounded(gpu.utilization, per=0.01),
        "GPU Power Usage (W)": _rounded(gpu.power_w),
    }


def _of_each(config: ConfigRecord, figure: Callable[[ConfigRecord], int | str]) -> int | str:
    """Return a figure of the model; with members, one for each of the models by name."""
    if not config.members:
        return figure(config)
    own = () if is_ensemble(config) else (config,)
    return ", ".join(f"{member_name(one)} {figure(one)}" for one in (*own, *config.members))


def _satisfies(slo: Slo, trial: TrialRecord, seen: MeasurementRecord) -> bool:
    """True if the measurement can be trusted, and met the limits of latency and memory."""
    within = [
        (latency_ms := seen.latency_at_ms(one.quantile)) is not None and latency_ms <= one.limit_ms
        for one in slo.limits
    ]
    memory = slo.max_memory_bytes is None or (trial.memory_bytes or 0) <= slo.max_memory_bytes
    return all(within) and memory and not seen.problems


def _rounded(value: float | None, *, per: float = 1.0) -> float | None:
    return None if value is None else round(value / per, 3)
