"""Engines of TensorRT and TensorRT-RTX for a model whose graph holds its precision: from the cache, or built."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from model_repo.spec import Engine
from optimizer.engine_build import EngineFailed, EngineOrder, build_plan
from optimizer.engine_cache import PLAN_FILE, EngineCache, EngineKey, EngineMetadata, entry_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optimizer.onnx_model import Model, ModelTensor
    from optimizer.tensorrt_library import TensorRt

__all__ = ["BuiltEngine", "EngineCache", "EngineFailed", "Target", "engine_from_variant", "profile_of"]

Dims = tuple[int, ...]

FIRST_GPU_WITH = {"bf16": 8.0, "tf32": 8.0, "fp8": 8.9}
"""Compute capability from which a precision is computed in hardware; the others are everywhere TensorRT runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The GPU that an engine is for. `name` None where only its kind is known, as when there is none here."""

    compute_capability: str  # "8.6"
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine ready to be served, where it came from, and its metadata."""

    engine: Engine
    source: Literal["cache", "built"]
    metadata: EngineMetadata


def engine_from_variant(
    variant: Model,
    precision: str,
    *,
    library: TensorRt,
    target: Target,
    cache: EngineCache,
    max_batch_size: int,
    usual_batch_size: int | None = None,
    workspace_bytes: int = 4 * 2**30,
    may_build: bool = True,
    on_phase: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> BuiltEngine:
    """The engine of a variant for batches of 1 to `max_batch_size`, fastest at the usual size (else the largest).

    `may_build` False takes it from the cache or not at all. Raises EngineFailed (an operator that it cannot parse,
    a precision that this GPU or the graph does not have), CacheWriteFailed.
    """
    _check_gpu_has(precision, target)
    key = EngineKey(
        model_sha256=variant.sha256,
        precision=precision,
        profile=profile_of(variant, max_batch_size, usual_batch_size or max_batch_size),
        backend=library.backend,
        library_version=library.version,
        compute_capability=target.compute_capability,
        gpu=target.name if library.backend == "tensorrt" else None,
        workspace_bytes=workspace_bytes,
    )
    found = cache.find(key)
    if found is not None:
        entry, metadata = found
        return BuiltEngine(engine=_engine(variant, key, entry), source="cache", metadata=metadata)
    if not may_build:
        raise EngineFailed("it has not been built yet", "A run builds it, --dry-run does not.")
    order = EngineOrder(
        onnx_file=variant.path,
        precision=precision,
        profile=key.profile,
        compute_capability=target.compute_capability,
        workspace_bytes=workspace_bytes,
    )
    built = build_plan(library, order, timing_cache=cache.timing_cache(key), on_phase=on_phase, stop=stop)
    metadata = EngineMetadata(
        model_name=variant.name,
        key=key,
        library_version=library.version,
        compute_capability=target.compute_capability,
        rebuild=f"optimize --model {variant.path.name} --p99 LIMIT, on this machine",
        plan_sha256=hashlib.sha256(built.plan).hexdigest(),
        plan_bytes=len(built.plan),
        executed=dict(built.executed),
        build_s=built.build_s,
    )
    entry = cache.put(built.plan, metadata)
    if built.timing_cache is not None:
        cache.put_timing_cache(key, built.timing_cache)
    return BuiltEngine(engine=_engine(variant, key, entry), source="built", metadata=metadata)


def profile_of(model: Model, max_batch_size: int, usual_batch_size: int) -> dict[str, tuple[Dims, Dims, Dims]]:
    """Least, usual and largest whole shape of each input: the batch from 1, other open axes up to their sample.

    Raises EngineFailed where an open axis has no size.
    """
    return {
        tensor.name: (
            _shape(model, tensor, batch=1, open_axes_at_1=True),
            _shape(model, tensor, batch=usual_batch_size),
            _shape(model, tensor, batch=max_batch_size),
        )
        for tensor in model.all_inputs
    }


def _shape(model: Model, tensor: ModelTensor, *, batch: int, open_axes_at_1: bool = False) -> Dims:
    sizes = []
    for axis, (declared, sized) in enumerate(zip(tensor.dims, tensor.sized, strict=True)):
        if axis == 0 and model.batched:
            sizes.append(batch)
        elif isinstance(sized, str):
            raise EngineFailed(
                f"{tensor.name}: an engine needs the largest size of its axis {sized!r}.",
                f"Give it with --shape {tensor.name}=..., or serve the model with ONNX Runtime.",
            )
        else:
            sizes.append(1 if open_axes_at_1 and isinstance(declared, str) else sized)
    return tuple(sizes)


def _check_gpu_has(precision: str, target: Target) -> None:
    least = FIRST_GPU_WITH.get(precision)
    if least is not None and not float(target.compute_capability) >= least:
        raise EngineFailed(
            f"{precision} needs a GPU of compute capability {least} or newer, and this one has "
            f"{target.compute_capability}.",
            "Its other precisions are tried.",
        )


def _engine(variant: Model, key: EngineKey, entry: Path) -> Engine:
    return Engine(
        model_name=variant.name,
        backend=key.backend,
        precision=key.precision,
        model_file=PLAN_FILE,
        files=entry_files(entry),
        inputs=variant.inputs,
        outputs=variant.outputs,
        batched=variant.batched,
        device="gpu",
    )
