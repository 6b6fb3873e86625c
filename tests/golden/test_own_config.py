"""Differences that a search makes in users' own config.pbtxt of several backends. UPDATE_GOLDENS=1 rewrites."""

import dataclasses
import difflib
import os
from pathlib import Path

import pytest
from own_repositories import BACKENDS

from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_model import own_engine, parse_own
from search.space import MachineLimits, default_config, search_space

GOLDEN = Path(__file__).with_name("own_config")
MACHINE = MachineLimits(cores=8, memory_bytes=2**34)


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_config(tmp_path: Path, backend: str) -> None:
    name, text = BACKENDS[backend]
    (tmp_path / name / "1").mkdir(parents=True)
    engine = own_engine(tmp_path / name, text, on_gpu=backend != "onnxruntime_onnx")
    assert engine.precision in (backend, backend.partition("_")[2], backend.partition("_")[0])
    given = default_config(engine)
    assert render_config_pbtxt(given) == text
    space = search_space((engine,), MACHINE, limit_ms=50.0, largest_batch=max(1, engine.own.max_batch_size))
    middle = {name: values[len(values) // 2] for name, values in space.axes().items()}
    config = space.config({**middle, "engine": space.axes()["engine"][0]})
    changed = render_config_pbtxt(config)
    parsed = parse_own(changed)
    assert sum(max(1, group.count) for group in parsed.instance_group) == config.instance_count
    assert parsed.HasField("dynamic_batching") == config.dynamic_batching
    again = own_engine(tmp_path / name, changed, on_gpu=engine.device == "gpu")
    assert dataclasses.replace(default_config(again), engine=engine) == config
    lines = "".join(difflib.unified_diff(text.splitlines(True), changed.splitlines(True), "before", "after"))
    golden = GOLDEN / f"{backend}.diff"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(lines)
        pytest.fail(f"{golden.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert lines == golden.read_text()
