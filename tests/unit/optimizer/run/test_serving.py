"""The load that a run sends to its server."""

import pytest
from engines import plain_engine

from model_repo.spec import TensorSpec
from optimizer.run.serving import load_processes

ALONE = ((1, 0.5), (64, 3.2))
"""20,000 rows a second in batches of 64, 2,000 one by one."""


def processes_for(
    shape: tuple[int, ...] | None, *, cores: int, limit_ms: float = 50.0, rows: int = 1, shared: bool = False
) -> int:
    engine = plain_engine()
    if shape is not None:
        engine = plain_engine(alone_ms=ALONE, inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),))
    return load_processes([engine], cores=cores, limit_ms=limit_ms, rows_per_request=rows, shared_memory=shared)


@pytest.mark.parametrize("shape", [(8,), (3, 64, 64), (3, 224, 224)])
def test_larger_inputs_and_more_cores_take_more_processes_and_never_more_than_half_the_cores(
    shape: tuple[int, ...],
) -> None:
    found = [processes_for(shape, cores=cores) for cores in (1, 2, 8, 16, 64)]
    assert found[:2] == [1, 1]
    assert found == sorted(found)
    assert all(count <= cores / 2 for count, cores in zip(found[1:], (2, 8, 16, 64), strict=True))
    assert processes_for((8,), cores=64) <= found[-1]
    assert processes_for(shape, cores=64, rows=64) <= found[-1]
    assert processes_for(shape, cores=64, shared=True) <= found[-1]


def test_what_an_engine_can_take_is_within_the_limit_and_may_be_unknown() -> None:
    assert processes_for((3, 224, 224), cores=32, limit_ms=0.5) == 5  # 2,000 rows a second
    assert processes_for(None, cores=32, limit_ms=0.5) == 4
