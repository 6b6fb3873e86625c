"""Provide hand-made trials and recommendations, for tests of code that only shows or converts them."""

from pathlib import Path
from typing import Any

from engines import plain_engine

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.spec.limits import LatencyLimit
from model_repo.spec import Engine, ServingConfig, TensorSpec
from search.cost.cost import PriceRecord
from search.records.certificate import CertificateRecord, CertifiedLatencyRecord
from search.records.recommendation import (
    AccuracyRecord,
    CeilingsRecord,
    CostRecord,
    EngineProfileRecord,
    LayerRecord,
    MachineRecord,
    ModelRecord,
    OutputAccuracyRecord,
    RecommendationRecord,
    RuntimeRecord,
    SecondsRecord,
)
from search.records.slo import Slo
from search.records.trial import (
    MeasurementRecord,
    ServerTimingsRecord,
    TrialRecord,
)
from search.trials.bench import Spent
from search.trials.trial import Trial, trial_of


def engine(*, batched: bool = True) -> Engine:
    x = (TensorSpec(name="x", datatype="FP32", shape=(3,)),)
    return plain_engine(files=(("model.onnx", Path("model.onnx")),), inputs=x, outputs=x, batched=batched)


def config(**changes: Any) -> ServingConfig:
    known: dict[str, object] = {
        "engine": engine(),
        "max_batch_size": 8,
        "instance_count": 2,
        "intra_op_threads": 1,
    }
    return ServingConfig(**{**known, **changes})


def measurement(**changes: Any) -> MeasurementRecord:
    known: dict[str, object] = {
        "rate_per_s": 100.0,
        "achieved_rate_per_s": 100.0,
        "requests": 1000,
        "failures": 0,
        "latency_p50_ms": 10.0,
        "latency_p90_ms": 20.0,
        "latency_p95_ms": 25.0,
        "latency_p99_ms": 40.0,
        "latency_p999_ms": 50.0,
        "latency_mean_ms": 12.0,
        "latency_max_ms": 60.0,
        "send_lag_p99_ms": 0.1,
        "server": timings(),
        "network_and_client_ms": 0.5,
        "problems": (),
    }
    return MeasurementRecord(**{**known, **changes})


def timings(**changes: float) -> ServerTimingsRecord:
    known = {
        "queue_ms": 3.0,
        "compute_input_ms": 0.1,
        "compute_infer_ms": 8.0,
        "compute_output_ms": 0.2,
        "mean_batch_size": 2.5,
    }
    return ServerTimingsRecord(**{**known, **changes})


def certified_latency(**changes: Any) -> CertifiedLatencyRecord:
    known: dict[str, Any] = {
        "quantile": 0.99,
        "latency_ms": 30.0,
        "latency_low_ms": 28.0,
        "latency_high_ms": 36.0,
        "violations": 12,
    }
    return CertifiedLatencyRecord(**{**known, **changes})


def certificate(
    rate_per_s: float = 1000.0,
    *further: CertifiedLatencyRecord,
    first: dict[str, float] | None = None,
    **changes: Any,
) -> CertificateRecord:
    """Return a certificate; `first`: changes to the first limit's latency; `further`: those of later limits."""
    known: dict[str, object] = {
        "rate_per_s": rate_per_s,
        "latencies": (certified_latency(**(first or {})), *further),
        "confidence": 0.95,
        "requests": 20_000,
        "seconds": 20.0,
        "runs": 2,
    }
    return CertificateRecord(**{**known, **changes})


def contention(disturbed_s: float, *, of_s: float, cores: float = 0.9) -> CpuContention:
    return CpuContention(
        watched_s=of_s, disturbed_s=disturbed_s, others_cpu_s=cores * disturbed_s, stolen_cpu_s=0.0
    )


def trial(number: int = 3, **changes: Any) -> Trial:
    made = trial_of(
        number,
        changes.pop("config", None) or config(),
        "complete",
        "the capacity was found",
        spent=Spent(),
        rate_at_limit_per_s=1050.0,
        measurement=measurement(),
    )
    return made.changed(**{"certificate": certificate(), **changes})


def profile(name: str = "conv1", bound: Any = "arithmetic", **changes: Any) -> EngineProfileRecord:
    """Return the profile of an engine whose ten slowest layers have one name and one bound."""
    layers = tuple(
        LayerRecord(name=name, operator="Conv", mean_ms=3.0 - n / 10, share=0.6, bound=bound) for n in range(10)
    )
    known: dict[str, Any] = {
        "engine": "onnxruntime-fp32",
        "batch_size": 3,
        "execution_ms": 7.5,
        "layers": layers,
        "layer_count": 31,
        "bound_shares": {bound: 0.8},
        "operator_shares": {"Conv": 0.9, "Relu": 0.1},
        "ceilings": CeilingsRecord(flops_per_s=92e9, bytes_per_s=8e9),
        "profiler": "onnxruntime",
    }
    return EngineProfileRecord(**{**known, **changes})


def output_accuracy(**changes: Any) -> OutputAccuracyRecord:
    known: dict[str, Any] = {
        "output": "y",
        "batch_size": 1,
        "passed": True,
        "sqnr_db": 41.5,
        "exact": False,
        "cosine": 0.99999,
        "max_relative_error": 0.1,
        "top1_agreement": 0.995,
        "non_finite": 0,
    }
    return OutputAccuracyRecord(**{**known, **changes})


def accuracy(*outputs: OutputAccuracyRecord, **changes: Any) -> AccuracyRecord:
    known: dict[str, Any] = {
        "precision": "fp16",
        "runner": "onnxruntime-cpu",
        "level": "strict",
        "passed": True,
        "reason": "",
        "inputs": 256,
        "input_source": "synthetic",
        "note": "",
        "outputs": outputs or (output_accuracy(),),
    }
    return AccuracyRecord(**{**known, **changes})


def recommendation(**changes: Any) -> RecommendationRecord:
    baseline = trial(
        0,
        config=config(max_batch_size=4, intra_op_threads=0),
        certificate=certificate(500.0, runs=1),
        rate_at_limit_per_s=540.0,
    )
    known: dict[str, object] = {
        "tritune_version": "0.1.0",
        "created_at": "2026-11-21T10:00:00+00:00",
        "status": "certified",
        "model": ModelRecord(name="m", file="m.onnx", sha256="0" * 64, opset=17, batching="It has a batch."),
        "slo": Slo(limits=(LatencyLimit(limit_ms=50.0),)),
        "winner": trial(),
        "baseline": baseline,
        "gain": 2.0,
        "cost": CostRecord(
            price=PriceRecord(usd_per_hour=0.5, source="--price-per-hour", as_of="", describes="this machine"),
            cost_per_million_inferences_usd=0.139,
            baseline_cost_per_million_inferences_usd=0.278,
            rate_to_serve_per_s=2500.0,
            replicas=3,
            total_usd_per_hour=1.5,
        ),
        "alternatives": (),
        "reason": "It was the best.",
        "seconds": SecondsRecord(total=100.0, load=85.0, loading_models=10.0, other=5.0),
        "machine": MachineRecord(cpu="a processor", cores=2, memory_bytes=2**34, gpus=(), versions={}),
        "runtime": RuntimeRecord(
            server="embedded", runtime="python", triton_version="2.51.0", python="3.11", image=None, packages={}
        ),
        "seed": 0,
        "repository": "model_repository",
    }
    given = {**known, **changes}
    records: dict[str, Any] = {
        name: value.record if isinstance(value, Trial) else value for name, value in given.items()
    }
    return RecommendationRecord(**records)


def run_dir(folder: Path, found: RecommendationRecord | None = None, *trials: TrialRecord) -> Path:
    """Write the files of a run with these trials, and return its directory."""
    folder.mkdir(exist_ok=True)
    if found is not None:
        (folder / "recommendation.json").write_text(found.model_dump_json())
    lines = [entry.model_dump_json() + "\n" for entry in trials]
    (folder / "trials.jsonl").write_text("".join(lines))
    return folder
