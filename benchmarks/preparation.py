"""Measure the preparation of a model of DistilBERT's size, with an empty cache and again with what it left there.

    python benchmarks/preparation.py RESULTS.json
    python benchmarks/preparation.py RESULTS.json --onnx model.onnx --shape input_ids:64 --shape attention_mask:64

Runs `optimize` twice and prints the seconds of each step of the preparation. Without --onnx it exports a factory
of PyTorch: 6 layers, 768 wide, 30,522 tokens, 64 tokens a request, random weights. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS = 64
STEP = re.compile(r"StepEnded\(step='([^']+)', seconds=([0-9.e-]+), cached=(True|False)\)")
OPTIMIZE = (sys.executable, "-P", "-c", "from optimizer.cli import main; main()")


def distilbert() -> tuple[Any, dict[str, Any]]:
    """Return the module and its inputs; the weights are the same in every run."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.DistilBertConfig(num_labels=2, attn_implementation="eager")
    encoder = transformers.DistilBertForSequenceClassification(config)

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).logits

    ids = torch.randint(1000, 20000, (2, TOKENS))
    return Classifier(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def run(arguments: argparse.Namespace, folder: Path, name: str) -> dict[str, Any]:
    """Return the steps of one run, in order, with its wall time until the search began."""
    output = folder / name
    model = "preparation:distilbert" if arguments.onnx is None else str(arguments.onnx.absolute())
    shapes = [part for shape in arguments.shape for part in ("--shape", shape)]
    command = [*OPTIMIZE, "--model", model, "--p99", arguments.p99, *shapes, "--output", str(output)]
    command += ["--cache-dir", str(folder / "cache"), "--time-budget", arguments.time_budget, "--despite-noise"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    started = time.monotonic()
    with (folder / f"{name}.txt").open("w") as log:
        code = subprocess.run(
            command, cwd=Path(__file__).parent, env=environment, stdout=log, stderr=log, check=False
        ).returncode
    steps = [
        {"step": step, "seconds": round(float(seconds), 2), "cached": cached == "True"}
        for step, seconds, cached in STEP.findall((output / "optimize.log").read_text())
    ]
    return {
        "exit_code": code,
        "seconds": round(time.monotonic() - started, 1),
        "preparation": round(sum(step["seconds"] for step in steps), 1),
        "steps": steps,
        "terminal": (folder / f"{name}.txt").read_text().splitlines(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--p99", default="20ms")
    parser.add_argument("--time-budget", default="60s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: run(arguments, Path(folder), name) for name in ("cold", "warm")}
    arguments.results.write_text(json.dumps(found, indent=1) + "\n")
    for name, one in found.items():
        print(f"{name}: preparation {one['preparation']} s of {one['seconds']} s, exit {one['exit_code']}")
        for step in one["steps"]:
            print(f"  {step['seconds']:8.2f} s  {step['step']}{' (cached)' if step['cached'] else ''}")


if __name__ == "__main__":
    main()
