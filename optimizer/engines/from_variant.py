"""Take engines of TensorRT and TensorRT-RTX from the cache, or build them for a model in one precision."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import Engine
from optimizer.cached import get_file, put_file
from optimizer.child import ChildCrashed, ChildTimedOut, call_in_child
from optimizer.engines.builder import (
    WORKSPACE_BYTES,
    EngineFailed,
    TensorRt,
    TensorRtBackend,
    build_plan,
    find_tensorrt,
)
from optimizer.engines.cache import PLAN_FILE, EngineCache, EngineKey, EngineMetadata, entry_files
from optimizer.machine.hardware import Gpu
from optimizer.model.onnx_model import Model, ModelTensor

Dims = tuple[int, ...]

FIRST_GPU_WITH = {"bf16": 8.0, "tf32": 8.0, "fp8": 8.9}
"""Lowest compute capability that has a precision in hardware; TensorRT runs the other precisions on every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine that is ready to be served, its source, and its metadata."""

    engine: Engine
    source: Literal["cache", "built"]
    metadata: EngineMetadata


def engine_key(variant: Model, precision: str, *, library: TensorRt, gpu: Gpu, max_batch_size: int) -> EngineKey:
    """Return the key of the engine of a variant for batches of 1 to `max_batch_size`; see `profiles_of`.

    Raises EngineFailed for a precision that this GPU does not have.
    """
    capability = gpu.compute_capability
    assert capability is not None
    least = FIRST_GPU_WITH.get(precision)
    if least is not None and not float(capability) >= least:
        raise EngineFailed(
            f"{precision} needs a GPU of compute capability {least} or newer, and this one has {capability}.",
            "Its other precisions are tried.",
        )
    return EngineKey(
        model_sha256=variant.sha256,
        precision=precision,
        profiles=profiles_of(variant, max_batch_size, backend=library.backend),
        backend=library.backend,
        library_version=library.version,
        compute_capability=capability,
        gpu=gpu.name if library.backend == "tensorrt" else None,
        workspace_bytes=WORKSPACE_BYTES,
    )


def engine_from_cache(key: EngineKey, variant: Model, cache: EngineCache) -> BuiltEngine | None:
    """Return the engine of this key and its variant; None if it has not been built."""
    found = cache.find(key)
    if found is None:
        return None
    entry, metadata = found
    return BuiltEngine(engine=_engine(variant, key, entry), source="cache", metadata=metadata)


def engine_of(
    key: EngineKey, variant: Model, *, cache: EngineCache, may_build: bool = True, limit_s: float = math.inf
) -> BuiltEngine:
    """Return the engine of this key and its variant.

    `may_build` False: only the cache is used. Raises EngineFailed (an operator that it cannot parse, a precision
    that the graph does not have, an engine that is not cached and must not be built, or takes longer than
    `limit_s`), CacheWriteFailed.
    """
    found = engine_from_cache(key, variant, cache)
    if found is not None:
        return found
    if not may_build:
        raise EngineFailed("it has not been built yet", "A run builds it, --dry-run does not.")
    try:
        call = partial(_build, key, variant.name, variant.path, cache)
        entry, metadata = call_in_child(call, timeout_s=limit_s if math.isfinite(limit_s) else None)
    except ChildTimedOut as error:
        raise EngineFailed(
            f"it is not built within {limit_s:.0f} s, the share of the time budget for an engine",
            "A longer --time-budget gives it more time.",
        ) from error
    except ChildCrashed as error:
        raise EngineFailed(
            f"{key.backend} {key.library_version} crashed while it built {variant.path.name} in "
            f"{key.precision} ({error.reason})",
            "ONNX Runtime can still serve the model.",
        ) from error
    return BuiltEngine(engine=_engine(variant, key, entry), source="built", metadata=metadata)


def _build(key: EngineKey, name: str, onnx_file: Path, cache: EngineCache) -> tuple[Path, EngineMetadata]:
    """Build the engine into the cache. Runs in a child process, which Ctrl-C or a crash can end."""
    library = find_tensorrt(key.backend)
    assert library is not None
    built = build_plan(library, key, onnx_file, timing_cache=get_file(cache.timing_file(key)) or b"")
    metadata = EngineMetadata(
        model_name=name,
        key=key,
        library_version=key.library_version,
        compute_capability=key.compute_capability,
        rebuild=f"optimize --model {onnx_file.name} --p99 LIMIT, on this machine",
        plan_sha256=hashlib.sha256(built.plan).hexdigest(),
        plan_bytes=len(built.plan),
        executed=dict(built.executed),
        build_s=built.build_s,
    )
    entry = cache.put(built.plan, metadata)
    if built.timing_cache is not None:
        put_file(cache.timing_file(key), built.timing_cache)
    return entry, metadata


def profiles_of(
    model: Model, max_batch_size: int, *, backend: TensorRtBackend
) -> tuple[dict[str, tuple[Dims, Dims, Dims]], ...]:
    """Return the least, usual and largest whole shape per input, of each optimization profile.

    TensorRT gets one profile, from batch 1 to `max_batch_size`, optimized for the latter: it times kernels for
    each profile while it builds. TensorRT-RTX gets one for each batch size that is executed, and no other size:
    its kernels for a range are slower and, on GPUs that it does not know, wrong (ADR 20). On open axes the least
    has size 1, the other two have the sample's. Raises EngineFailed if an open axis has no size.
    """
    sizes = graph_batch_sizes(max_batch_size) if model.batched else ()
    ranges = [(size, size) for size in sizes] if sizes and backend == "tensorrt_rtx" else [(1, max_batch_size)]
    return tuple(
        {
            tensor.name: (
                _shape(model, tensor, batch=least, open_axes_at_1=True),
                _shape(model, tensor, batch=largest),
                _shape(model, tensor, batch=largest),
            )
            for tensor in model.all_inputs
        }
        for least, largest in ranges
    )


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
