"""Write down what Python does to files, in this process and in those that it starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOG = "TRITUNE_FILE_EVENTS"
"""The environment variable with the path of the log; nothing is written down without it."""

_NO_FOLDER = -1
_OF_ENTRIES = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "shutil.rmtree": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
}
"""Audit events on entries of folders, and where the path and the descriptor of its folder are in the arguments."""

_ONLY_NEW = ("os.mkdir", "os.link", "os.symlink")
"""These fail where there is something already."""

_OF_FILES = {"open": None, "os.truncate": None, "os.chmod": 2, "os.chown": 3, "os.utime": 3}
"""Audit events on what the first argument leads to, links followed, and where that descriptor is."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
_TEMPORARY = os.O_TMPFILE & ~os.O_DIRECTORY
_installed = False


@contextmanager
def file_events(folder: Path) -> Iterator[Path]:
    """Yield the log of the events of the block, in `folder`; Python processes that begin in it write there too."""
    install()
    folder.mkdir(exist_ok=True)
    log = folder / "events.jsonl"
    log.touch()
    here = Path(__file__).parent
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(here)!r})\nimport file_events\nfile_events.install()\n"
    )
    before = {name: os.environ.get(name) for name in (LOG, "PYTHONPATH")}
    path = os.pathsep.join(filter(None, [str(folder), before["PYTHONPATH"]]))
    os.environ.update({LOG: str(log), "PYTHONPATH": path})
    try:
        yield log
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def trespasses(log: Path, ours: Collection[Path]) -> set[tuple[str, str]]:
    """Return event and path of whatever was done to one that is not below `ours`, nor made earlier in the log."""
    made = {os.path.realpath(path) for path in ours}
    found = set()
    for line in log.read_text().splitlines():
        event, path, existed = json.loads(line)
        if made.isdisjoint((path, *map(str, Path(path).parents))):
            if event in (*_ONLY_NEW, "open", "renamed to") and not existed:
                made.add(path)
            elif event not in _ONLY_NEW:
                found.add((event, path))
    return found


def install() -> None:
    """Write events down from now on, wherever the environment says."""
    global _installed  # noqa: PLW0603 - a hook cannot be taken away
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _OF_ENTRIES:
        for number, (at, folder_at) in enumerate(_OF_ENTRIES[event]):
            _write("renamed to" if number else event, arguments[at], arguments[folder_at], follow=False)
    elif event in _OF_FILES and (event != "open" or _writes(arguments[2])):
        descriptor_at = _OF_FILES[event]
        _write(event, arguments[0], None if descriptor_at is None else arguments[descriptor_at], follow=True)


def _writes(flags: int) -> bool:
    return bool(flags & _WRITES) and not flags & _TEMPORARY


def _write(event: str, path: Any, folder: Any, *, follow: bool) -> None:
    log = os.environ.get(LOG)
    if log is None or isinstance(path, int):  # a file that is open already
        return
    within = Path.cwd() if folder in (None, _NO_FOLDER) else Path(f"/proc/self/fd/{folder}")
    whole = Path(os.path.abspath(within.resolve() / os.fsdecode(path)))  # noqa: PTH100 - `..` as text
    whole = whole.resolve() if follow else whole.parent.resolve() / whole.name
    exists = os.path.lexists(whole)
    if str(whole) == log or whole.is_relative_to("/proc") or (event == "open" and exists and not whole.is_file()):
        return  # a device, a pipe
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(file, (json.dumps([event, str(whole), exists]) + "\n").encode())
    os.close(file)
