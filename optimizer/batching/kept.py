"""Keep the checks of a model and the proof of its batch for later runs, under the model's contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.files import sha256_of
from optimizer.batching.dynamic_batch import Batching, dynamic_batch, served_model
from optimizer.cached import NO_CACHE, Entry, Key, ResultCache, versions_digest
from optimizer.model.files import Graph, external_files, load_proto
from optimizer.model.onnx_model import Model, ModelTensor, read_model
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
    cache: ResultCache = NO_CACHE,
    processor: str = "",
) -> Settled:
    """Return the model in a file and the one to serve, from the cache or by reading, checking and proving.

    `processor` is the name of the one on which the proof runs. Raises as `read_model`, `with_shapes` and
    `dynamic_batch` do.
    """
    if cache.folder is None:
        return _served(_proven(path, shapes, work_dir), work_dir)
    proto = load_proto(path)
    external = external_files(proto, path.parent)
    key = {
        "sha256": sha256_of(path, external),
        "name": path.name,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "processor": processor,
        "versions": versions_digest(),
    }
    entry = cache.find(KIND, key)
    if entry is not None:
        own = tuple((location, file.absolute()) for location, file in external.items())
        found = _from_entry(entry, Graph(path.absolute(), proto), own, work_dir)
        if found is not None:
            return _served(found, work_dir)
        cache.remove(KIND, key)
    del proto
    done = _proven(path, shapes, work_dir)
    _keep(cache, key, done)
    return _served(done, work_dir)


def _proven(path: Path, shapes: Mapping[str, tuple[int, ...]], work_dir: Path) -> Settled:
    model = with_shapes(read_model(path), shapes)
    return Settled(model=model, batching=dynamic_batch(model, work_dir))


def _served(found: Settled, work_dir: Path) -> Settled:
    """Return the same with the served model's weights in `work_dir`."""
    return replace(found, batching=replace(found.batching, model=served_model(found.batching.model, work_dir)))


def _keep(cache: ResultCache, key: Key, done: Settled) -> None:
    """Keep the result, unless the model was rewritten and has weights in other files: copies would be large."""
    served = done.batching.model
    rewritten = served.path != done.model.path
    if rewritten and served.external:
        return
    value = {
        "model": _to_json(done.model),
        "served": _to_json(served),
        "action": done.batching.action,
        "reason": done.batching.reason,
    }
    cache.put(KIND, key, value, {REWRITTEN: served.path} if rewritten else None)


def _from_entry(
    entry: Entry, graph: Graph, external: tuple[tuple[str, Path], ...], work_dir: Path
) -> Settled | None:
    """Return the result of an earlier run; None if the entry does not have the form that `_keep` writes."""
    try:
        value = entry.value
        model = _from_json(value["model"], graph, external)
        served = _from_json(value["served"], graph, external)
        if value["action"] not in ("kept", "rewritten", "unbatched"):
            return None
        if entry.files:
            file = entry.copied(work_dir / f"{model.name}-settled")[REWRITTEN].absolute()
            served = replace(served, graph=Graph(file, load_proto(file)), external=())
        batching = Batching(model=served, action=value["action"], reason=str(value["reason"]))
    except (KeyError, TypeError, ValueError, OSError):
        return None
    return Settled(model=model, batching=batching, cached=True)


def _to_json(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "inputs": [_tensor_to_json(tensor) for tensor in model.all_inputs],
        "outputs": [_tensor_to_json(tensor) for tensor in model.all_outputs],
        "batch": model.batch,
        "opset": model.opset,
        "size_bytes": model.size_bytes,
        "sha256": model.sha256,
    }


def _tensor_to_json(tensor: ModelTensor) -> list[Any]:
    return [tensor.name, tensor.datatype, tensor.dims, tensor.sample_dims]


def _from_json(value: Mapping[str, Any], graph: Graph, external: tuple[tuple[str, Path], ...]) -> Model:
    return Model(
        name=value["name"],
        graph=graph,
        external=external,
        all_inputs=tuple(map(_tensor_from_json, value["inputs"])),
        all_outputs=tuple(map(_tensor_from_json, value["outputs"])),
        batch=value["batch"],
        opset=int(value["opset"]),
        size_bytes=int(value["size_bytes"]),
        sha256=value["sha256"],
    )


def _tensor_from_json(value: list[Any]) -> ModelTensor:
    name, datatype, dims, sample_dims = value
    return ModelTensor(
        name=name,
        datatype=datatype,
        dims=tuple(dims),
        sample_dims=None if sample_dims is None else tuple(sample_dims),
    )
