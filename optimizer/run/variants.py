"""The variants of a user's own configuration that `--vary` asks for, and the ONNX models of a repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import datatype_of, parse_config_pbtxt, tensor_of
from model_repo.repository.own_config import GROUPS, with_value
from model_repo.repository.own_model import (
    backend_of,
    completed,
    own_engine,
    own_versions,
    parse_own,
    with_members,
)
from model_repo.repository.pbtxt_text import bodies
from model_repo.server.python_home import misread_numpy
from model_repo.spec import ENSEMBLE, Engine
from optimizer.child import call_limited, graph_limits
from optimizer.config import OptimizeConfig
from optimizer.model.files import size_of
from optimizer.model.onnx_model import ModelTensor, read_model
from optimizer.run.spaces import THREADS_KEY
from search.trials.events import Note, OnEvent

STOOD_IN = "ONNX Runtime in Triton's Python backend stood in for the backend onnxruntime."
_OTHERS = "Measure with --server docker, local or remote, which have backends of their own."

MAX_BATCH_SIZE, CPU_COUNT = 4, 2
"""Triton's own maximum batch size, and its number of instances of an ONNX model in a group on the CPU."""


def usable_text(
    config: OptimizeConfig, folder: Path, text: str, on_event: OnEvent, *, why: str | None, on_gpu: bool
) -> str:
    """Return the text of a model for the run's server; for the embedded one an ONNX model's is completed.

    `why`: see `model_folder`. Raises BadInput for what that server cannot serve, and for a file that is no usable
    ONNX model; OSError, and ValueError for a configuration that does not fit the file.
    """
    vary = config.vary if why is None else ()
    if config.server == "embedded":
        _check_embedded(folder, text, vary)
    if not on_gpu and config.server != "remote":
        text = _without_gpu(folder.name, text, vary, on_event, why=why)
    if config.server == "embedded" and backend_of(folder, text) == "onnxruntime":
        return _completed(folder, text, on_gpu=on_gpu)
    return text


def _check_embedded(folder: Path, text: str, vary: Vary) -> None:
    """Raise BadInput for a backend that the embedded server lacks, and what its ONNX Runtime does not read."""
    backend = backend_of(folder, text)
    for path, _ in vary if backend == "onnxruntime" else ():
        if path.startswith(("optimization.", "parameters.")) and path != f"parameters.{THREADS_KEY}":
            raise BadInput(f"--vary {path}: the embedded server's ONNX Runtime does not read it.", _OTHERS)
    if backend == "python" and (numpy := misread_numpy()) is not None:
        raise BadInput(
            f"The embedded Triton misreads the arrays of NumPy {numpy}: {folder.name} would fail.",
            "Run `pip install 'numpy<2'`, or measure with --server docker or local.",
        )
    if backend not in ("", "onnxruntime", "python", ENSEMBLE) and not any(folder.rglob(f"libtriton_{backend}.so")):
        raise BadInput(
            f"{folder.name} is for Triton's backend {backend}; the embedded server has those for Python and ONNX.",
            _OTHERS,
        )


def stand_in_notes(models: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield a note for each of these models, (folder, text), that is measured on another backend than its own."""
    for folder, text in models:
        if backend_of(folder, text) == "onnxruntime":
            message = parse_own(text, ("optimization", "parameters"))
            unread = ["optimization"] if message.HasField("optimization") else []
            unread += [f"parameters.{key}" for key in sorted(message.parameters) if key != THREADS_KEY]
            without = f", without its {', '.join(unread)}" if unread else ""
            yield (
                f"{folder.name} is measured with ONNX Runtime in Triton's Python backend{without}: the embedded "
                "server lacks the backend onnxruntime, which may be faster or slower."
            )


def _completed(folder: Path, text: str, *, on_gpu: bool) -> str:
    """Return the text with what Triton and its ONNX Runtime backend add to it; the batch only with the tensors."""
    message, path = parse_own(text), _file(folder, text)
    model = call_limited(partial(read_model, path), model=path, limits=graph_limits(size_of(path)))
    tensors = (*model.all_inputs, *model.all_outputs)
    batched = all(tensor.dims and isinstance(tensor.dims[0], str) for tensor in tensors)
    rows = message.max_batch_size
    if rows and not batched:
        sizes = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in tensors)
        raise ValueError(f"max_batch_size is {rows}, and the model has no batch that may vary: {sizes}")
    pairs = ("input", message.input, model.all_inputs), ("output", message.output, model.all_outputs)
    for kind, given, known in pairs:
        _check_tensors(kind, given, known)
    groups = [(group.Kind.Name(group.kind), group.count) for group in message.instance_group]
    more: dict[str, Any] = {"backend": "onnxruntime"}
    if not (message.input and message.output):
        rows = rows or (MAX_BATCH_SIZE if batched else 0)
        more |= {"dynamic_batching": {}} if rows > 1 else {}
        for kind, given, known in pairs:
            if not given:
                more[kind] = [tensor_of(one.spec(without_batch=rows > 0)) for one in known]
    more["max_batch_size"] = rows
    more["instance_group"] = [
        {
            "kind": kind,
            "count": count or (1 if kind == "KIND_GPU" or (on_gpu and kind == "KIND_AUTO") else CPU_COUNT),
        }
        for kind, count in groups or [("KIND_GPU" if on_gpu else "KIND_CPU", 0)]
    ]
    return completed(text, more)


def _file(folder: Path, text: str) -> Path:
    """Return the ONNX file of the version that requests get; of a folder the `model.onnx` in it."""
    message = parse_own(text, ("default_model_filename", "version_policy"))
    versions = [*message.version_policy.specific.versions] or [int(name) for name in own_versions(folder)]
    path = folder / str(max(versions)) / (message.default_model_filename or "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def _check_tensors(kind: str, given: Any, known: tuple[ModelTensor, ...]) -> None:
    """Raise ValueError for an input or output that the model does not have, and for a missing input."""
    theirs = {tensor.name: datatype_of(tensor) for tensor in given}
    types = {tensor.name: tensor.datatype for tensor in known}
    wrong = [f"{name} {datatype}" for name, datatype in theirs.items() if types.get(name) != datatype]
    missing = types.keys() - theirs.keys() if given and kind == "input" else ()
    if wrong or missing:
        what = f"the {kind} {wrong[0]} is not the model's" if wrong else f"the input {min(missing)} is missing"
        raise ValueError(f"{what}: it has {', '.join(f'{name} {type_}' for name, type_ in types.items())}")


MAX_VARIANTS = 12

_NUMBER = re.compile(r"(?<=instance_group)\.[0-9]+")

Vary = Sequence[tuple[str, tuple[str, ...]]]
"""Paths of fields, such as `parameters.KEY` and `optimization.graph.level`, and the values of each."""


def check_vary(vary: Vary) -> None:
    """Raise BadInput for a field that no configuration has, or not with such a value."""
    for path, values in vary:
        for value in values:
            try:
                groups = parse_config_pbtxt(with_value("", _NUMBER.sub("", path), value)).instance_group
                if path.endswith(".count") and any(group.count < 1 for group in groups):
                    raise ValueError("there is no such number of instances")
            except ValueError as error:
                why = str(error).rpartition("}': ")[2].rpartition(" : ")[2].rstrip(".")
                why = "it is a group of fields" if why == 'Expected "{"' else why
                raise BadInput(
                    f"--vary {path}={value} is nothing that a config.pbtxt can hold: {why}.",
                    "Name a field of one number, truth or name there; set others in the file itself.",
                ) from error


def variants(engine: Engine, vary: Vary, *, on_gpu: bool) -> Iterator[Engine]:
    """Yield an engine for each combination but the configured one. Raises OSError, ValueError and BadInput."""
    assert engine.own is not None
    if vary and engine.is_ensemble:
        raise BadInput(
            f"--vary: {engine.model_name} is an ensemble, which has no backend of its own.",
            "Tune the member whose backend it is by itself.",
        )
    for words, text in _texts(engine.own.text, vary):
        found = own_engine(engine.own.folder, text, on_gpu=on_gpu, variant=words)
        yield with_members(found, engine.members)


def _without_gpu(name: str, text: str, vary: Vary, on_event: OnEvent, *, why: str | None) -> str:
    """Return the text of a model, or the first one with values of `vary`, that needs no GPU. Raises BadInput.

    `why`: see `model_folder`.
    """
    for words, one in chain([("", text)], _texts(text, vary)):
        if not _on_gpus(one):
            if words:
                note = f"This machine has no GPU: {name} is measured with {words} of --vary in place of KIND_GPU."
                on_event(Note(text=note, warning=True))
            return one
    flags = " ".join(f"--vary {GROUPS}.{at}.kind=KIND_CPU" for at in _on_gpus(text))
    raise BadInput(
        f"{name if why is None else f'{name}, {why},'} has instances of KIND_GPU, and this machine has no GPU.",
        f"Use one with a GPU, or {f'add {flags}' if why is None else 'change its configuration'}.",
    )


def _on_gpus(text: str) -> list[int]:
    """Return the numbers of the instance groups of KIND_GPU."""
    groups = parse_own(text, (GROUPS,)).instance_group
    return [at for at, group in enumerate(groups) if group.kind == group.KIND_GPU]


def _texts(text: str, vary: Vary) -> Iterator[tuple[str, str]]:
    """Yield each combination of values that changes the text, as (what it changes, the changed text)."""
    count = 0
    for values in product(*(values for _, values in vary)):
        changes = {
            path: value for (path, _), value in zip(vary, values, strict=True) if _changes(text, path, value)
        }
        if not changes:
            continue
        count += 1
        if count > MAX_VARIANTS:
            raise BadInput(
                f"--vary makes more than {MAX_VARIANTS} combinations, each of which has to be measured.",
                "Give fewer values, or one field after the other.",
            )
        varied = text
        for path, value in changes.items():
            varied = with_value(varied, path, value)
        yield " ".join(f"{path.partition('.')[2]}={value}" for path, value in changes.items()), varied


def _changes(text: str, path: str, value: str) -> bool:
    """True if the text does not have this value. Raises BadInput if it has several places for it."""
    root, _, field = path.partition(".")
    if field == "0.count" and root == GROUPS and len(bodies(text, GROUPS)) == 1:
        raise BadInput(
            f"--vary {path}: it is the only instance group, and its count is searched in any case.",
            "Leave it out, or give the counts to try by --instances.",
        )
    try:
        return bool(parse_own(with_value(text, path, value), (root,)) != parse_own(text, (root,)))
    except ValueError as error:
        raise BadInput(f"--vary {path} cannot be set: {error}.", "Set it in config.pbtxt itself.") from error
