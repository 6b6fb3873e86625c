"""A model of the user's own repository: its folder, its configuration as Triton completes it, and its engines."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from loadgen.files import sha256_of
from model_repo.errors import ModelLoadFailed
from model_repo.repository.own_config import without_queue_policy
from model_repo.repository.own_model import (
    CONFIG_FILE,
    IncompleteConfig,
    check_counts,
    completed,
    own_engine,
    own_files,
    own_versions,
    parse_own,
    unread_engine,
)
from model_repo.repository.write import keep_own
from model_repo.spec import Engine
from optimizer.config import KEPT, OptimizeConfig
from optimizer.errors import explained
from optimizer.model_source import label_of
from optimizer.run.variants import check_vary, variants
from search.records.recommendation import ModelRecord
from search.trials import events
from search.trials.events import OnEvent

AskServer = Callable[[Engine], Mapping[str, Any]]
"""Loads a model, and returns its configuration as the server has completed it."""

NOT_FOR_OWN = ("precisions", "calibration_data", "calibration_method", "accuracy", "io_precision", "workers")
ONLY_FOR_OWN = ("max_batch_size", "vary")

AS_IT_IS = "Precision, accuracy and the batch dimension were not examined: the model is served as it is."

_UNSERVED = {
    "ensemble_scheduling": "an ensemble, whose members would have to be tuned together",
    "sequence_batching": "a sequence model, whose requests belong together",
}

_POLLED = re.compile(r'(?:Error parsing text-format [\w.]+: |Poll failed for model directory .*?: )(.*?)"?$', re.M)


def check_own(config: OptimizeConfig, given: Collection[str]) -> None:
    """Raise BadInput for options that were `given` and do not go with --repository, or only with it."""
    own = config.repository
    flags = ", ".join(KEPT[name].flag for name in (ONLY_FOR_OWN if own is None else NOT_FOR_OWN) if name in given)
    if own is None:
        if flags:
            raise BadInput(f"{flags}: only a model of a repository takes this.", "Add --repository DIR.")
        return
    if flags:
        raise BadInput(
            f"{flags}: a model of a repository is served as it is, and by this machine alone.",
            "Leave out what does not apply, or --repository.",
        )
    check_vary(config.vary)
    theirs = (own.resolve(), model_folder(config).resolve())
    if any(config.output.resolve().is_relative_to(folder) for folder in theirs):
        raise BadInput(
            f"--output {config.output} is in the repository, which is never written to.",
            "Give a folder elsewhere with --output, or start from another one.",
        )
    trials = config.server_repository if config.server == "remote" else None
    if trials is not None and any(trials.resolve().is_relative_to(folder) for folder in theirs):
        raise BadInput(
            f"--server-repository {trials} is in the repository itself, which is never written to.",
            "Start a server for the trials on a folder of its own, with --model-control-mode=explicit.",
        )


def model_folder(config: OptimizeConfig) -> Path:
    """Return the folder of the model in the user's repository. Raises BadInput if it has no version."""
    assert config.repository is not None
    root, name = config.repository, label_of(config.model)
    try:
        if own_versions(root / name):
            return root / name
        there = sorted(path.name for path in root.iterdir() if _is_model(path))
    except OSError as error:
        where = f"--repository {root}" if error.filename in (None, str(root)) else error.filename
        raise BadInput(f"{where} cannot be read: {error.strerror}.", "Check the path.") from error
    if (root / name).is_dir():
        raise BadInput(
            f"{root / name} has no version: Triton serves what is in a folder with a number, such as 1.",
            f"Put the model into {root / name / '1'}",
        )
    known = f"It holds {', '.join(there)}." if there else "No folder in it has a version, such as NAME/1."
    raise BadInput(f"--repository {root} has no model {name}.", known)


def _is_model(folder: Path) -> bool:
    try:
        return bool(own_versions(folder))
    except OSError:  # another's, which need not be readable
        return False


def own_engines(
    config: OptimizeConfig, work_dir: Path, *, on_gpu: bool, ask: AskServer | None, on_event: OnEvent
) -> tuple[ModelRecord, tuple[Engine, ...]]:
    """Return the model's record, and its engines: as it is configured, then each variant of `--vary`.

    They are of a copy in `work_dir`, which an earlier start of the run may have left: nothing changes in mid-run.
    Without `ask` nothing is copied, and the configuration has to be complete. Raises UserError: BadInput for what
    cannot be tuned.
    """
    assert config.repository is not None
    theirs = config.repository / label_of(config.model)
    folder = work_dir / theirs.name if ask is not None else theirs
    try:
        if not folder.exists():
            check_copy(model_folder(config), folder)
            with explained():
                keep_own(theirs, folder)
        text = own_text(folder)
        check_kind(folder.name, text)
        if ask is None:
            check_counts(text)
        else:
            text = completed(text, _asked(ask, folder, text, config))
            check_kind(folder.name, text)
        engine = own_engine(folder, text, on_gpu=on_gpu)
        others = tuple(variants(engine, config.vary, on_gpu=on_gpu))
        record = ModelRecord(
            name=folder.name,
            file=f"{theirs.parent.name}/{theirs.name}",
            sha256=_checksum(folder),
            opset=None,
            batching=AS_IT_IS,
        )
    except OSError as error:
        raise BadInput(
            f"{error.filename or theirs} cannot be read: {error.strerror}.",
            "Check it, its permissions, and where links lead.",
        ) from error
    except ValueError as error:
        raise BadInput(
            f"{theirs / CONFIG_FILE} cannot be used: {error}.",
            "Leave --dry-run out: a server then completes it."
            if ask is None and isinstance(error, IncompleteConfig)
            else "Correct it, so that Triton loads the model.",
        ) from error
    _warn(text, on_event)
    engines = tuple(_with_shapes(one, config, _optional(text)) for one in (engine, *others))
    _check_batch(engine, config)
    return record, engines


def check_copy(folder: Path, target: Path) -> None:
    """Check that a model can be read whole, and that a copy fits. Raises OSError, ValueError and BadInput."""
    own_text(folder)
    size = 0
    for _, path in own_files(folder):
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        size += path.stat().st_size
    free = shutil.disk_usage(next(one for one in target.resolve().parents if one.exists())).free
    if size > free:
        raise BadInput(
            f"{folder} has {size / 2**30:.1f} GiB, which the run copies, and {free / 2**30:.1f} GiB are free.",
            "Free some space, or give a folder on another disk with --output.",
        )


def own_text(folder: Path) -> str:
    """Return the `config.pbtxt` of a model, letter by letter; "" if it has none. Raises OSError and ValueError."""
    path = folder / CONFIG_FILE
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    try:
        return path.read_bytes().decode() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error


def check_kind(name: str, text: str) -> None:
    """Raise BadInput for a model that takes no single requests with one answer each, and for an ensemble."""
    message = parse_own(text)
    kinds = [words for field, words in _UNSERVED.items() if message.HasField(field)]
    if message.platform == "ensemble":
        kinds.append(_UNSERVED["ensemble_scheduling"])
    if message.model_transaction_policy.decoupled:
        kinds.append("decoupled, so that a request may get any number of answers")
    if kinds:
        raise BadInput(
            f"{name} is {kinds[0]}: that is not tuned yet.",
            "Name a model that answers each request by itself, such as a member of it.",
        )


def _asked(ask: AskServer, folder: Path, text: str, config: OptimizeConfig) -> Mapping[str, Any]:
    try:
        return ask(unread_engine(folder, text))
    except ModelLoadFailed as error:
        message = parse_own(text)
        fix = f"{config.output / 'server.log'} has the details."
        if config.server == "embedded" and (message.backend or message.platform) not in ("", "python"):
            fix = "The embedded server has the Python backend alone: measure with --server docker or local."
        # Triton does not tell its clients what is wrong with a configuration.
        logged = _POLLED.findall(error.log_tail) if "failed to poll" in error.reason else ()
        reason = next(iter(logged), error.reason).rstrip(".")
        raise BadInput(f"{folder.name} does not load: {reason}.", fix) from error


def _checksum(folder: Path) -> str:
    parts = [f"{name}\0{sha256_of(path)}\n" for name, path in sorted(own_files(folder))]
    return hashlib.sha256("".join([own_text(folder), *parts]).encode()).hexdigest()


def without_policy(engine: Engine) -> Engine | None:
    """Return a user's own engine without its queue policy; None if there is none that holds requests back."""
    if engine.own is None or not _policy_fields(engine.own.text):
        return None
    return replace(engine, own=replace(engine.own, text=without_queue_policy(engine.own.text)))


def _policy_fields(text: str) -> tuple[str, ...]:
    """Return the fields that are set with which Triton may hold requests back until the next one comes."""
    batcher = parse_own(text).dynamic_batching
    policy = batcher.default_queue_policy
    found = {
        "max_queue_size": policy.max_queue_size,
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "priority_levels": batcher.priority_levels,
    }
    return tuple(name for name, value in found.items() if value)


def _warn(text: str, on_event: OnEvent) -> None:
    for name in _policy_fields(text):
        words = (
            f"{CONFIG_FILE} sets {name}: with it Triton may hold requests back until the next one comes, up to "
        )
        on_event(
            events.Note(text=f"{words}500 ms. It stays; what it costs is measured if there is time.", warning=True)
        )


def _optional(text: str) -> frozenset[str]:
    tensors = parse_own(text).input
    optional = frozenset(tensor.name for tensor in tensors if tensor.optional)
    return optional if len(optional) < len(tensors) else frozenset()


def _with_shapes(engine: Engine, config: OptimizeConfig, optional: frozenset[str]) -> Engine:
    """Return the engine with the inputs that requests carry, and the sizes that --shape gives them."""
    names = [spec.name for spec in engine.inputs if spec.name not in optional]
    unknown = [name for name in config.shapes if name not in names]
    if unknown:
        raise BadInput(f"--shape {unknown[0]}: the model needs no such input.", f"It needs {', '.join(names)}.")
    inputs = []
    for spec in engine.inputs:
        if spec.name in optional:
            continue
        free = ",".join("N" if size == -1 else str(size) for size in spec.shape)
        shape = config.shapes.get(spec.name)
        if shape is None and -1 in spec.shape and config.input_data is None:
            raise BadInput(
                f"Input {spec.name} has sizes that vary: {free}, and load needs numbers.",
                f"Add --shape {spec.name}:{free} with your requests' sizes, or samples with --input-data FILE.",
            )
        try:
            inputs.append(spec if shape is None else replace(spec, sample_shape=shape))
        except ValueError as error:
            fix = f"Write --shape {spec.name}:{free}, without the batch."
            raise BadInput(f"--shape {spec.name}: the model takes {free}.", fix) from error
    return replace(engine, inputs=tuple(inputs))


def _check_batch(engine: Engine, config: OptimizeConfig) -> None:
    own, rows = engine.own, config.client_batch
    assert own is not None
    if engine.batched and config.max_batch_size is not None and rows > config.max_batch_size:
        raise BadInput(
            f"--client-batch {rows} is over --max-batch-size {config.max_batch_size}.",
            f"Give --max-batch-size {rows} or more, or smaller requests.",
        )
    if config.max_batch_size is not None and not engine.batched:
        raise BadInput(
            f"--max-batch-size {config.max_batch_size}: {engine.model_name} takes no batches (max_batch_size 0).",
            "Leave it out, or give the model a batch dimension.",
        )
    if engine.batched and rows > own.max_batch_size:
        raise BadInput(
            f"--client-batch {rows} is over the max_batch_size of {engine.model_name}, {own.max_batch_size}.",
            f"Give {own.max_batch_size} at most, or change its {CONFIG_FILE}.",
        )


def largest_batch(engine: Engine, config: OptimizeConfig) -> int:
    """Return the largest batch to try: that of the model's configuration, or the one that the user asked for."""
    assert engine.own is not None
    return max(config.max_batch_size or engine.own.max_batch_size, 1)
