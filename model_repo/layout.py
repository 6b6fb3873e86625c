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
    from model_repo.spec import Backend, ServingConfig

VERSION = "1"
"""The version folder of every model we write: one model, one version."""

RUNTIME_FILES: dict[Backend, Path] = {"onnxruntime": Path(__file__).with_name("runtime") / "onnx_runtime.py"}
"""Engine backend -> the code that becomes `model.py` in the Python backend."""

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

`{model_name}` as it was measured: ONNX Runtime inside Triton's Python backend.

    tritonserver --model-repository=THIS_FOLDER

The path of this folder must not contain blanks: Triton's Python backend does not start with them.
The Python that it uses needs ONNX Runtime and numpy, for instance in NVIDIA's container:

    pip install onnxruntime        # on a GPU: onnxruntime-gpu
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
            _replace_folder(model_dir, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return model_dir


def write_final_repository(root: Path, config: ServingConfig) -> Path:
    """A repository of its own under `root`, ready to serve: files are copies, and a README says how to start it.

    Gives the model's folder. Raises RepositoryWriteFailed.
    """
    model_dir = write_repository(root, config, copy=True)
    with writing(root):
        (root / "README.md").write_text(_README.format(model_name=config.engine.model_name))
    return model_dir


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
        target = version_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _place(source, target, copy=copy)
    if runtime == "python":
        model_py = Path(shutil.copyfile(_runtime_file(config), version_dir / "model.py"))
        if not copy:
            # Else the first instance does it, and Triton takes the changed folder for a changed model.
            py_compile.compile(str(model_py), doraise=True)


def _runtime_file(config: ServingConfig) -> Path:
    backend = config.engine.backend
    if backend not in RUNTIME_FILES:
        raise ValueError(f"Triton's Python backend runs {', '.join(RUNTIME_FILES)} engines here, not {backend}")
    return RUNTIME_FILES[backend]


def _place(source: Path, target: Path, *, copy: bool) -> None:
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


def _replace_folder(target: Path, draft: Path) -> None:
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
