"""Tests of the configuration that a run starts from: what is read of config.pbtxt, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from engines import plain_engine

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.spec import Engine
from optimizer.run.spaces import read_start
from search.space import default_config

THEIRS = """
name: "mlp" backend: "onnxruntime" max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: 64 }
output { name: "y" data_type: TYPE_FP32 dims: 8 }
instance_group [ { count: 2 }, { kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 300 preserve_ordering: true }
optimization { graph { level: 1 } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "execution_mode" value { string_value: "1" } }
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "model.onnx").write_bytes(b"x")
    return plain_engine(files=(("model.onnx", tmp_path / "model.onnx"),))


def pbtxt(folder: Path, text: str) -> Path:
    path = folder / "config.pbtxt"
    path.write_text(text)
    return path


def test_the_knobs_are_read_and_the_rest_is_named(tmp_path: Path, engine: Engine) -> None:
    config, ignored = read_start(pbtxt(tmp_path, THEIRS), (engine,))
    assert (config.max_batch_size, config.instance_count, config.intra_op_threads) == (
        16,
        4,
        1,
    )  # Triton has 2 of the CPU
    assert config.dynamic_batching
    assert (config.max_queue_delay_us, config.preferred_batch_sizes) == (300, (4, 8))
    assert set(ignored) == {"optimization", "parameters.execution_mode", "dynamic_batching.preserve_ordering"}
    rendered = render_config_pbtxt(config)
    assert "max_queue_delay_microseconds: 300" in rendered
    again, ignored = read_start(pbtxt(tmp_path, rendered), (engine,))
    assert again == replace(config, intra_op_threads=0)
    assert "backend python" in ignored


def test_what_is_missing_is_as_triton_completes_it(tmp_path: Path, engine: Engine) -> None:
    config, ignored = read_start(pbtxt(tmp_path, "max_batch_size: 8"), (engine,))
    assert (config.max_batch_size, config.dynamic_batching) == (8, True)
    assert config.instance_count == default_config(engine).instance_count
    assert ignored == ()
    for text in ('name: "mlp"', THEIRS[: THEIRS.index("output")].replace("16", "0")):
        assert read_start(pbtxt(tmp_path, text), (engine,))[0] == default_config(engine)
    one = read_start(pbtxt(tmp_path, "max_batch_size: 8 sequence_batching {}"), (engine,))[0]
    assert (one.max_batch_size, one.dynamic_batching) == (1, False)  # each request by itself


def test_a_complete_file_is_served_as_it_is(tmp_path: Path, engine: Engine) -> None:
    text = THEIRS[: THEIRS.index("instance_group")]
    for size in ("16", "0"):
        config, _ = read_start(pbtxt(tmp_path, text.replace("16", size)), (engine,))
        assert (config.max_batch_size, config.dynamic_batching) == (1, False)
    whole, _ = read_start(pbtxt(tmp_path, THEIRS), (replace(engine, batched=False),))
    assert (whole.max_batch_size, whole.dynamic_batching, whole.max_queue_delay_us) == (0, False, 0)


def test_what_is_changed_is_named(tmp_path: Path, engine: Engine) -> None:
    text = "max_batch_size: 128 dynamic_batching { preferred_batch_size: [ 32, 128 ] }"
    config, changed = read_start(pbtxt(tmp_path, text), (engine,))
    assert (config.max_batch_size, config.preferred_batch_sizes) == (64, (32,))
    assert [one.split(" (")[0] for one in changed] == ["max_batch_size 128", "preferred_batch_size 128"]


def test_the_engine_is_that_of_the_backend(tmp_path: Path, engine: Engine) -> None:
    others = (engine, replace(engine, precision="fp16"), replace(engine, backend="tensorrt"))
    for text in ("backend: 'tensorrt'", "platform: 'tensorrt_plan'"):
        assert read_start(pbtxt(tmp_path, text), others)[0].engine.backend == "tensorrt"
    assert read_start(pbtxt(tmp_path, ""), others)[0].engine == engine


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: many", "1:17"),
        ("nothing here", "config.pbtxt"),
        ("max_batch_size: 2 dynamic_batching {}", "max_batch_size 2"),
        (THEIRS[: THEIRS.index("instance_group")].replace("16", "2"), "max_batch_size 2"),
        ("max_batch_size: -1", "max_batch_size -1"),
        ("instance_group { count: -1 }", "count -1"),
        ("instance_group { count: 2000000000 }", "count 2000000000"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: -4 }", "preferred_batch_size -4"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 16 }", "preferred_batch_size 16"),
        ("platform: 'tensorrt_plan'", "tensorrt_plan"),
        ("backend: 'pytorch'", "pytorch"),
        (THEIRS.replace('string_value: "1" } }\nparameters', 'string_value: "x" } }\nparameters'), "'x'"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, engine: Engine, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_start(pbtxt(tmp_path, text), (engine,), rows_per_request=4)
    with pytest.raises(BadInput, match="cannot be read"):
        read_start(tmp_path, (engine,))
