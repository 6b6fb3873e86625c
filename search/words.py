"""Configurations in words, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_repo.spec import ServingConfig


def knobs_text(config: ServingConfig) -> str:
    """Such as `fp32, batch 8, 2 instances x 1 thread, delay 1 ms`; on a GPU the backend too."""
    batch = f"batch {config.max_batch_size}" if config.max_batch_size > 1 else "no batching"
    instances = f"{config.instance_count} instance" + ("s" if config.instance_count > 1 else "")
    engine = config.engine
    name = f"{engine.backend} {engine.precision}" if engine.device == "gpu" else engine.precision
    parts = [name, batch, instances + _threads(config)]
    if config.cuda_graph_batch_sizes:
        parts.append("CUDA graphs")
    if config.max_queue_delay_us:
        parts.append(f"delay {config.max_queue_delay_us / 1000:g} ms")
    return ", ".join(parts)


def _threads(config: ServingConfig) -> str:
    if config.engine.device == "gpu":
        return ""
    if config.intra_op_threads == 0:
        return " x all cores"
    return f" x {config.intra_op_threads} thread" + ("s" if config.intra_op_threads > 1 else "")
