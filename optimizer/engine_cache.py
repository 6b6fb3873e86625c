"""Engines on disk by what they were made from: written whole or not at all, and never trusted unread."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from loadgen.scratch import scratch_folder
from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.runtime.tritune_gpu.tensorrt_engine import METADATA_FILE
from optimizer.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN_FILE = "model.plan"

Shape = tuple[int, ...]


class EngineKey(BaseModel):
    """All that decides what an engine is; its hash names the entry. `gpu` where the build measures on that GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_sha256: str
    precision: str
    profile: dict[str, tuple[Shape, Shape, Shape]]  # input -> least, usual, largest whole shape
    backend: Literal["tensorrt", "tensorrt_rtx"]
    library_version: str
    compute_capability: str
    gpu: str | None = None
    workspace_bytes: int

    @property
    def digest(self) -> str:
        """The name of its entry."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class EngineMetadata(BaseModel):
    """`engine.json` beside a plan: the runtime refuses the plan where version or compute capability differ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    model_name: str
    key: EngineKey
    library_version: str
    compute_capability: str
    rebuild: str  # the command
    plan_sha256: str
    plan_bytes: int
    executed: dict[str, int]  # heavy layers by the precision they compute in
    build_s: float


class CacheWriteFailed(EnvironmentFailed):
    """The cache's folder cannot take the engine."""


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`tritune` in the user's cache folder, as the XDG base directory specification has it."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tritune"


class EngineCache:
    """Engines below one folder, which several runs may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: EngineKey) -> tuple[Path, EngineMetadata] | None:
        """The entry's folder and metadata; None where there is none. A damaged entry is removed, and none."""
        entry = self._entry(key)
        if not entry.exists():
            return None
        try:
            metadata = EngineMetadata.model_validate_json((entry / METADATA_FILE).read_bytes())
            plan = (entry / PLAN_FILE).read_bytes()
        except (OSError, ValidationError):
            shutil.rmtree(entry, ignore_errors=True)
            return None
        if metadata.key != key or hashlib.sha256(plan).hexdigest() != metadata.plan_sha256:
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return entry, metadata

    def put(self, plan: bytes, metadata: EngineMetadata) -> Path:
        """The new entry's folder. Raises CacheWriteFailed; then nothing of it is left."""
        entry = self._entry(metadata.key)
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder("engine", entry.parent) as draft:
                _write(draft / PLAN_FILE, plan)
                _write(draft / METADATA_FILE, metadata.model_dump_json(indent=2).encode() + b"\n")
                try:
                    draft.rename(entry)
                except OSError:
                    if self.find(metadata.key) is None:  # else another run was faster, and its engine is as good
                        raise
        except OSError as error:
            raise CacheWriteFailed(
                f"The engine of {metadata.model_name} ({len(plan) / 1e6:.1f} MB) cannot be written below "
                f"{self.folder}: {error.strerror or error}.",
                "Free some space, or give another folder with --cache-dir.",
            ) from error
        return entry

    def timing_cache(self, key: EngineKey) -> bytes:
        """What earlier builds with this library on this kind of GPU measured; b"" for nothing yet."""
        try:
            return self._timing_file(key).read_bytes()
        except OSError:
            return b""

    def put_timing_cache(self, key: EngineKey, timings: bytes) -> None:
        """Keep it for the next build. A disk that has no room for it costs that build some time, and no more."""
        self.put_beside(self._timing_file(key), timings)

    @staticmethod
    def put_beside(path: Path, data: bytes) -> bool:
        """Replace a file of no importance in one step; False where it could not be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder("cache", path.parent) as folder:
                _write(folder / path.name, data)
                (folder / path.name).replace(path)
        except OSError:
            return False
        return True

    def _entry(self, key: EngineKey) -> Path:
        return self.folder / "engines" / key.digest

    def _timing_file(self, key: EngineKey) -> Path:
        name = f"{key.backend}-{key.library_version}-{key.compute_capability}-{key.gpu}".replace(" ", "_")
        return self.folder / "timings" / f"{name.replace('/', '_')}.cache"


def entry_files(entry: Path) -> tuple[tuple[str, Path], ...]:
    """What belongs into a model's version folder, as `Engine.files` has it."""
    names = (PLAN_FILE, METADATA_FILE, RUNTIME_CACHE_FILE)
    return tuple((name, entry / name) for name in names if (entry / name).exists())


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
