"""The wheel of this installation, made from the installed files, so that a bundle needs no index that has it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
LEFT_OUT = {"__pycache__"}
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip file can hold. Every file has it, so that equal files give equal wheels."""

WHEEL = "Wheel-Version: 1.0\nGenerator: tritune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the file's name."""
    return f"tritune-{distribution('tritune').version}-py3-none-any.whl"


@functools.cache
def own_wheel() -> bytes:
    """Return the wheel: the same bytes for the same installation."""
    own = distribution("tritune")
    info = f"tritune-{own.version}.dist-info"
    files = dict(_files())
    files[f"{info}/WHEEL"] = WHEEL.encode()
    # An installation as editable may be found by its egg-info, whose metadata has the other name.
    files[f"{info}/METADATA"] = (own.read_text("METADATA") or own.read_text("PKG-INFO") or "").encode()
    files[f"{info}/entry_points.txt"] = (own.read_text("entry_points.txt") or "").encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return archive.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield (path in the wheel, content) of our packages."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not LEFT_OUT & set(path.relative_to(folder).parts):
                yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
