import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import pytest

from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.read import NotOurRepository, engine_from_repository
from model_repo.repository.write import write_repository
from model_repo.spec import Engine, Runtime, ServingConfig

MAKERS = (
    engines.cnn_engine,
    engines.token_engine,
    engines.doubler_engine,
    engines.echo_engine,
    engines.fixed_batch_engine,
)


def read(model_dir: Path) -> Engine:
    return engine_from_repository(model_dir, backend="onnxruntime", precision="fp32")


def written(tmp_path: Path, engine: Engine, **changes: Any) -> tuple[ServingConfig, Path]:
    size = 8 if engine.batched else 0
    given: dict[str, Any] = {
        "max_batch_size": size,
        "dynamic_batching": size > 0,
        "instance_count": 2,
        "intra_op_threads": 1,
        **({"max_queue_delay_us": 1500, "preferred_batch_sizes": (4, 8)} if size else {}),
    }
    config = ServingConfig(engine=engine, **{**given, **changes})
    return config, write_repository(tmp_path / "repository", config)


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_written_comes_back(tmp_path: Path, make: Any) -> None:
    config, model_dir = written(tmp_path, make(tmp_path))
    back = read(model_dir)
    assert dict(back.files)[back.model_file].parent == model_dir / "1"
    assert dataclasses.replace(back, files=config.engine.files) == config.engine


@pytest.mark.parametrize("runtime", ["python", "native"])
def test_a_batch_axis_that_triton_does_not_add_renders_the_same(tmp_path: Path, runtime: Any) -> None:
    config, model_dir = written(
        tmp_path, engines.cnn_engine(tmp_path), max_batch_size=0, dynamic_batching=False, instance_count=1,
        max_queue_delay_us=0, preferred_batch_sizes=(),
    )  # fmt: skip
    back = dataclasses.replace(config, engine=read(model_dir))
    assert render_config_pbtxt(back, runtime=runtime) == render_config_pbtxt(config, runtime=runtime)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.pbtxt").unlink(),
        lambda folder: (folder / "config.pbtxt").write_text("not { a config"),
        lambda folder: (folder / "config.pbtxt").write_text("name: 'cnn'"),
        lambda folder: (folder / "1" / "model.onnx").unlink(),
    ],
    ids=["no config", "no protobuf", "next to nothing in it", "no model"],
)
def test_what_is_not_whole_is_named(tmp_path: Path, damage: Callable[[Any], Any]) -> None:
    _, model_dir = written(tmp_path, engines.cnn_engine(tmp_path))
    damage(model_dir)
    with pytest.raises(NotOurRepository) as refused:
        read(model_dir)
    assert str(model_dir) in str(refused.value)


def test_a_gpu_engine_comes_back_without_our_code(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"a plan")
    engine = engines.plain_engine(
        backend="tensorrt", device="gpu", model_file="model.plan", files=(("model.plan", plan),)
    )
    config, model_dir = written(tmp_path, engine, intra_op_threads=0, cuda_graph_batch_sizes=(1, 8))
    runtimes: tuple[Runtime, ...] = ("python", "slots")
    for runtime in runtimes:
        write_repository(model_dir.parent, config, runtime=runtime)
        code = {path.name for path in (model_dir / "1").iterdir()}
        assert ("tritune_gpu" in code, "slots_model.py" in code) == (True, runtime == "slots")
        back = engine_from_repository(model_dir, backend="tensorrt", precision="fp32")
        assert dict(back.files).keys() == {"model.plan"}
    again = dataclasses.replace(config, engine=back)
    for runtime in ("python", "native"):
        assert render_config_pbtxt(again, runtime=runtime) == render_config_pbtxt(config, runtime=runtime)


def test_external_data_belongs_to_the_engine(tmp_path: Path) -> None:
    _, model_dir = written(tmp_path, engines.cnn_engine(tmp_path))
    Path(model_dir / "1" / "weights-0.bin").write_bytes(b"0")
    assert dict(read(model_dir).files).keys() == {"model.onnx", "weights-0.bin"}


def test_a_file_that_we_do_not_write_is_named(tmp_path: Path) -> None:
    _, model_dir = written(tmp_path, engines.cnn_engine(tmp_path))
    Path(model_dir / "1" / "helpers.py").write_bytes(b"0")
    with pytest.raises(NotOurRepository, match=r"'helpers\.py' is not a name"):
        read(model_dir)
