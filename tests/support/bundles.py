"""Recommendations and engines for the tests of deployment bundles."""

import dataclasses
from pathlib import Path

import recommendations
from engines import cnn_engine, plain_engine

from deploy.bundle import bundle_from_recommendation
from deploy.plan import BundleOptions
from model_repo.spec import ServingConfig, TensorSpec
from search.records import MachineRecord, RecommendationRecord, ServedRecord

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "benchmarks" / "2026-11-21-first-light" / "demo" / "recommendation.json"


def recorded():
    """The answer for the demo model, as it was measured once; and how its winner was served."""
    found = RecommendationRecord.model_validate_json(RECORDED.read_text())
    engine = plain_engine(
        model_name=found.model.name,
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, 64, 64)),),
        outputs=(TensorSpec(name="probabilities", datatype="FP32", shape=(10,)),),
    )
    return found, ServingConfig(engine=engine, max_batch_size=8, instance_count=2, intra_op_threads=1)


def on_gpu(backend="tensorrt"):
    """A made-up answer for a TensorRT engine."""
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


def named(model_name):
    """The recorded answer for a model of another name."""
    found, config = recorded()
    model = found.model.model_copy(update={"name": model_name})
    engine = dataclasses.replace(config.engine, model_name=model_name)
    return found.model_copy(update={"model": model}), dataclasses.replace(config, engine=engine)


def on_disk(folder, *, model_name="cnn", rate_per_s=1000.0):
    """An answer for a tiny CNN whose files are there."""
    config = ServingConfig(
        engine=cnn_engine(folder, model_name=model_name), max_batch_size=8, instance_count=2, intra_op_threads=1
    )
    winner = recommendations.trial(config=config, certificate=recommendations.certificate(rate_per_s))
    model = recommendations.recommendation().model.model_copy(update={"name": model_name})
    return recommendations.recommendation(model=model, winner=recommendations.trial_to_record(winner)), config


ON_GPU = BundleOptions(tensorrt_version="10.9.0.34")
"""What has to be known besides: the version that built the engine."""


def bundle(**options):
    """The bundle of the recorded answer."""
    return bundle_from_recommendation(*recorded(), **options)
