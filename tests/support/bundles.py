"""Provide recommendations and engines for the tests of deployment bundles."""

import dataclasses
from pathlib import Path
from typing import Any

import recommendations
from engines import cnn_engine, plain_engine

from deploy.bundle import Bundle, bundle_from_recommendation
from deploy.images import Sources
from deploy.plan import BundleOptions
from model_repo.spec import ServingConfig, TensorSpec
from search.records.recommendation import MachineRecord, RecommendationRecord, ServedRecord

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "recorded_runs" / "early" / "recommendation.json"


def recorded() -> tuple[RecommendationRecord, ServingConfig]:
    """Return the measured recommendation for the demo model, and the serving of its winner."""
    found = RecommendationRecord.model_validate_json(RECORDED.read_text())
    engine = plain_engine(
        model_name=found.model.name,
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, 64, 64)),),
        outputs=(TensorSpec(name="probabilities", datatype="FP32", shape=(10,)),),
    )
    return found, ServingConfig(engine=engine, max_batch_size=8, instance_count=2, intra_op_threads=1)


def on_gpu(backend: str = "tensorrt") -> tuple[RecommendationRecord, ServingConfig]:
    """Return an invented recommendation for a TensorRT engine."""
    found = recommendations.recommendation(
        machine=MachineRecord(cpu="a processor", cores=8, memory_bytes=2**35, gpus=("NVIDIA L4",), versions={}),
        served=ServedRecord(replica_start_s=9.5, memory_bytes=3 * 2**30),
    )
    engine = plain_engine(
        model_name="m",
        backend=backend,
        precision="fp16",
        device="gpu",
        model_file="model.plan",
        files=(("model.plan", Path("somewhere/model.plan")),),
    )
    return found, ServingConfig(
        engine=engine, max_batch_size=8, instance_count=2, cuda_graph_batch_sizes=(1, 8), max_queue_delay_us=500
    )


def named(model_name: str) -> tuple[RecommendationRecord, ServingConfig]:
    """Return the recorded recommendation for a model of another name."""
    found, config = recorded()
    model = found.model.model_copy(update={"name": model_name})
    engine = dataclasses.replace(config.engine, model_name=model_name)
    return found.model_copy(update={"model": model}), dataclasses.replace(config, engine=engine)


def on_disk(
    folder: Path, *, model_name: str = "cnn", rate_per_s: float = 1000.0
) -> tuple[RecommendationRecord, ServingConfig]:
    """Return a recommendation for a tiny CNN whose files exist."""
    config = ServingConfig(
        engine=cnn_engine(folder, model_name=model_name), max_batch_size=8, instance_count=2, intra_op_threads=1
    )
    winner = recommendations.trial(config=config, certificate=recommendations.certificate(rate_per_s))
    model = recommendations.recommendation().model.model_copy(update={"name": model_name})
    return recommendations.recommendation(model=model, winner=winner), config


ON_GPU = BundleOptions(tensorrt_version="10.9.0.34")
"""A bundle also needs the version that built the engine."""


SOURCES = Sources(
    python="3.11",
    server={"numpy": "1.26.4", "nvidia-pytriton": "0.7.0", "onnxruntime-gpu": "1.31.1"},
    client={"locust": "2.47.0", "numpy": "1.26.4"},
    wheel_name="tritune-0.1.0-py3-none-any.whl",
    wheel=b"no wheel",
)
"""Stand-ins for the packages of an installation, so that golden files are the same everywhere."""


def bundle(**options: Any) -> Bundle:
    """Write the bundle of the recorded recommendation."""
    return bundle_from_recommendation(*recorded(), **{"sources": SOURCES, **options})
