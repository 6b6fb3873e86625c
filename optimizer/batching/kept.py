"""Keep the checks of a model and the proof of its batch for later runs, under the model's contents."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.files import checksum, sha256_of
from optimizer.batching.dynamic_batch import Batching, carried, dynamic_batch, served_model
from optimizer.batching.proof import GIVEN_SAMPLES, prove_input_types
from optimizer.cached import NO_CACHE, Entry, Key, ResultCache, versions_digest
from optimizer.model.files import Graph, external_files, load_proto
from optimizer.model.graph_inputs import InputType
from optimizer.model.onnx_model import Model, read_model, with_files, without_files
from optimizer.model.samples import Samples, given_samples
from optimizer.model.shapes import with_shapes

KIND = "model"
REWRITTEN = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The user's own model, with sizes, and the model to serve. `cached`: an earlier run proved them."""

    model: Model
    batching: Batching
    cached: bool = False


def settled(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    work_dir: Path,
    *,
    input_types: Mapping[str, InputType] | None = None,
    input_data: Path | None = None,
    cache: ResultCache = NO_CACHE,
    processor: str = "",
) -> Settled:
    """Return the model in a file and the one to serve, from the cache or by reading, checking and proving.

    Requests carry `input_types`. The proof uses the samples of the load's `input_data`. `processor` is the name of
    the one on which it runs.
    Raises as `read_model`, `with_shapes` and `dynamic_batch` do, and BadInput for texts without samples.
    """
    types = input_types or {}
    graph, notes = carried(path, work_dir, types)
    try:
        external = external_files(graph.proto, graph.path.parent)
        key = {
            "sha256": sha256_of(graph.path, external),
            "name": graph.path.name,
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "samples": checksum(input_data),
            "processor": processor,
            "versions": versions_digest(),
        }
        entry = cache.find(KIND, key)
        own = tuple((location, file.absolute()) for location, file in external.items())
        found = None if entry is None else _from_entry(entry, graph, own, work_dir)
        if found is None:
            found = _proven(path, types, graph, shapes, work_dir, input_data)
            _keep(cache, key, found)
    except BadInput as error:  # of the user's file, not of ours
        raise type(error)(error.what.replace(str(graph.path), str(path)), error.fix) from error
    done = found.batching
    served = replace(done, model=served_model(done.model, work_dir), reason=" ".join([done.reason, *notes]))
    return replace(found, batching=served)


def _proven(
    path: Path,
    types: Mapping[str, InputType],
    graph: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    work_dir: Path,
    input_data: Path | None,
) -> Settled:
    model = with_shapes(read_model(graph.path, graph), shapes)
    model, given = _given(model, shapes, input_data)
    if given is None and model.takes_texts:
        name, dims = next((one.name, one.dims) for one in model.all_inputs if one.datatype == "BYTES")
        value = '"a text"' if len(dims) == 1 else '["a text"]'
        example = f'{{"data": [{{"{name}": {value}}}, ...]}}'
        raise BadInput(
            f"Input {name!r} of {graph.path} takes strings, and random ones make no meaningful load.",
            f"Give samples: --input-data FILE.json with {example}, or an .npz file.",
        )
    feeds = given.feeds(1) if given else []
    if types:
        prove_input_types(path, model, types, feeds if model.fixed_rows == 1 else ())
    return Settled(model=model, batching=dynamic_batch(model, work_dir, feeds))


def _given(model: Model, shapes: Mapping[str, tuple[int, ...]], data: Path | None) -> tuple[Model, Samples | None]:
    """Return samples, and the model: without a batch if they and --shape have the leading size of its texts.

    Raises BadInput if texts have no samples that fit.
    """
    try:
        return model, given_samples(model, data, GIVEN_SAMPLES)
    except (BadInput, MemoryError):
        if not model.takes_texts:
            return model, None  # the load's own check knows whether the model takes the data
        whole, given = replace(model, batch="none"), None
        with suppress(BadInput, MemoryError):
            given = given_samples(whole, data, GIVEN_SAMPLES)
        if given is None:
            raise
    first = next(tensor for tensor in model.all_inputs if tensor.datatype == "BYTES")
    shape = given.arrays[first.name].shape[1:]
    if shapes.get(first.name, ()) == shape:
        return whole, given
    sizes = ",".join(map(str, shape))
    raise BadInput(
        f"--input-data {data}: samples of {first.name} have the leading size, which counts as the batch.",
        f"Leave it out of them, or, if it is no batch, give it: --shape {first.name}:{sizes}.",
    )


def _keep(cache: ResultCache, key: Key, done: Settled) -> None:
    """Keep the result, unless the model was rewritten and has weights in other files: copies would be large."""
    served = done.batching.model
    rewritten = served.path != done.model.path
    if rewritten and served.external:
        return
    value = {
        "model": without_files(done.model),
        "served": without_files(served),
        "action": done.batching.action,
        "reason": done.batching.reason,
    }
    cache.put(KIND, key, value, {REWRITTEN: served.path} if rewritten else None)


def _from_entry(
    entry: Entry, graph: Graph, external: tuple[tuple[str, Path], ...], work_dir: Path
) -> Settled | None:
    """Return the result of an earlier run; None if the entry has just been removed."""
    kept, model = entry.value, with_files(entry.value["model"], graph, external)
    try:
        if entry.files:
            file = entry.copied(work_dir / f"{model.name}-settled")[REWRITTEN].absolute()
            served = with_files(kept["served"], Graph(file, load_proto(file)))
        else:
            served = with_files(kept["served"], graph, external)
    except OSError:
        return None
    batching = Batching(model=served, action=kept["action"], reason=kept["reason"])
    return Settled(model=model, batching=batching, cached=True)
