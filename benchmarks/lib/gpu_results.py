"""Store the raw figures of gpu_serving.py, one file per section, and compute their ratios."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BATCH = 64
MODELS = ("resnet50", "bert", "mlp")
ROW_SHAPES = {
    "resnet50": {"image": (3, 224, 224)},
    "bert": {"input_ids": (128,), "attention_mask": (128,)},
    "mlp": {"features": (256,)},
}
LIMIT_MS = 50.0

Note = Callable[[str], None]
"""Prints a line of progress."""


def save(out: Path, section: str, result: dict[str, Any]) -> None:
    """Save figures at once, so that a section that is cut short leaves its figures so far."""
    draft = out / f".{section}.json"
    draft.write_text(json.dumps(result, indent=1, default=str) + "\n")
    draft.replace(out / f"{section}.json")


def read(out: Path, section: str) -> dict[str, Any]:
    """Return the saved figures of a section; empty if it has not run."""
    path = out / f"{section}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def summary(out: Path) -> str:
    """Return the ratios, from the files."""
    lines = []
    for name in MODELS:
        engine, served = read(out, f"engine-{name}"), read(out, f"serve-{name}")
        rows = engine.get("graphs", {}).get("times") or engine.get("launches", {}).get("times", [])
        best = max((1000 * row["batch_size"] / row["batch_ms"] for row in rows), default=None)
        if rows:
            at = {row["batch_size"]: row for row in rows}
            plain = {row["batch_size"]: row for row in engine.get("launches", {}).get("times", [])}
            lines.append(
                f"{name}: bare engine {best:,.0f}/s at best, batch 1 {at[1]['batch_ms']:.3f} ms with a graph"
                + (f", {plain[1]['batch_ms']:.3f} ms without" if plain else "")
            )
        for design, row in served.get("designs", {}).items():
            if "error" in row:
                lines.append(f"  {design}: FAILED {row['error'].splitlines()[0]}")
            closed = max((seen["rate_per_s"] for seen in row.get("closed", {}).values()), default=None)
            if closed is None:
                continue
            rate = row.get("open", {}).get("rate_per_s")
            share = f" = {100 * rate / best:.0f} % of the engine" if rate and best else ""
            text = "no rate" if rate is None else f"{rate:,.0f}/s{share}"
            of = f" ({100 * closed / best:.0f} %)" if best else ""
            lines.append(f"  {design}: p99 <= {LIMIT_MS:g} ms at {text}; closed loop {closed:,.0f}/s{of}")
    for backend, section in (("TensorRT", "engine-resnet50"), ("ONNX Runtime", "ort-resnet50")):
        found = read(out, section)
        try:
            with_graph, without = (
                next(row["batch_ms"] for row in found[key]["times"] if row["batch_size"] == 1)
                for key in ("graphs", "launches")
            )
            lines.append(f"CUDA graph, {backend}, ResNet-50 batch 1: {without / with_graph:.2f} x faster")
        except (KeyError, StopIteration):
            lines.append(f"CUDA graph, {backend}: no figure")
    for state, row in read(out, "first-request").items():
        failed = " FAILED" if row["exit"] else ""
        lines.append(f"first request {state}:{failed} {row['seconds']:.1f} s {row['stages']}")
    return "\n".join(lines) + "\n"
