"""The cache of engines on disk: keyed by all inputs of the build, written atomically, verified when read."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from loadgen.errors import EnvironmentFailed
from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.runtime.tritune_gpu.tensorrt_engine import METADATA_FILE
from optimizer.cached import get_file, put_whole, whole_files

PLAN_FILE = "model.plan"
_FILES = (PLAN_FILE, METADATA_FILE)

Shape = tuple[int, ...]


class EngineKey(BaseModel):
    """All that decides what an engine is; its hash names the entry. `gpu` where the build measures on that GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_sha256: str
    precision: str
    profiles: tuple[dict[str, tuple[Shape, Shape, Shape]], ...]  # input -> least, usual, largest whole shape
    backend: Literal["tensorrt", "tensorrt_rtx"]
    library_version: str
    compute_capability: str
    gpu: str | None = None
    workspace_bytes: int

    @property
    def digest(self) -> str:
        """Return the name of the entry."""
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
    """The engine cannot be written to the cache's folder."""


class EngineCache:
    """A cache of engines below one folder, which several runs may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: EngineKey) -> tuple[Path, EngineMetadata] | None:
        """Return the entry's folder and metadata, None if there is none (see `whole_files`)."""
        entry = self._entry(key)
        with suppress(OSError):  # it has just been removed
            if files := whole_files(entry, METADATA_FILE, _FILES):
                for path in (entry / RUNTIME_CACHE_FILE, *entry.glob("*.part")):
                    get_file(path)  # removes a damaged one
                return entry, EngineMetadata.model_validate_json(files[METADATA_FILE].read_bytes())
        return None

    def put(self, plan: bytes, metadata: EngineMetadata) -> Path:
        """Write an entry and return its folder. Raises CacheWriteFailed, and then leaves nothing of it."""
        entry = self._entry(metadata.key)

        def fill(draft: Path) -> None:
            (draft / PLAN_FILE).write_bytes(plan)
            (draft / METADATA_FILE).write_text(metadata.model_dump_json(indent=2) + "\n", encoding="utf-8")

        try:
            put_whole(entry, METADATA_FILE, fill, _FILES)
        except OSError as error:
            raise CacheWriteFailed(
                f"The engine of {metadata.model_name} ({len(plan) / 1e6:.1f} MB) cannot be written below "
                f"{self.folder}: {error.strerror or error}.",
                "Free some space, or give another folder with --cache-dir.",
            ) from error
        return entry

    def _entry(self, key: EngineKey) -> Path:
        return self.folder / "engines" / f"{key.digest}-{os.geteuid()}"

    def timing_file(self, key: EngineKey) -> Path:
        """Return the file for the timings of builds with this library on this kind of GPU."""
        name = f"{key.backend}-{key.library_version}-{key.compute_capability}-{key.gpu}".replace(" ", "_")
        return self.folder / "timings" / f"{os.geteuid()}-{name.replace('/', '_')}.cache"


def entry_files(entry: Path) -> tuple[tuple[str, Path], ...]:
    """Return the files of a model's version folder, in the form of `Engine.files`."""
    names = (PLAN_FILE, METADATA_FILE, RUNTIME_CACHE_FILE)
    return tuple((name, entry / name) for name in names if (entry / name).exists())
