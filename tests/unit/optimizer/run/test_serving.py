"""The load that a run sends to its server."""

import pytest
from engines import plain_engine

from model_repo.spec import TensorSpec
from optimizer.run.serving import load_processes

ALONE = ((1, 0.5), (64, 3.2))
"""20,000 rows a second in batches of 64, 2,000 one by one."""


@pytest.mark.parametrize(
    ("shape", "cores", "shared", "processes"),
    [
        ((8,), 1, False, 1),
        ((8,), 2, False, 1),
        ((8,), 8, False, 3),
        ((8,), 16, False, 4),
        ((3, 224, 224), 2, False, 1),
        ((3, 224, 224), 16, False, 8),  # 12 GB/s would take 43
        ((3, 64, 64), 32, False, 6),  # 1 GB/s
        ((3, 96, 96), 64, False, 10),  # 2.2 GB/s
        ((3, 224, 224), 16, True, 4),
    ],
)
def test_load_processes_follow_from_what_the_engine_can_take(
    shape: tuple[int, ...], cores: int, shared: bool, processes: int
) -> None:
    engine = plain_engine(alone_ms=ALONE, inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),))
    assert load_processes([engine], cores=cores, limit_ms=50.0, shared_memory=shared) == processes


def test_what_an_engine_can_take_is_within_the_limit_and_may_be_unknown() -> None:
    engine = plain_engine(alone_ms=ALONE, inputs=(TensorSpec(name="x", datatype="FP32", shape=(3, 224, 224)),))
    assert load_processes([engine], cores=32, limit_ms=0.5, shared_memory=False) == 5  # 2,000 rows a second
    assert load_processes([plain_engine()], cores=32, limit_ms=0.5, shared_memory=False) == 4
