"""Write model repositories: one folder per model, each complete or absent."""

from __future__ import annotations

import errno
import os
import py_compile
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_repo.errors import RepositoryWriteFailed
from model_repo.native_library import LIBRARY, native_library
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_model import CONFIG_FILE, own_files, own_versions
from model_repo.spec import VERSION, Engine, Runtime, ServingConfig

README_FILE = "README.md"
"""In a finished repository, next to the model's folder."""

RUNTIME = Path(__file__).parents[1] / "runtime"
"""The code that runs inside Triton's Python backend."""

LINKED_BYTES = 64 * 2**20
"""Files of a user's own model up to 64 MiB are copied for each trial, so that no model writes into another
trial's; larger ones, its weights, are linked."""

PACKAGES = {"onnxruntime": "onnxruntime-gpu", "tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
"""Engine backend -> the package that it needs on a GPU, apart from cuda-bindings and numpy."""

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

`{model_name}` as it was measured: {what}

    tritonserver --model-repository=THIS_FOLDER
"""

_OURS = """
The path of this folder must not contain blanks: Triton's Python backend does not start with them.
The Python that it uses needs these packages, for instance in NVIDIA's container:

    pip install {packages}
"""


def write_repository(
    root: Path, config: ServingConfig, *, runtime: Runtime = "python", copy: bool = False
) -> Path:
    """Write the folder `root/<model>`, after those of its members, and return it; models of before are replaced.

    It holds `config.pbtxt` and the version folder. Engine files are hard links if the file system allows, unless
    `copy` asks for copies. Raises RepositoryWriteFailed; then nothing of the new model is left, and a model that
    was there before still is.
    """
    for member in config.members:
        write_repository(root, member, runtime=runtime, copy=copy)
    model_dir = root / config.engine.model_name
    with _drafted(model_dir) as draft:
        _write_model(draft, config, runtime, copy=copy)
        draft.chmod(0o755)
        replace_folder(model_dir, draft)
    return model_dir


def write_final_repository(root: Path, config: ServingConfig, *, runtime: Runtime = "python") -> Path:
    """Write a repository ready to serve to `root`; return the model's folder. Raises RepositoryWriteFailed.

    Engine files are copies, and a README explains how to start a server.
    """
    model_dir = write_repository(root, config, runtime=runtime, copy=True)
    with writing(root):
        (root / README_FILE).write_text(_readme(config.engine))
    return model_dir


def runtime_files(engine: Engine, runtime: Runtime = "python") -> dict[str, Path]:
    """Return the files of our code next to the engine's: name in the version folder -> our file.

    Raises ValueError if this engine cannot run without a GPU, and NoBackend if our backend cannot be compiled.
    """
    if engine.own is not None:
        return {}
    if engine.code is not None:
        return {"model.py": engine.code}
    if engine.device == "gpu":
        helpers = sorted((RUNTIME / "tritune_gpu").glob("*.py"))
        if engine.served_by(runtime) == "slots":
            main = {"slots_model.py": RUNTIME / "slots_model.py", LIBRARY: native_library()}
        else:
            main = {"model.py": RUNTIME / "gpu_model.py"}
        return {**main, **{f"tritune_gpu/{file.name}": file for file in helpers}}
    if engine.backend != "onnxruntime":
        raise ValueError(f"{engine.model_name}: a {engine.backend} engine runs on a GPU, not on the CPU")
    return {"model.py": RUNTIME / "onnx_runtime.py"}


def rewrite_config(root: Path, config: ServingConfig, *, runtime: Runtime = "python") -> None:
    """Replace `config.pbtxt` in `root/<model>` alone, so that Triton may update it in place.

    Those of its members stay.
    """
    model_dir = root / config.engine.model_name
    with writing(model_dir):
        draft = model_dir / ".config.pbtxt"
        draft.write_bytes(render_config_pbtxt(config, runtime=runtime).encode())
        draft.replace(model_dir / "config.pbtxt")


def remove_model(root: Path, model_name: str) -> None:
    """Remove a model from a repository, if it is there."""
    shutil.rmtree(root / model_name, ignore_errors=True)


def _write_model(folder: Path, config: ServingConfig, runtime: Runtime, *, copy: bool) -> None:
    if config.engine.own is not None:
        _write_own(folder, config, config.engine.own.folder, copy=copy)
        return
    version_dir = folder / VERSION
    version_dir.mkdir()
    (folder / "config.pbtxt").write_text(render_config_pbtxt(config, runtime=runtime))
    for name, source in config.engine.files:
        place(source, version_dir / name, copy=copy)
    # None of the engine's files can have a name of ours.
    for name, source in runtime_files(config.engine, runtime).items() if runtime != "native" else ():
        target = version_dir / name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
        if not copy and target.suffix == ".py":
            # Else the first instance compiles it, and Triton takes the changed folder for a changed model.
            py_compile.compile(str(target), doraise=True)


def _write_own(folder: Path, config: ServingConfig, own: Path, *, copy: bool) -> None:
    _place_own(own, folder, copy=copy)
    (folder / CONFIG_FILE).write_bytes(render_config_pbtxt(config).encode())
    if (own / CONFIG_FILE).exists():
        shutil.copymode(own / CONFIG_FILE, folder / CONFIG_FILE)
    for code in folder.rglob("*.py") if not copy else ():  # see `_write_model`; Triton reports its errors
        py_compile.compile(str(code), quiet=2)


def keep_own(own: Path, target: Path, config: Path) -> None:
    """Copy a user's own model, whole, to a folder that is not there yet. Raises RepositoryWriteFailed.

    The copy's `config.pbtxt` is that of `config`, if there is such a file.
    """
    with _drafted(target) as draft:
        _place_own(own, draft, copy=True)
        if config.exists():
            shutil.copy(config, draft / CONFIG_FILE)
        draft.rename(target)


def _place_own(own: Path, folder: Path, *, copy: bool) -> None:
    for name in own_versions(own):  # a backend that needs no file is served from an empty one
        (folder / name).mkdir()
    for name, source in list(own_files(own)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        status = source.stat()
        place(source, target, copy=copy or status.st_size <= LINKED_BYTES)
        if not target.samefile(source):
            target.chmod(status.st_mode & 0o777 | 0o600)


def _readme(engine: Engine) -> str:
    if engine.own is not None:
        return _README.format(
            model_name=engine.model_name, what="your own model, with the changed `config.pbtxt`."
        )
    what = f"a {engine.backend} {engine.precision} engine inside Triton's Python backend."
    packages = f"{PACKAGES[engine.backend]} cuda-bindings numpy" if engine.device == "gpu" else "onnxruntime numpy"
    return _README.format(model_name=engine.model_name, what=what) + _OURS.format(packages=packages)


def place(source: Path, target: Path, *, copy: bool) -> None:
    """Make `target` a hard link to `source`; a copy if `copy` is set or hard links are not possible."""
    if not copy:
        try:
            os.link(source.resolve(), target)
        except OSError as error:
            # Another file system, or one without hard links: copy instead.
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
        else:
            return
    shutil.copyfile(source, target)


@contextmanager
def _drafted(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, for it; removed if the block does not rename it.

    Raises RepositoryWriteFailed.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # The dot keeps Triton from taking the half-written folder for a model.
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def replace_folder(target: Path, draft: Path) -> None:
    """Rename `draft` to `target`. A folder with content cannot be renamed over, so it is moved aside first."""
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
    """Turn an OSError of the block, which writes under `path`, into RepositoryWriteFailed with advice."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Choose another folder.")
        where = error.filename or path
        raise RepositoryWriteFailed(f"{where} cannot be written: {error.strerror}.\n{advice}") from error
