"""Model repositories on disk: one folder per model, each written whole or not at all."""

from __future__ import annotations

import errno
import os
import py_compile
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from model_repo.config_pbtxt import render_config_pbtxt
from model_repo.errors import RepositoryWriteFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_repo.config_pbtxt import Runtime
    from model_repo.spec import Engine, ServingConfig

VERSION = "1"
"""The version folder of every model we write: one model, one version."""

README_FILE = "README.md"
"""In a finished repository, beside the model's folder."""

RUNTIME = Path(__file__).with_name("runtime")
"""The code that runs inside Triton's Python backend."""

PACKAGES = {"onnxruntime": "onnxruntime-gpu", "tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
"""Engine backend -> what its Python needs on a GPU, besides cuda-bindings and numpy."""

_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space, or choose another folder.",
    errno.EDQUOT: "The quota of this disk is used up: free some space, or choose another folder.",
    errno.EROFS: "The disk is read-only: choose a folder that can be written.",
    errno.EACCES: "You may not write there: choose another folder, or change its permissions.",
    errno.EPERM: "You may not write there: choose another folder, or change its permissions.",
    errno.ENOENT: "A file of the engine has gone; build the engine again.",
}

_README = """\
# Model repository for Triton

`{model_name}` as it was measured: a {engine} engine inside Triton's Python backend.

    tritonserver --model-repository=THIS_FOLDER

The path of this folder must not contain blanks: Triton's Python backend does not start with them.
The Python that it uses needs these packages, for instance in NVIDIA's container:

    pip install {packages}
"""


def write_repository(
    root: Path, config: ServingConfig, *, runtime: Runtime = "python", copy: bool = False
) -> Path:
    """`root/<model>`, holding `config.pbtxt` and the version folder; what stood there before is replaced.

    Engine files are hard links where the file system allows, unless `copy` asks for files of their own. Raises
    RepositoryWriteFailed; then nothing of the new model is left, and a model that stood there still does.
    """
    model_dir = root / config.engine.model_name
    with writing(model_dir):
        root.mkdir(parents=True, exist_ok=True)
        # The dot keeps Triton from taking the half-written folder for a model.
        draft = Path(tempfile.mkdtemp(prefix=f".{config.engine.model_name}-", dir=root))
        try:
            _write_model(draft, config, runtime, copy=copy)
            draft.chmod(0o755)
            replace_folder(model_dir, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return model_dir


def write_final_repository(root: Path, config: ServingConfig) -> Path:
    """A repository of its own under `root`, ready to serve: files are copies, and a README says how to start it.

    Gives the model's folder. Raises RepositoryWriteFailed.
    """
    model_dir = write_repository(root, config, copy=True)
    with writing(root):
        (root / README_FILE).write_text(_readme(config.engine))
    return model_dir


def runtime_files(engine: Engine) -> dict[str, Path]:
    """What the Python backend needs beside the engine: the name in the version folder -> our file.

    Raises ValueError where this engine cannot run without a GPU.
    """
    if engine.code is not None:
        return {"model.py": engine.code}
    if engine.device == "gpu":
        helpers = sorted((RUNTIME / "tritune_gpu").glob("*.py"))
        return {"model.py": RUNTIME / "gpu_model.py", **{f"tritune_gpu/{file.name}": file for file in helpers}}
    if engine.backend != "onnxruntime":
        raise ValueError(f"{engine.model_name}: a {engine.backend} engine runs on a GPU, not on the CPU")
    return {"model.py": RUNTIME / "onnx_runtime.py"}


def rewrite_config(root: Path, config: ServingConfig, *, runtime: Runtime = "python") -> Path:
    """`root/<model>` with a new `config.pbtxt` and nothing else touched, so that Triton may update it in place."""
    model_dir = root / config.engine.model_name
    with writing(model_dir):
        draft = model_dir / ".config.pbtxt"
        draft.write_text(render_config_pbtxt(config, runtime=runtime))
        draft.replace(model_dir / "config.pbtxt")
    return model_dir


def remove_model(root: Path, model_name: str) -> None:
    """Take a model out of a repository; nothing happens where it is not there."""
    shutil.rmtree(root / model_name, ignore_errors=True)


def _write_model(folder: Path, config: ServingConfig, runtime: Runtime, *, copy: bool) -> None:
    version_dir = folder / VERSION
    version_dir.mkdir()
    (folder / "config.pbtxt").write_text(render_config_pbtxt(config, runtime=runtime))
    for name, source in config.engine.files:
        place(source, version_dir / name, copy=copy)
    if runtime == "python":
        _add_runtime(version_dir, config.engine, compiled=not copy)


def _add_runtime(version_dir: Path, engine: Engine, *, compiled: bool) -> None:
    """Our code beside the engine's files, none of which can have a name of it."""
    for name, source in runtime_files(engine).items():
        target = version_dir / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        if compiled:
            # Else the first instance does it, and Triton takes the changed folder for a changed model.
            py_compile.compile(str(target), doraise=True)


def _readme(engine: Engine) -> str:
    on_gpu = f"{PACKAGES[engine.backend]} cuda-bindings numpy"
    return _README.format(
        model_name=engine.model_name,
        engine=f"{engine.backend} {engine.precision}",
        packages=on_gpu if engine.device == "gpu" else "onnxruntime numpy",
    )


def place(source: Path, target: Path, *, copy: bool) -> None:
    """`target` with the content of `source`: a hard link where there are such, unless `copy` is asked for."""
    if not copy:
        try:
            os.link(source.resolve(), target)
        except OSError as error:
            # Another file system, or one without hard links: a copy serves as well.
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
        else:
            return
    shutil.copyfile(source, target)


def replace_folder(target: Path, draft: Path) -> None:
    """`draft` becomes `target`. A folder cannot be renamed onto one with content, so the old one steps aside."""
    aside = draft.with_name(f"{draft.name}-old")
    if target.exists():
        target.rename(aside)
    try:
        draft.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What keeps the block from writing under `path` becomes RepositoryWriteFailed, with what to do about it."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Choose another folder.")
        where = error.filename or path
        raise RepositoryWriteFailed(f"{where} cannot be written: {error.strerror}.\n{advice}") from error
