"""Compiling our backend once, and serving without it where there is no compiler."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from engines import plain_engine

from model_repo import native_library as library
from model_repo.server.options import ServerOptions
from model_repo.server.triton import with_usable_runtime
from model_repo.spec import ServerKind, TensorSpec

SERVERS: tuple[ServerKind, ...] = ("embedded", "local", "docker")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_it_is_compiled_once_per_content(tmp_path: Path) -> None:
    first = library.native_library(tmp_path)
    written = first.stat().st_mtime_ns
    assert library.native_library(tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert first.name == "libtriton_tritune.so"
    assert [entry.name for entry in tmp_path.iterdir()] == [library.source_key()]


@needs_compiler
@pytest.mark.parametrize("inside", ["", "KEY", "KEY/libtriton_tritune.so"])
def test_a_library_that_others_can_replace_is_not_loaded(inside: str, tmp_path: Path) -> None:
    cache = tmp_path / "native"
    library.native_library(cache)
    (cache / inside.replace("KEY", library.source_key())).chmod(0o777)
    with pytest.raises(library.NoBackend, match="can be written by others"):
        library.native_library(cache)


def test_without_a_compiler_the_python_backend_serves_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    options = ServerOptions(run_dir=tmp_path, runtime="slots")
    assert with_usable_runtime(options).runtime == "python"
    (line,) = options.log_file.read_text().splitlines()
    assert "Python backend" in line
    assert "no C compiler" in line


def test_it_is_for_engines_on_a_gpu_in_the_embedded_server(tmp_path: Path) -> None:
    runtimes = {
        (kind, gpu): ServerOptions(run_dir=tmp_path, kind=kind, gpu=gpu).runtime_or_default
        for kind in SERVERS
        for gpu in (False, True)
    }
    assert [key for key, runtime in runtimes.items() if runtime == "slots"] == [("embedded", True)]
    on_cpu = ServerOptions(run_dir=tmp_path)
    assert with_usable_runtime(on_cpu) == on_cpu, "nothing is compiled without a GPU"
    gpu, texts = (
        plain_engine(backend="tensorrt_rtx", device="gpu"),
        TensorSpec(name="words", datatype="BYTES", shape=(2,)),
    )
    assert gpu.served_by("slots") == "slots"
    assert plain_engine().served_by("slots") == "python"
    assert plain_engine(device="gpu").served_by("slots") == "python", "a session of ONNX Runtime has one stream"
    assert dataclasses.replace(gpu, inputs=(texts,)).served_by("slots") == "python"
    assert gpu.served_by("native") == "native"


def test_a_compiler_that_fails_is_reported_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "failing-cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: no such file' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(library.NoBackend, match=r"stdio\.h: no such file"):
        library.compile_backend(tmp_path / "library.so")
    assert not os.path.lexists(tmp_path / "library.so")
