"""Read a model of the user's own repository: its files, and its configuration as an engine."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_repo.repository.config_pbtxt import NATIVE_BACKENDS, config_message, datatype_of, parse_config_pbtxt
from model_repo.repository.own_config import BATCHER, GROUPS, with_counts
from model_repo.repository.pbtxt_text import added, fields, without_field
from model_repo.spec import ENSEMBLE, OWN, Engine, EnsembleStep, OwnModel, TensorSpec

CONFIG_FILE = "config.pbtxt"
_LEFT_OUT = ("__pycache__", ".git", ".ipynb_checkpoints")
_READ = (
    *("name", "platform", "backend", "max_batch_size", "input", "output", GROUPS, BATCHER, "model_warmup"),
    *("sequence_batching", "ensemble_scheduling", "model_transaction_policy"),
)
_FOUND_BY_FILE = {
    "model.py": "python",
    "model.onnx": "onnxruntime",
    "model.plan": "tensorrt_plan",
    "model.pt": "pytorch_libtorch",
    "model.savedmodel": "tensorflow_savedmodel",
    "model.graphdef": "tensorflow_graphdef",
}
_ON_GPU = ("KIND_GPU", "KIND_AUTO", "KIND_MODEL")

LARGEST_BATCH = 128
"""Batches of more rows are not tried: a larger `max_batch_size` counts as 128, and stays in the text as it is."""

MAX_FILES = 10_000
"""A folder with more files and folders is taken for one that a link leads to by mistake."""

COMPLETED = "# Completed from Triton's own configuration of the model:\n"


NOT_PLAIN = re.compile(r"[^\w/.+-]", re.ASCII)
"""Triton's Python backend puts names and paths of models into a shell's command, unquoted: none may have these."""


class IncompleteConfig(ValueError):
    """The configuration lacks what a server completes."""


def own_files(folder: Path, root: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield (path in the folder, file) for a model's files without `config.pbtxt`, in order. Raises OSError.

    Links are followed, also to folders; compiled Python and what is no regular file are left out. An OSError is
    also raised for more than MAX_FILES, for a link to no regular file or to a folder with the model in it, and
    (EXDEV) for one that leads out of `root`, a path without links.
    """
    model, count = folder.resolve(), 0
    _check_inside(folder, root)
    waiting: list[tuple[str, Path, tuple[Path, ...]]] = [("", folder, ())]
    while waiting:
        prefix, here, above = waiting.pop()
        for path in sorted(here.iterdir()):
            count += 1
            if count > MAX_FILES:
                raise OSError(errno.EFBIG, f"it holds more than {MAX_FILES:,} files and folders", str(folder))
            name = f"{prefix}{path.name}"
            if path.name in _LEFT_OUT:
                continue
            if path.is_symlink() and path.exists():
                _check_inside(path, root)
                _check_link(path, model)
            if name == CONFIG_FILE:
                continue
            if path.is_dir():
                within = (*above, here.resolve())
                if path.resolve() not in within:
                    waiting.append((f"{name}/", path, within))
            elif path.is_file():
                yield name, path


def _check_inside(path: Path, root: Path | None) -> None:
    target = path.resolve()
    if root is not None and not target.is_relative_to(root):
        raise OSError(errno.EXDEV, f"it leads out of the repository, to {target}", str(path))


def _check_link(path: Path, model: Path) -> None:
    if not path.is_dir() and not path.is_file():
        raise OSError(errno.EINVAL, "it leads to no regular file", str(path))
    if model.is_relative_to(path.resolve()):
        raise OSError(errno.ELOOP, "it leads to a folder with the model in it", str(path))


def own_versions(folder: Path) -> list[str]:
    """Return the names of a model's version folders, also of empty ones, in order. Raises OSError."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if path.name.isdecimal() and path.is_dir())


def backend_of(folder: Path, text: str) -> str:
    """Return a model's backend, or its platform if that is named alone; `onnxruntime` for both of ONNX's names.

    Without either it is what Triton takes from the files of the versions; "" if that is nothing that we know.
    Raises OSError and ValueError.
    """
    message = parse_own(text, ("backend", "platform"))
    named = message.backend or message.platform
    if not named:
        files = {path.name for version in own_versions(folder) for path in (folder / version).iterdir()}
        named = next((backend for file, backend in _FOUND_BY_FILE.items() if file in files), "")
    return "onnxruntime" if named in NATIVE_BACKENDS["onnxruntime"] else named


def parse_own(text: str, names: Collection[str] = _READ) -> Any:
    """Return the ModelConfig message of some fields, by default those that we read. Raises ValueError.

    Others may be unknown to our protobuf.
    """
    read = (text[field.start : field.end] for field in fields(text) if field.name in names)
    return parse_config_pbtxt("\n".join(read), allow_unknown_fields=True)


def own_engine(folder: Path, text: str, *, on_gpu: bool, variant: str = "") -> Engine:
    """Return the engine of a model in `folder` with a complete configuration. Raises OSError and ValueError, of
    which IncompleteConfig.

    `on_gpu`: the server has a GPU. `variant` tells engines of one model apart.
    """
    message = parse_own(text)
    backend = message.backend or message.platform or "unknown"
    batcher = message.dynamic_batching
    rows = message.max_batch_size
    kinds = {group.Kind.Name(group.kind) for group in message.instance_group}
    inputs, outputs = (
        tuple(TensorSpec(name=one.name, datatype=datatype_of(one), shape=tuple(one.dims)) for one in tensors)
        for tensors in (message.input, message.output)
    )
    steps = ensemble_steps(message)
    missing = [name for name, found in (("input", inputs), ("output", outputs)) if not found]
    if missing or not (message.instance_group or steps):
        raise IncompleteConfig(f"it has no {' and no '.join(missing or [GROUPS])}")
    return Engine(
        model_name=folder.name,
        backend=OWN,
        precision=f"{backend} {variant}".strip(),
        inputs=inputs,
        outputs=outputs,
        batched=rows > 0,
        device="gpu" if on_gpu and kinds.intersection(_ON_GPU) else "cpu",
        own=OwnModel(
            folder=folder,
            text=text,
            max_batch_size=min(rows, LARGEST_BATCH),
            dynamic_batching=rows > 0 and message.HasField(BATCHER),
            max_queue_delay_us=batcher.max_queue_delay_microseconds,
            preferred_batch_sizes=tuple(size for size in batcher.preferred_batch_size if size <= LARGEST_BATCH),
            counts=tuple(max(1, group.count) for group in message.instance_group) or (1,),
            steps=steps,
            size_bytes=sum(path.stat().st_size for _, path in own_files(folder)),
        ),
    )


def check_counts(text: str) -> None:
    """Raise IncompleteConfig if a server would choose the count of an instance group."""
    if any(group.count < 1 for group in parse_own(text).instance_group):
        raise IncompleteConfig(f"it has an {GROUPS} without a count")


def ensemble_steps(message: Any) -> tuple[EnsembleStep, ...]:
    """Return the steps of an ensemble, each after those whose outputs it takes; () for another model.

    Raises ValueError for a tensor that no step makes, and for steps that wait for each other.
    """
    named = message.platform == ENSEMBLE or message.HasField("ensemble_scheduling")
    if named and not message.ensemble_scheduling.step:
        raise ValueError("it is an ensemble without steps")
    waiting, done = list(message.ensemble_scheduling.step), list[EnsembleStep]()
    made: dict[str, int] = {}  # tensor -> the step that makes it, -1: it comes with the request
    made.update((tensor.name, -1) for tensor in message.input)
    known = {*made, *(name for step in waiting for name in step.output_map.values())}
    for step in waiting:
        lost = [name for name in step.input_map.values() if name not in known]
        if lost:
            raise ValueError(f"no step of it makes {lost[0]}, which {step.model_name} takes")
    while waiting:
        ready = next((step for step in waiting if made.keys() >= set(step.input_map.values())), None)
        if ready is None:
            raise ValueError(f"its steps wait for each other: {', '.join(step.model_name for step in waiting)}")
        waiting.remove(ready)
        after = {made[name] for name in ready.input_map.values()} - {-1}
        made.update((name, len(done)) for name in ready.output_map.values())
        done.append(EnsembleStep(model=ready.model_name, after=tuple(sorted(after))))
    return tuple(done)


def with_members(engine: Engine, members: tuple[Engine, ...]) -> Engine:
    """Return the engine with its members, on a GPU if one of them is."""
    on_gpu = any(one.device == "gpu" for one in (engine, *members))
    return replace(engine, members=members, device="gpu" if on_gpu else "cpu")


def unread_engine(folder: Path, text: str) -> Engine:
    """Return an engine with a text that need not be complete, only to load it and ask the server for the rest."""
    return Engine(model_name=folder.name, backend=OWN, precision="", own=OwnModel(folder=folder, text=text))


def completed(text: str, loaded: Mapping[str, Any]) -> str:
    """Return the text with what Triton completed: `loaded` is the server's own configuration, as JSON has it.

    Fields that are complete stay as they are written. Raises ValueError.
    """
    from google.protobuf import text_format  # type: ignore[import-untyped]

    message = parse_own(text)
    new = config_message({name: loaded[name] for name in _READ if name in loaded})
    written = {field.name for field, _ in message.ListFields()}
    for name in ("input", "output"):
        if _tensors(getattr(message, name)) != _tensors(getattr(new, name)):
            written.discard(name)
    if message.max_batch_size != new.max_batch_size:
        written.discard("max_batch_size")
    groups = message.instance_group, new.instance_group
    if len(groups[0]) == len(groups[1]):
        counts = [(old.count, found.count) for old, found in zip(*groups, strict=True)]
        text = with_counts(text, [found if written < 1 <= found else None for written, found in counts])
    if written & {"backend", "platform"}:
        written |= {"backend", "platform"}
    # The rest follows from the machine, or is the default.
    decoupled = new.model_transaction_policy.decoupled
    for name in ("name", "model_warmup", *written, *(() if decoupled else ("model_transaction_policy",))):
        new.ClearField(name)
    for group in new.instance_group:
        group.ClearField("name")
        group.ClearField("gpus")
    more = str(text_format.MessageToString(new))
    for field, _ in new.ListFields():
        text = without_field(text, field.name)
    return added(text, f"{COMPLETED}{more}") if more else text


def _tensors(tensors: Any) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in tensors]
