"""The key of an exported PyTorch model in the cache: all that decides the ONNX file."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.files import sha256_of
from optimizer.cached import Key, versions_digest

if TYPE_CHECKING:
    import torch

KIND = "export"
PLAIN = (bool, int, float, str, type(None))


def key_of_program(path: Path, target: Path) -> Key:
    """Return the key of a `.pt2` file, whose contents decide everything. Raises OSError."""
    return {"program": sha256_of(path), "target": target.name, "versions": versions_digest()}


def key_of_factory(
    module: torch.nn.Module,
    example: Mapping[str, torch.Tensor],
    dynamic: Mapping[str, Mapping[int, str]],
    target: Path,
    *,
    by_name: bool,
) -> Key:
    """Return the key of the model that a factory made: weights, code, settings, inputs and versions.

    Other files that the factory reads are not in it, so what is found under the key has to be checked.
    """
    return {
        "state": _digest(_state(module)),
        "settings": _digest(_settings(module)),
        "inputs": [[name, str(value.dtype), list(value.shape)] for name, value in example.items()],
        "by_name": by_name,
        "dynamic": repr(sorted(dynamic.items())),
        "code": _digest(_code()),
        "target": target.name,
        "versions": versions_digest(),
    }


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.hexdigest()


def _state(module: torch.nn.Module) -> Iterator[bytes | memoryview]:
    """Yield all parameters and buffers, also those that no state dict has."""
    import torch

    for name, value in (*module.named_parameters(), *module.named_buffers()):
        yield f"{name} {value.dtype} {tuple(value.shape)}".encode()
        flat = value.detach().cpu().contiguous().flatten()
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def _settings(module: torch.nn.Module) -> Iterator[bytes]:
    """Yield each module's type and its plain attributes, such as a number of heads."""
    for name, part in module.named_modules():
        plain = {key: value for key, value in vars(part).items() if isinstance(value, PLAIN)}
        yield f"{name} {type(part).__qualname__} {sorted(plain.items())!r}".encode()


def _code() -> Iterator[bytes]:
    """Yield the source of all loaded modules that no package's version covers: the user's own."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    for _, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and not file.startswith(installed):
            with suppress(OSError):
                yield Path(file).read_bytes()
