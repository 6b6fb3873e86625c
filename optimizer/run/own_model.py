"""A model of the user's own repository: its folder, its configuration as Triton completes it, and its engines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from loadgen.files import sha256_of
from model_repo.errors import ModelLoadFailed
from model_repo.repository.own_config import BATCHER, GROUPS
from model_repo.repository.own_model import (
    CONFIG_FILE,
    backend_of,
    check_counts,
    completed,
    ensemble_steps,
    own_engine,
    own_files,
    parse_own,
    unread_engine,
    with_members,
)
from model_repo.repository.write import keep_own
from model_repo.spec import Engine
from optimizer.config import KEPT, OptimizeConfig
from optimizer.errors import explained
from optimizer.model_source import label_of
from optimizer.run.own_copies import (
    check_config_name,
    check_copy,
    check_kind,
    check_words,
    config_file,
    model_folder,
    named_beside,
    own_text,
    usable,
)
from optimizer.run.spaces import asked_batch
from optimizer.run.variants import STOOD_IN, check_vary, stand_in_notes, usable_text, variants
from optimizer.space_options import numbers_text
from search.choices import LARGEST_BATCH
from search.records.recommendation import ModelRecord
from search.trials import events
from search.trials.events import OnEvent

AskServer = Callable[[Engine], Mapping[str, Mapping[str, Any]]]
"""Loads a model and its members, and returns their configurations, by name, as the server completed them."""

NOT_FOR_OWN = (
    *("precisions", "calibration_data", "calibration_method", "accuracy", "io_precision", "input_types"),
    *("threads", "start_from", "workers"),
)
ONLY_FOR_OWN = ("follow_links", "model_config_name", "vary", "calls", "tune", "with_model")
MAX_TUNED = 6
"""Each model that is tuned multiplies the configurations by about a hundred."""

AS_IT_IS = "Precision, accuracy and the batch dimension were not examined: the model is served as it is."

_IN_PYTHON, _STOOD_IN = ("", "python", "vllm"), {"embedded": ("onnxruntime",)}
"""Backends that run in Triton's Python backend; "" may be completed to it."""

_POLLED = re.compile(r'(?:Error parsing text-format [\w.]+: |Poll failed for model directory .*?: )(.*?)"?$', re.M)


def check_own(config: OptimizeConfig, given: Collection[str]) -> None:
    """Raise BadInput for options that were `given` and do not go with --repository, or only with it."""
    own = config.repository
    flags = ", ".join(KEPT[name].flag for name in (ONLY_FOR_OWN if own is None else NOT_FOR_OWN) if name in given)
    if own is None:
        if flags:
            raise BadInput(f"{flags}: only a model of a repository takes this.", "Add --repository DIR.")
        members = [knob for knob, _ in config.excluded if "." in knob]
        if members:
            raise BadInput(
                f"--exclude {members[0]}: only a model of a repository calls others.", "Name the knob alone."
            )
        if (config.max_batch_sizes or (1,))[-1] > LARGEST_BATCH:
            raise BadInput(
                f"--max-batch-size {numbers_text(config.max_batch_sizes or ())} goes over {LARGEST_BATCH} rows.",
                f"Give {LARGEST_BATCH} at most: engines are built and checked for batches up to that.",
            )
        return
    if flags:
        raise BadInput(
            f"{flags}: a model of a repository is served as it is, and by this machine alone.",
            "Leave out what does not apply, or --repository.",
        )
    check_vary(config.vary)
    if config.model_config_name is not None:
        check_config_name(own, config.model_config_name)
    if len(config.max_batch_sizes or ()) > 1:
        raise BadInput(
            f"--max-batch-size {numbers_text(config.max_batch_sizes or ())}: a model of a repository takes one.",
            "Give the largest to try, and --exclude max_batch_size=N for those that are not to be tried.",
        )
    theirs = (own.resolve(), model_folder(own, label_of(config.model)).resolve())
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


def own_engines(
    config: OptimizeConfig, work_dir: Path, *, on_gpu: bool, ask: AskServer | None, on_event: OnEvent
) -> tuple[ModelRecord, tuple[Engine, ...]]:
    """Return the model's record, and its engines: as it is configured, then each variant of `--vary`.

    They are of a copy in `work_dir`, which an earlier start of the run may have left: nothing changes in mid-run.
    Without `ask` nothing is copied, and the configuration has to be complete. Raises UserError: BadInput for what
    cannot be tuned.
    """
    assert config.repository is not None
    root, name, dry = config.repository, label_of(config.model), ask is None
    found = _read(config, None if dry else work_dir, on_gpu=on_gpu, on_event=on_event)
    here = found.values() if config.server == "embedded" else ()
    stood_in = [*stand_in_notes((one.folder, one.text) for one in here)]
    if ask is not None:
        loaded = _asked(ask, found, config)
        for model, one in found.items():
            with usable(one.theirs, dry=False):
                found[model] = replace(one, text=completed(one.text, loaded[model]))
                check_kind(model, found[model].text, why=one.why)
    read = []
    for one in found.values():
        with usable(one.theirs, dry=dry):
            read.append(own_engine(one.folder, one.text, on_gpu=on_gpu))
    with usable(found[name].theirs, dry=dry):
        members = [replace(one, precision=one.model_name) for one in read[1:]]
        engine = with_members(read[0], _checked(config, members))
        others = tuple(variants(engine, config.vary, on_gpu=on_gpu))
        record = ModelRecord(
            name=name,
            file=f"{root.name}/{name}",
            sha256=_checksum([one.folder for one in found.values()]),
            opset=None,
            batching=f"{AS_IT_IS} {STOOD_IN}" if stood_in else AS_IT_IS,
        )
    served = (engine, *others, *engine.members)
    warnings = (words for one in served if one.own for words in _warnings(one.model_name, one.own.text))
    for words in dict.fromkeys((*stood_in, *warnings)):
        on_event(events.Note(text=words, warning=True))
    tensors = parse_own(found[name].text).input
    optional = frozenset(tensor.name for tensor in tensors if tensor.optional)
    optional = optional if len(optional) < len(tensors) else frozenset()
    engines = tuple(_with_shapes(one, config, optional) for one in (engine, *others))
    _check_batch(engine, config)
    return record, engines


@dataclass(frozen=True, slots=True)
class _Read:
    """A model: its folder, its configuration in the repository and as text, and why it is served, too."""

    folder: Path
    theirs: Path
    text: str
    why: str | None


def _read(config: OptimizeConfig, work_dir: Path | None, *, on_gpu: bool, on_event: OnEvent) -> dict[str, _Read]:
    """Return the model and its members by name, in this order; of copies in `work_dir`, if there is one.

    Those of --with-model are members, too: the models that are served with it.
    """
    assert config.repository is not None
    root, name, found = config.repository, label_of(config.model), {}
    waiting: list[tuple[str, str | None]] = [(name, None)]
    for model, why in waiting:  # which grows by the members
        theirs = config_file(root / model, config.model_config_name)
        with usable(theirs, dry=work_dir is None):
            copy = (work_dir or config.output) / model
            folder = copy
            if work_dir is None or not copy.exists():
                folder = model_folder(root, model, why=why)
                check_copy(folder, copy, theirs, None if config.follow_links else root.resolve())
            text = own_text(config_file(folder, config.model_config_name))
            check_kind(model, text, why=why)
            if backend_of(folder, text) in (*_IN_PYTHON, *_STOOD_IN.get(config.server, ())):
                check_words(model, text)
            text = usable_text(config, folder, text, on_event, why=why, on_gpu=on_gpu)
            if work_dir is None:
                check_counts(text)
            elif folder != copy:
                with explained():
                    keep_own(folder, copy, theirs)
                folder = copy
            found[model] = _Read(folder, theirs, text, why)
            if why is None:
                waiting += [(member, f"which {name} calls") for member in _called(config, name, text)]
                waiting += [(other.name, "which --with-model names") for other in config.with_models]
    return found


def _called(config: OptimizeConfig, name: str, text: str) -> tuple[str, ...]:
    """Return the names of a model's members. Raises ValueError, and BadInput for names that cannot be."""
    steps = [step.model for step in ensemble_steps(parse_own(text))]
    called = tuple(dict.fromkeys([*steps, *(config.calls or ())]))
    if steps and config.with_models:
        raise BadInput(
            f"--with-model: {name} is an ensemble, which is tuned without other models.",
            "Tune a member with them.",
        )
    others = [one.name for one in config.with_models]
    for member in (*called, *others):
        if member in called and member in others:
            raise BadInput(f"--with-model {member}: {name} calls it.", "Name it once.")
        if member == name or not member or "/" in member or member.startswith("."):
            what = "be served with" if member in others else "call"
            raise BadInput(
                f"{name} cannot {what} {member or repr(member)}.", "Name other models of the repository."
            )
    return called


def _checked(config: OptimizeConfig, members: Sequence[Engine]) -> tuple[Engine, ...]:
    """Return the members. Raises BadInput if --tune names others, or if too many would have to be tuned."""
    names = [member.model_name for member in members]
    unknown = [name for name in config.tune or () if name not in names]
    if unknown:
        known = f"Its members are {', '.join(names)}." if names else "It has none; --calls names some."
        raise BadInput(f"--tune {unknown[0]}: {label_of(config.model)} has no such member.", known)
    others = [one.name for one in config.with_models]
    if len(config.tune or [name for name in names if name not in others]) > MAX_TUNED:
        raise BadInput(
            f"{label_of(config.model)} has {len(names)} members, and at most {MAX_TUNED} are tuned together.",
            "Name the slowest ones: --tune A,B",
        )
    for one in config.with_models:
        member = members[names.index(one.name)]
        free = [spec.name for spec in member.inputs if -1 in spec.shape]
        if free and one.input_data is None:
            raise BadInput(
                f"--with-model {one.name}: its input {free[0]} has sizes that vary, and load needs numbers.",
                f"Add samples: {one.text},input_data=FILE",
            )
    return tuple(members)


def _asked(ask: AskServer, found: Mapping[str, _Read], config: OptimizeConfig) -> Mapping[str, Mapping[str, Any]]:
    """Return the models' configurations as a server completes them. Raises BadInput if one does not load."""
    main, *members = (unread_engine(one.folder, one.text) for one in found.values())
    try:
        return ask(replace(main, members=tuple(members)))
    except ModelLoadFailed as error:
        # Triton does not tell its clients what is wrong with a configuration.
        logged = _POLLED.findall(error.log_tail) if "failed to poll" in error.reason else ()
        reason = next(iter(logged), error.reason).rstrip(".")
        fix = f"{config.output / 'server.log'} has the details."
        if beside := named_beside(config.repository or Path(), reason, found):
            fix = f"The run copies the model's folder alone: put {beside}, or a link to it, in there. {fix}"
        raise BadInput(f"{error.model_name} does not load: {reason}.", fix) from error


def _checksum(folders: Sequence[Path]) -> str:
    """Return the SHA-256 of all files of the models, and of their configurations."""
    parts = []
    for folder in folders:
        files = [f"{name}\0{sha256_of(path)}\n" for name, path in sorted(own_files(folder))]
        parts += [own_text(folder / CONFIG_FILE), *files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _warnings(model: str, text: str) -> Iterator[str]:
    """Yield a sentence for each field with which Triton may hold requests back, or that does nothing by itself."""
    message = parse_own(text, (BATCHER, GROUPS, "response_cache"))
    batcher = message.dynamic_batching
    policy = batcher.default_queue_policy
    found = {
        "max_queue_size": policy.max_queue_size,
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "priority_levels": batcher.priority_levels,
    }
    for name in filter(found.get, found):
        why = "with it Triton may hold requests back until the next one comes, up to 500 ms"
        yield f"{model}/{CONFIG_FILE} sets {name}: {why}. It stays; try without it, too."
    idle = {
        "response_cache": (message.response_cache.enable, "--cache-config"),
        "rate_limiter": (any(one.HasField("rate_limiter") for one in message.instance_group), "--rate-limit"),
    }
    for name, (given, option) in idle.items():
        if given:
            yield f"{model} sets {name}: it does nothing on a server without {option}, such as those of ours."


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
    own, rows, largest = engine.own, config.client_batch, asked_batch(config)
    assert own is not None
    if engine.batched and largest is not None and rows > largest:
        raise BadInput(
            f"--client-batch {rows} is over --max-batch-size {largest}.",
            f"Give --max-batch-size {rows} or more, or smaller requests.",
        )
    if largest is not None and not engine.batched:
        raise BadInput(
            f"--max-batch-size {largest}: {engine.model_name} takes no batches (max_batch_size 0).",
            "Leave it out, or give the model a batch dimension.",
        )
    if engine.batched and rows > own.max_batch_size:
        raise BadInput(
            f"--client-batch {rows} is over the max_batch_size of {engine.model_name}, {own.max_batch_size}.",
            f"Give {own.max_batch_size} at most, or change its {CONFIG_FILE}.",
        )
