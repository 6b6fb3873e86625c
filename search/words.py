"""Configurations in words, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_repo.spec import ServingConfig
    from search.records import ConfigRecord


def knobs_text(config: ServingConfig) -> str:
    """Such as `fp32, batch 8, 2 instances x 1 thread, delay 1 ms`; on a GPU the backend too."""
    engine = config.engine
    return _text(config, engine.backend, engine.precision, on_gpu=engine.device == "gpu")


def quantile_name(quantile: float) -> str:
    """`p99`, `p99.9`."""
    return f"p{100 * quantile:g}"


def memory_text(size_bytes: float) -> str:
    """`8 GiB`, `512 MiB`: three significant digits."""
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.3g} MiB"


def record_text(config: ConfigRecord, *, on_gpu: bool) -> str:
    """The same for a configuration that was written down."""
    backend, _, precision = config.engine.partition("-")
    return _text(config, backend, precision or config.engine, on_gpu=on_gpu)


def _text(config: ServingConfig | ConfigRecord, backend: str, precision: str, *, on_gpu: bool) -> str:
    batch = f"batch {config.max_batch_size}" if config.max_batch_size > 1 else "no batching"
    instances = f"{config.instance_count} instance" + ("s" if config.instance_count > 1 else "")
    name = f"{backend} {precision}" if on_gpu else precision
    parts = [name, batch, instances + ("" if on_gpu else _threads(config.intra_op_threads))]
    if config.cuda_graph_batch_sizes:
        parts.append("CUDA graphs")
    if config.max_queue_delay_us:
        parts.append(f"delay {config.max_queue_delay_us / 1000:g} ms")
    return ", ".join(parts)


def _threads(count: int) -> str:
    if count == 0:
        return " x all cores"
    return f" x {count} thread" + ("s" if count > 1 else "")
