"""The `config.pbtxt` of a user's own model, with the fields changed in which a configuration differs from it."""

from __future__ import annotations

from collections.abc import Sequence

from model_repo.repository.pbtxt_text import (
    added,
    bodies,
    fields,
    value_of,
    with_bodies,
    with_field,
    without_field,
)
from model_repo.spec import OwnModel, ServingConfig

GROUPS, BATCHER, WARMUP = "instance_group", "dynamic_batching", "model_warmup"
_PARAMETERS, _ACCELERATOR = "parameters.", "_execution_accelerator"
_WITHOUT_GPUS = ("KIND_CPU", "KIND_MODEL")
DELAY, PREFERRED = _BATCHING = ("max_queue_delay_microseconds", "preferred_batch_size")


def render_own_config(config: ServingConfig) -> str:
    """Return the user's text with the changes of this configuration; the same text if it has none.

    Without dynamic batching `max_batch_size` stays as it is: each request is executed by itself in any case. A
    batcher that does more than batching, such as keeping priorities, stays, and gets batches of one request.
    """
    own = config.engine.own
    assert own is not None
    text = own.text
    if own.steps:
        return _ensemble(text, config)
    batcher = bodies(text, BATCHER)
    others = any(field.name not in _BATCHING for body in batcher for field in fields(body))
    if (config.dynamic_batching or others) and config.max_batch_size != own.max_batch_size:
        text = with_field(text, "max_batch_size", str(config.max_batch_size))
        text = _without_larger_warmups(text, config.max_batch_size)
    if config.dynamic_batching and not batcher:
        delay = f" {DELAY}: {config.max_queue_delay_us} " if config.max_queue_delay_us else " "
        text = added(text, f"{BATCHER} {{{delay}}}\n")
    elif config.dynamic_batching or others:
        text = with_bodies(text, BATCHER, [_batcher(body, config, own) for body in batcher])
    elif own.dynamic_batching:
        text = without_field(text, BATCHER)
    counts = shared_out(config.instance_count, own.counts)
    if counts != own.counts:
        text = with_counts(text, counts)
    return text


def _ensemble(text: str, config: ServingConfig) -> str:
    """Return the text of an ensemble, which may not take more rows than the model of each step."""
    rows = _rows(text)
    steps = {step.model for step in config.engine.steps}
    members = (_rows(render_own_config(one)) for one in config.members if one.engine.model_name in steps)
    most = min([rows, *members])
    return text if most == rows else _without_larger_warmups(with_field(text, "max_batch_size", str(most)), most)


def _rows(text: str) -> int:
    return _number(value_of(text, "max_batch_size") or "0")


def with_counts(text: str, counts: Sequence[int | None]) -> str:
    """Return the text with these counts of its instance groups, one each; None: as it is written."""
    groups = [
        body if count is None else with_field(body, "count", str(count), inside=True)
        for body, count in zip(bodies(text, GROUPS), counts, strict=True)
    ]
    return with_bodies(text, GROUPS, groups)


def shared_out(total: int, given: tuple[int, ...]) -> tuple[int, ...]:
    """Return `total` instances shared among groups in the ratio of `given`, at least one for each.

    Raises ValueError if there are fewer instances than groups.
    """
    if total < len(given):
        raise ValueError(f"{total} instances are fewer than the {len(given)} instance groups")
    counts = [1] * len(given)
    for _ in range(total - len(given)):  # the next one goes where most is missing
        short = [share / (count + 1) for share, count in zip(given, counts, strict=True)]
        counts[short.index(max(short))] += 1
    return given if total == sum(given) else tuple(counts)


def with_value(text: str, path: str, value: str) -> str:
    """Return the text of a configuration with a value at a path: `parameters.KEY`, or that of a field.

    An accelerator is set by its name, without parameters. `instance_group.1.count` is in the second group; one of
    another kind than that of GPUs loses its `gpus`. Raises ValueError.
    """
    if path.startswith(_PARAMETERS):
        return with_parameter(text, path.removeprefix(_PARAMETERS), value)
    return _with_field_at(text, path.split("."), value, inside=False)


def _with_field_at(text: str, path: list[str], value: str, *, inside: bool) -> str:
    name, *rest = path
    found: list[str] = bodies(text, name) if rest else []
    at = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
    if at is not None and at >= len(found):
        raise ValueError(f"it has {len(found)} {name}, counted from 0")
    if at is None and len(found) > 1:
        raise ValueError(f"it has several {name}, of which one would be meant")
    if found:
        found[at or 0] = _with_field_at(found[at or 0], rest, value, inside=True)
        return with_bodies(text, name, found)
    if name == "kind" and value in _WITHOUT_GPUS:
        text = without_field(text, "gpus")  # with which Triton does not load the model
    if name.endswith(_ACCELERATOR):
        value = f'[ {{ name: "{value}" }} ]'
    return with_field(
        text, name, f"{{{_with_field_at('', rest, value, inside=True)}}}" if rest else value, inside=inside
    )


def with_parameter(text: str, key: str, value: str) -> str:
    """Return the text of a configuration with a parameter of its backend. Raises ValueError."""
    new, found = [], False
    for body in bodies(text, "parameters"):
        mine = value_of(body, "key") == key
        found = found or mine
        new.append(with_field(body, "value", f'{{ string_value: "{value}" }}', inside=True) if mine else body)
    if found:
        return with_bodies(text, "parameters", new)
    return added(text, f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n')


def _batcher(body: str, config: ServingConfig, own: OwnModel) -> str:
    if config.max_queue_delay_us != own.max_queue_delay_us:
        body = with_field(body, DELAY, str(config.max_queue_delay_us), inside=True)
    written = [
        _number(body[start:end])
        for field in fields(body)
        if field.name == PREFERRED
        for start, end in field.values
    ]
    # Larger ones than the search tries are in the text alone.
    lower = config.max_batch_size != own.max_batch_size and config.max_batch_size < max(written, default=0)
    if lower or config.preferred_batch_sizes != own.preferred_batch_sizes:
        sizes = ", ".join(map(str, config.preferred_batch_sizes))
        old = without_field(body, PREFERRED)
        body = with_field(body, PREFERRED, f"[ {sizes} ]", inside=True) if sizes else old
    return body


def _without_larger_warmups(text: str, most: int) -> str:
    """Return the text without warm-ups of larger batches, with which Triton would not load the model."""
    sizes = [_number(value_of(body, "batch_size") or "0") for body in bodies(text, WARMUP)]
    if all(size <= most for size in sizes):
        return text
    kept = zip(bodies(text, WARMUP), sizes, strict=True)
    return with_bodies(text, WARMUP, [body if size <= most else None for body, size in kept])


def _number(text: str) -> int:
    return int(text, 8 if text.startswith("0") and text.isdecimal() else 0)
