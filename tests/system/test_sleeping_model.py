"""The sleeping model of the benchmarks on a real Triton: it takes as long as its law says, or a little longer."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from lib.exhaustive.subjects import SLEEPS, sleeping_subject

from model_repo.spec import ServingConfig

pytestmark = [pytest.mark.system, pytest.mark.measure]


def test_executions_take_what_the_law_says_for_their_size_and_for_how_many_are_busy(tmp_path: Path) -> None:
    law, _ = SLEEPS["cnn"]
    subject = sleeping_subject("cnn", tmp_path)
    config = ServingConfig(engine=subject.space.engines[0], max_batch_size=8, instance_count=2)
    with subject.serving(tmp_path) as bench:
        bench.load(config)
        alone, crowded = bench.saturate(1, 1.0, seed=1), bench.saturate(40, 2.0, seed=2)
    assert not alone.log.failed.any()
    assert not crowded.log.failed.any()
    (single,) = alone.batches
    assert single.infer_ms >= 1e3 * law.seconds(1, 1)
    full = max(crowded.batches, key=lambda row: row.executions)
    assert full.batch_size == 8
    # Nearly all of them began while the other instance was executing.
    assert 0.9 * 1e3 * law.seconds(8, 2) < full.infer_ms
