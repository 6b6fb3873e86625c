"""Keep results on disk for later runs, by their content: under a hash of everything that decides them.

An entry is a folder with `entry.json` and files. It appears whole or not at all, so runs may share the cache. Only
its user can read it, and one SHA-256 covers all that is in it. Results are in JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.files import flush_folder, sha256_of, whole_file
from loadgen.processes import scratch_folder

ENTRY_FILE = "entry.json"
SUM_FILE = "sha256"
MAX_BYTES = 20 * 2**30
"""The entries take 20 GiB at most: beyond, those that were not used for the longest time are removed. Engines are
not counted."""

MAX_READ_BYTES = 256 * 2**20
"""What is read as a whole takes 256 MiB at most: records, hashes, timings and kernels."""

ENTRY_NAME = re.compile(r"[a-z]+-[0-9a-f]{32}")

RESULTS = "results"
"""The folder of the entries in the cache's folder."""

SWITCH = "TRITUNE_CACHE"
"""The environment variable that switches the results off if it is `off`; engines are kept nevertheless."""

Key = Mapping[str, Any]
"""All that decides a result, as JSON."""


def default_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `tritune` in the user's cache folder, by the XDG base directory specification."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tritune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A result of an earlier run: its value in JSON, and its files by name."""

    value: Any
    files: Mapping[str, Path]

    def copied(self, folder: Path) -> dict[str, Path]:
        """Copy the files to `folder`, in place of others of these names; return the copies. Raises OSError.

        Copies, as the entry may be removed while they are in use, and ONNX refuses weights with several links.
        """
        folder.mkdir(parents=True, exist_ok=True)
        return {name: Path(shutil.copyfile(path, folder / name)) for name, path in self.files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCache:
    """The results below one folder; `folder` None: nothing is kept or found."""

    folder: Path | None
    most_bytes: int = MAX_BYTES

    def find(self, kind: str, key: Key) -> Entry | None:
        """Return the result of this kind and key, None if there is none (see `whole_files`)."""
        if self.folder is None:
            return None
        folder = self._entry(self.folder, kind, key)
        with suppress(OSError):  # it has just been removed
            if files := whole_files(folder, ENTRY_FILE):
                os.utime(folder)
                return Entry(value=json.loads(files.pop(ENTRY_FILE).read_bytes())["value"], files=files)
        return None

    def put(self, kind: str, key: Key, value: Any, files: Mapping[str, Path] | None = None) -> None:
        """Keep a result with copies of its files; if it cannot be written, the next run only takes longer."""
        if self.folder is None:
            return
        files = files or {}
        with suppress(OSError):
            if (size_bytes := sum(path.stat().st_size for path in files.values())) > self.most_bytes:
                return
            self._make_room(self.folder / RESULTS, size_bytes)

            def fill(draft: Path) -> None:
                for name, path in files.items():
                    shutil.copyfile(path, draft / name)
                text = json.dumps({"key": _plain(key), "value": value}, indent=1)
                (draft / ENTRY_FILE).write_text(text + "\n", encoding="utf-8")

            put_whole(self._entry(self.folder, kind, key), ENTRY_FILE, fill)

    def remove(self, kind: str, key: Key) -> None:
        """Remove a result that turned out to be wrong."""
        if self.folder is not None:
            shutil.rmtree(self._entry(self.folder, kind, key), ignore_errors=True)

    @staticmethod
    def _entry(folder: Path, kind: str, key: Key) -> Path:
        text = json.dumps([kind, _plain(key), os.geteuid()], sort_keys=True)
        return folder / RESULTS / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _make_room(self, results: Path, size_bytes: int) -> None:
        """Remove the entries that were not used for the longest time, until `size_bytes` more fit."""
        found = (path.parent for path in results.glob(f"*/{ENTRY_FILE}"))
        entries = [path for path in found if ENTRY_NAME.fullmatch(path.name)]
        sizes = {path: sum(file.lstat().st_size for file in path.iterdir()) for path in entries}
        for path in sorted(entries, key=lambda one: one.stat().st_mtime):
            if sum(sizes.values()) + size_bytes <= self.most_bytes:
                return
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]


NO_CACHE = ResultCache(folder=None)


def result_cache(folder: Path, environment: Mapping[str, str] = os.environ) -> ResultCache:
    """Return the cache of results in `folder`, switched off if the environment says so."""
    return NO_CACHE if environment.get(SWITCH, "").lower() == "off" else ResultCache(folder=folder)


def whole_files(entry: Path, record: str, names: Collection[str] | None = None) -> dict[str, Path] | None:
    """Return the files of an entry by name, None if there is none; all, or these alone if others are added later.

    An entry of another user, or that others may write to, is passed by; one that is damaged is removed.
    """
    if not os.path.lexists(entry):
        return None
    with suppress(OSError, ValueError, KeyError):
        found = entry.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        files = {path.name: path for path in entry.iterdir() if names is None or path.name in (*names, SUM_FILE)}
        small = max(_size_of(entry / name) for name in (record, SUM_FILE)) <= MAX_READ_BYTES
        fits = small and sum(map(_size_of, files.values())) <= MAX_BYTES
        if fits and files.pop(SUM_FILE).read_text() == sha256_of(entry / record, files):
            return files
    shutil.rmtree(entry, ignore_errors=True)
    return None


def _size_of(path: Path) -> int:
    """Return the bytes of a file. Raises ValueError for a link, a FIFO, and what others own or may write."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ValueError(path)
    return found.st_size


def put_whole(
    entry: Path, record: str, fill: Callable[[Path], None], names: Collection[str] | None = None
) -> None:
    """Write an entry that appears complete, for this user alone; `fill` writes its files, the `record` among them.

    If another process was faster, its entry stays (see `whole_files`); one that was passed by goes. Raises
    OSError, and leaves nothing then.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("entry", entry.parent) as draft:
        fill(draft)
        (draft / SUM_FILE).write_text(sha256_of(draft / record, {path.name: path for path in draft.iterdir()}))
        for path in draft.iterdir():
            path.chmod(0o600)
        draft.chmod(0o700)
        flush_folder(draft)
        if os.path.lexists(entry) and whole_files(entry, record, names) is None:
            shutil.rmtree(entry, ignore_errors=True)
        try:
            draft.rename(entry)
        except OSError:
            if whole_files(entry, record, names) is None:
                raise


def put_file(path: Path, data: bytes) -> None:
    """Replace a file and its hash, if they can be written: without it, the next run only takes longer."""
    with suppress(OSError):
        checksum = hashlib.sha256(data).hexdigest().encode()
        for part, content in ((path, data), (path.with_name(f"{path.name}.{SUM_FILE}"), checksum)):
            with whole_file(part) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(content)


def get_file(path: Path) -> bytes | None:
    """Return what this user's `put_file` wrote, None if there is nothing; any other file is removed."""
    with suppress(OSError, ValueError):
        checksum = path.with_name(f"{path.name}.{SUM_FILE}")
        small = max(_size_of(path), _size_of(checksum)) <= MAX_READ_BYTES
        if small and checksum.read_bytes() == sha256_of(path).encode():
            return path.read_bytes()
    with suppress(OSError):
        path.unlink()
    return None


@cache
def versions_digest() -> str:
    """Return a hash of Python's version, of all installed packages' versions, and of this package's code."""
    digest = hashlib.sha256(sys.version.encode())
    for text in sorted(_installed()):
        digest.update(text.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed() -> Iterator[str]:
    """Yield the names of the folders of packages' metadata, which hold names and versions."""
    for folder in filter(None, sys.path):
        with suppress(OSError):
            names = (path.name for path in Path(folder).iterdir())
            yield from (name for name in names if name.endswith((".dist-info", ".egg-info")))


def _plain(key: Key) -> Any:
    """Return the key as JSON returns it: tuples as lists."""
    return json.loads(json.dumps(key))
