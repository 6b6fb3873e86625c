"""Provide a bundle for a model that is there to be served, written by `optimize bundle`."""

import subprocess
import sys
from pathlib import Path

import recommendations
from engines import plain_engine

from deploy.smoke import CONFIRMATION_LENGTHS
from loadgen.spec.limits import LatencyLimit
from model_repo.repository.write import write_final_repository
from model_repo.spec import ServingConfig, TensorSpec
from search.records.recommendation import RecommendationRecord
from search.records.slo import Slo

ROOT = Path(__file__).parents[2]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))

RATE_PER_S, LOAD_S = 60.0, 15
"""A certified rate that a machine a tenth as fast as usual keeps, and the seconds of load that decide it."""

SLO = Slo(limits=(LatencyLimit(limit_ms=500.0, quantile=0.9),))
"""A promise that survives a machine that stands still now and then."""


def config(folder: Path) -> ServingConfig:
    """The example's CNN: about a millisecond an image, so that the server and not the client is the limit."""
    path = folder / "tiny.onnx"
    subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(path)], check=True, timeout=240)
    engine = plain_engine(
        model_name="tiny",
        files=(("model.onnx", path),),
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, 64, 64)),),
        outputs=(TensorSpec(name="probabilities", datatype="FP32", shape=(10,)),),
    )
    # One instance: a core is left for Prometheus and the load, and for what else this machine does.
    return ServingConfig(engine=engine, max_batch_size=8, instance_count=1, intra_op_threads=1)


def recommendation(served: ServingConfig) -> RecommendationRecord:
    winner = recommendations.trial(
        config=served, certificate=recommendations.certificate(RATE_PER_S, seconds=LOAD_S / CONFIRMATION_LENGTHS)
    )
    found = recommendations.recommendation(winner=winner, slo=SLO)
    return found.model_copy(update={"model": found.model.model_copy(update={"name": "tiny"})})


def written_bundle(folder: Path) -> Path:
    """The bundle as a run writes it."""
    served = config(folder)
    run = folder / "run"
    write_final_repository(run / "model_repository", served)
    (run / "recommendation.json").write_text(recommendation(served).model_dump_json())
    subprocess.run([OPTIMIZE, "bundle", str(run), "--rate", "1000"], check=True, timeout=240, capture_output=True)
    return run / "bundle"
