"""What Triton's own front ends let through."""

from dataclasses import replace
from pathlib import Path

import pytest
from engines import broken_engine
from onnx_models import small_cnn

from loadgen.spec.limits import LatencyLimit
from model_repo.errors import ModelLoadFailed
from optimizer.config import OptimizeConfig
from optimizer.model.graph_inputs import InputType
from optimizer.run.front_ends import ROUNDS, measure_front_ends
from optimizer.run.prepare import Prepared, prepare, read_inputs
from search.simulator.surrogate import kinds_to_profile

pytestmark = pytest.mark.system


@pytest.fixture
def config(tmp_path: Path) -> OptimizeConfig:
    config = OptimizeConfig(
        model=small_cnn(tmp_path / "cnn.onnx"),
        limits=(LatencyLimit(limit_ms=50.0),),
        output=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        precisions=("fp32",),
    )
    config.output.mkdir()
    return config


@pytest.fixture
def prepared(config: OptimizeConfig, tmp_path: Path) -> Prepared:
    return prepare(config, read_inputs(config, work_dir=tmp_path / "work"))


def test_both_are_measured_and_nothing_but_the_log_is_left(config: OptimizeConfig, prepared: Prepared) -> None:
    found = measure_front_ends(config, prepared)
    assert found is not None
    assert len(found.http) == len(found.grpc) == ROUNDS
    assert [path.name for path in config.output.iterdir()] == ["server.log"]


def test_where_bodies_may_bound_the_rate_smaller_ones_are_measured_too(
    config: OptimizeConfig, prepared: Prepared
) -> None:
    (engine,) = prepared.engines
    quick = replace(engine, alone_ms=((1, 0.01),))  # 12 kB each 10 us
    prepared = replace(prepared, space=replace(prepared.space, engines=(quick,)))
    found = measure_front_ends(config, prepared)
    assert found is not None
    assert found.with_input_types.keys() == {"image:uint8", "image:fp16"}
    given = replace(config, input_types={"image": InputType(datatype="uint8")})
    found = measure_front_ends(given, prepared)
    assert found is not None
    assert found.with_input_types == {}


def test_the_next_engine_is_measured_if_the_first_does_not_load(
    config: OptimizeConfig, prepared: Prepared, tmp_path: Path
) -> None:
    first = next(iter(kinds_to_profile(prepared.space)))
    (good,) = prepared.engines
    broken = replace(good, precision="int8", files=broken_engine(tmp_path).files, alone_ms=((1, 0.001),))
    space = replace(prepared.space, engines=(good, broken))
    assert kinds_to_profile(space)[0]["engine"] != first["engine"]
    assert measure_front_ends(config, replace(prepared, space=space)) is not None
    with pytest.raises(ModelLoadFailed):
        measure_front_ends(config, replace(prepared, space=replace(space, engines=(broken,))))
