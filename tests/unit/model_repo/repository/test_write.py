import dataclasses
import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
from engines import cnn_engine, plain_engine

from model_repo.errors import RepositoryWriteFailed
from model_repo.repository import write
from model_repo.repository.config_pbtxt import parse_config_pbtxt
from model_repo.repository.write import rewrite_config, write_final_repository, write_repository
from model_repo.spec import Engine, ServingConfig


@pytest.fixture
def config(tmp_path: Path) -> ServingConfig:
    return ServingConfig(engine=cnn_engine(tmp_path / "engine"), max_batch_size=4)


def source_of(config: ServingConfig) -> Path:
    return dict(config.engine.files)["model.onnx"]


def files_in(folder: Path) -> list[Any]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )


def test_the_native_backends_need_no_python(tmp_path: Path, config: ServingConfig) -> None:
    write_repository(tmp_path / "repository", config, runtime="native")
    assert files_in(tmp_path / "repository") == ["cnn/1/model.onnx", "cnn/config.pbtxt"]


def test_engine_files_are_links_unless_copies_are_asked_for(tmp_path: Path, config: ServingConfig) -> None:
    linked = write_repository(tmp_path / "linked", config) / "1" / "model.onnx"
    copied = write_repository(tmp_path / "copied", config, copy=True) / "1" / "model.onnx"
    assert linked.samefile(source_of(config))
    assert not copied.samefile(source_of(config))
    assert copied.read_bytes() == source_of(config).read_bytes()


def test_engine_files_are_copied_where_links_are_impossible(
    tmp_path: Path, config: ServingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    copied = write_repository(tmp_path / "repository", config) / "1" / "model.onnx"
    assert copied.read_bytes() == source_of(config).read_bytes()


def test_code_for_the_backend_is_given_apart_from_the_files(tmp_path: Path, config: ServingConfig) -> None:
    own = tmp_path / "own.py"
    own.write_text("class TritonPythonModel: ...\n")
    engine = dataclasses.replace(config.engine, code=own)
    model_dir = write_repository(tmp_path / "repository", dataclasses.replace(config, engine=engine))
    assert (model_dir / "1" / "model.py").read_text() == own.read_text() == "class TritonPythonModel: ...\n"
    assert not (model_dir / "1" / "model.py").samefile(own)


def test_a_model_that_stood_there_is_replaced_whole(tmp_path: Path, config: ServingConfig) -> None:
    model_dir = write_repository(tmp_path / "repository", config)
    (model_dir / "1" / "stale.bin").write_bytes(b"")
    write_repository(tmp_path / "repository", dataclasses.replace(config, max_batch_size=2))
    assert "cnn/1/stale.bin" not in files_in(tmp_path / "repository")
    assert parse_config_pbtxt((model_dir / "config.pbtxt").read_text()).max_batch_size == 2
    assert [entry.name for entry in (tmp_path / "repository").iterdir()] == ["cnn"]


def test_a_failed_write_leaves_the_old_model_and_no_draft(tmp_path: Path, config: ServingConfig) -> None:
    root = tmp_path / "repository"
    write_repository(root, config)
    before = files_in(root)
    gone = dataclasses.replace(config.engine, files=(("model.onnx", tmp_path / "gone.onnx"),))
    with pytest.raises(RepositoryWriteFailed, match=r"gone\.onnx") as caught:
        write_repository(root, dataclasses.replace(config, engine=gone, max_batch_size=2))
    assert len(str(caught.value).splitlines()) == 2
    assert files_in(root) == before
    assert [entry.name for entry in root.iterdir()] == ["cnn"]


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path, config: ServingConfig) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryWriteFailed, match=r"file.* cannot be written"):
        write_repository(tmp_path / "file" / "repository", config)


def test_a_full_disk_is_a_clear_error(
    tmp_path: Path, config: ServingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "model.onnx"))

    monkeypatch.setattr(write.shutil, "copyfile", full)  # type: ignore[attr-defined]
    with pytest.raises(RepositoryWriteFailed, match="No space left") as caught:
        write_repository(tmp_path / "repository", config, copy=True)
    assert "free some space" in str(caught.value)
    assert list((tmp_path / "repository").iterdir()) == []


def test_a_new_config_touches_nothing_else(tmp_path: Path, config: ServingConfig) -> None:
    """Triton updates a model in place only if its other files are unchanged."""
    root = tmp_path / "repository"
    model_dir = write_repository(root, config)
    version = model_dir / "1"
    before = {path: path.stat().st_mtime_ns for path in (version, *version.rglob("*"))}
    rewrite_config(root, dataclasses.replace(config, instance_count=2))
    assert {path: path.stat().st_mtime_ns for path in (version, *version.rglob("*"))} == before
    assert parse_config_pbtxt((model_dir / "config.pbtxt").read_text()).instance_group[0].count == 2


def test_the_compiled_runtime_lies_ready(tmp_path: Path, config: ServingConfig) -> None:
    """Else the first instance compiles it, and Triton takes the changed folder for a changed model."""
    model_dir = write_repository(tmp_path / "repository", config)
    assert len(list((model_dir / "1" / "__pycache__").glob("model.*.pyc"))) == 1


def test_the_final_repository_stands_alone(tmp_path: Path, config: ServingConfig) -> None:
    write_final_repository(tmp_path / "final", config)
    assert files_in(tmp_path / "final") == ["README.md", "cnn/1/model.onnx", "cnn/1/model.py", "cnn/config.pbtxt"]
    assert not (tmp_path / "final/cnn/1/model.onnx").samefile(source_of(config))
    assert "pip install onnxruntime" in (tmp_path / "final" / "README.md").read_text()
    assert not list((tmp_path / "final").rglob("__pycache__"))


def test_an_engine_without_a_runtime_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(b"")
    engine = plain_engine(backend="tensorrt", model_file="model.plan", files=(("model.plan", file),))
    with pytest.raises(ValueError, match="a tensorrt engine runs on a GPU"):
        write_repository(tmp_path / "repository", ServingConfig(engine=engine, max_batch_size=4))


@pytest.mark.parametrize("engine", [plain_engine(), plain_engine(backend="tensorrt_rtx", device="gpu")])
def test_the_runtime_exists_and_imports_nothing_of_ours(engine: Engine) -> None:
    files = write.runtime_files(engine)
    assert "class TritonPythonModel" in files["model.py"].read_text()
    for file in files.values():
        assert not re.search(r"(import|from) (model_repo|search|loadgen|optimizer)", file.read_text())


def test_a_gpu_engine_brings_its_helpers_compiled(tmp_path: Path) -> None:
    file = tmp_path / "model.plan"
    file.write_bytes(b"plan")
    engine = plain_engine(backend="tensorrt", device="gpu", model_file="model.plan", files=(("model.plan", file),))
    version = write_repository(tmp_path / "repository", ServingConfig(engine=engine, max_batch_size=4)) / "1"
    helpers = {path.name for path in (version / "tritune_gpu").glob("*.py")}
    assert {"__init__.py", "driver.py", "runner.py", "tensorrt_engine.py"} <= helpers
    assert len(list((version / "tritune_gpu" / "__pycache__").iterdir())) == len(helpers)
