"""What is read of Model Analyzer's results."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from own_repositories import python_model

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.model_analyzer.profile import choice_of, measurements_in
from model_analyzer import Comparison

from optimizer.run.prepare import prepare, read_inputs

LIMIT_MS = 50.0


def checkpoint(folder: Path, *measured: tuple[int, int, float, float]) -> Path:
    """Write a checkpoint as Model Analyzer 1.58 does, of (batch, instances, throughput, p99 in ms)."""
    variants = {}
    for number, (batch, instances, per_s, p99_ms) in enumerate(measured):
        config = {"maxBatchSize": batch, "instanceGroup": [{"count": instances, "kind": "KIND_CPU"}]}
        data = [["perf_latency_p99", {"_value": p99_ms}], ["perf_throughput", {"_value": per_s}]]
        parameters = {"batch-size": 1, "concurrency-range": 2 * batch * instances}
        model = {"_model_specific_pa_params": parameters, "_non_gpu_data": data}
        variants[f"m_config_{number}"] = [
            {"_model_run_configs": [{"_model_config_variant": {"model_config": config}}]},
            {"-m m": {"_model_config_measurements": [model]}},
        ]
    (folder / "0.ckpt").write_text(json.dumps({"ResultManager.results": {"_results": {"m": variants}}}))
    return folder


def test_its_recommendation_is_the_highest_throughput_that_met_the_limit(tmp_path: Path) -> None:
    checkpoint(tmp_path, (16, 4, 5000.5, 80.0), (8, 2, 3697.4, 44.1), (4, 2, 3000.1, 20.2))
    assert choice_of(measurements_in(tmp_path), LIMIT_MS) == {
        "knobs": {"max_batch_size": 8, "instance_count": 2},
        "promised_per_s": 3697.4,
        "promised_p99_ms": 44.1,
        "concurrency": 32,
    }


def test_there_may_be_no_recommendation(tmp_path: Path) -> None:
    assert choice_of(measurements_in(tmp_path), LIMIT_MS)["knobs"] is None
    assert choice_of(measurements_in(checkpoint(tmp_path, (16, 4, 5000.5, 80.0))), LIMIT_MS)["knobs"] is None


def test_both_tune_the_model_of_a_repository_from_its_own_configuration(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "scorer")
    options = Namespace(out=tmp_path, repository=tmp_path / "models", model="scorer", precision="fp32", engine="")
    comparison = Comparison(options)
    engine = comparison.engine(
        prepare(comparison.config, read_inputs(comparison.config, work_dir=comparison.config.output))
    )
    assert engine.model_name == "scorer"
    assert engine.own.text == (tmp_path / "models" / "scorer" / "config.pbtxt").read_text()
