"""The Python environment of the processes that execute models inside Triton: the packages that we run with.

Triton's Python backend is an isolated interpreter. It ignores PYTHONPATH and the user's site-packages, and it puts
its current directory first on `sys.path`.
"""

from __future__ import annotations

import site
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from model_repo.errors import installed_version

_EVERYONE_MAY_WRITE = 0o002

_MODULE = "_tritune_search_path"
_OUR_CODE = Path(__file__).resolve().parents[2]  # an editable checkout runs this code anyway
_SET_SEARCH_PATH = """\
import site
import sys

for entry in {folders}:
    if entry in {sites}:
        site.addsitedir(entry)
    elif entry not in sys.path:
        sys.path.append(entry)
sys.path[:] = [entry for entry in sys.path if entry not in {left_out}]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPath:
    """The folders that Python searches, in order; and the entries left out of our `sys.path`, with reasons."""

    folders: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    def in_words(self) -> str:
        """Return words such as `/a, /b (left out: /c, a folder that everyone may write to)`."""
        left_out = "; ".join(f"{folder or '.'}, {why}" for folder, why in self.left_out)
        return ", ".join(self.folders) + (f" (left out: {left_out})" if left_out else "")


def search_path(entries: Iterable[str] | None = None) -> SearchPath:
    """Return `entries` (None: our `sys.path`) without those from which code of others could be imported."""
    kept: dict[str, None] = {}
    left_out: dict[str, str] = {}
    for entry in sys.path if entries is None else entries:
        try:
            why = _danger(Path(entry))
        except FileNotFoundError:  # sys.path usually has some
            continue
        except (OSError, RuntimeError):
            why = "which cannot be read"
        if why is None:
            kept[entry] = None
        else:
            left_out[entry] = why
    return SearchPath(folders=tuple(kept), left_out=tuple(left_out.items()))


def misread_numpy() -> str | None:
    """Return the version of our NumPy if the embedded Triton misreads its arrays: 2 and later.

    It takes each array of a model's outputs for an empty one, and dies of texts as inputs. Our own runtime passes
    tensors in another way.
    """
    found = installed_version("numpy")
    return found if found is not None and int(found.partition(".")[0]) > 1 else None


def _danger(entry: Path) -> str | None:
    mode = entry.stat().st_mode
    if entry.resolve() == Path.cwd() != _OUR_CODE:
        return "the current directory"
    if not entry.is_absolute():
        return "which depends on the current directory"
    return "a folder that everyone may write to" if mode & _EVERYONE_MAY_WRITE else None


def write_python_home(folder: Path) -> Path:
    """Make `folder` a virtual environment of our Python with our search path, and return it.

    It is for PATH and VIRTUAL_ENV of a server; nothing of it gets into a model repository.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "python3"
    program.unlink(missing_ok=True)
    program.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    found = search_path()
    # Whose .pth files our Python has processed: packages installed as editable need them.
    sites = (*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []))
    code = _SET_SEARCH_PATH.format(
        folders=ascii(found.folders), left_out=ascii(dict(found.left_out)), sites=ascii(sites)
    )
    # Not sitecustomize.py: Debian's and Ubuntu's Pythons have one of their own, which is found first.
    (packages / f"{_MODULE}.py").write_text(code)
    (packages / f"{_MODULE}.pth").write_text(f"import {_MODULE}\n")
    return folder
