"""Compile our own Triton backend, once per content of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from model_repo.spec import Engine, Runtime

SOURCE = Path(__file__).parent / "runtime" / "native"

LIBRARY = "libtriton_tritune.so"
"""Name by which Triton finds the library of the backend `tritune`, in the version folder of a model too."""

COMPILE_WITHIN_S = 60.0
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")


class NoBackend(RuntimeError):
    """Our backend cannot be compiled here; the text is the reason."""


def native_library(cache: Path | None = None) -> Path:
    """Return the compiled library; compile it if it is not in the cache, in a folder named by `source_key`.

    Raises NoBackend.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tritune", "native")
    cached = (cache or usual) / source_key() / LIBRARY
    if not cached.exists():
        _compile(cached.parent)
    for found in (path.stat() for path in (cached, cached.parent, cached.parent.parent)):
        if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NoBackend(f"{cached} or its folder can be written by others, and the server would execute it")
    return cached


def runtime_here(engine: Engine) -> Runtime:
    """Return the runtime of an engine in the embedded server: `python` if ours cannot serve it or be compiled."""
    runtime = engine.served_by("slots")
    if runtime == "slots":
        try:
            native_library()
        except NoBackend:
            return "python"
    return runtime


def source_key() -> str:
    """Return a hash of the source, the flags and the kind of machine."""
    found = hashlib.sha256("\n".join((*FLAGS, os.uname().machine)).encode())
    for file in sorted((*SOURCE.glob("*.c"), *SOURCE.glob("*.h"))):
        found.update(b"\0" + file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def compile_backend(target: Path, *, flags: tuple[str, ...] = FLAGS) -> None:
    """Compile the library to this file. Raises NoBackend."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoBackend("there is no C compiler (cc, gcc or clang) on PATH")
    sources = [str(file) for file in sorted(SOURCE.glob("*.c"))]
    try:
        ran = subprocess.run(
            [compiler, *flags, "-o", str(target), *sources],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBackend(f"{compiler} cannot be run: {error}") from error
    if ran.returncode != 0:
        raise NoBackend(f"{compiler} failed: {' '.join(ran.stderr.split())[:400]}")


def _compile(folder: Path) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            compile_backend(Path(draft, LIBRARY))
            Path(draft, LIBRARY).chmod(0o755)
            folder.mkdir(mode=0o700, exist_ok=True)
            Path(draft, LIBRARY).replace(folder / LIBRARY)
    except OSError as error:
        raise NoBackend(f"{error.filename or folder} cannot be written: {error.strerror}") from error
