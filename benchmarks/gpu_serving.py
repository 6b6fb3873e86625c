"""Measure how much of a bare engine's speed remains when Triton serves it, on one NVIDIA GPU.

    python benchmarks/gpu_serving.py OUT [--minutes 9] [--only SECTION ...] [--without SECTION ...]

Sections run one after the other, each in its own process with a time limit, so that one that fails or hangs costs
only itself. Raw figures go to OUT/SECTION.json as soon as they are known, a section's output goes to
OUT/SECTION.log, and the ratios are printed at the end and written to OUT/summary.txt.

Needs torch, torchvision and transformers to write the models, TensorRT-RTX or TensorRT, and the embedded Triton.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_first_request import first_request
from gpu_models import export
from lib.gpu_designs import serve_designs
from lib.gpu_engines import bare_engine, ort_engine
from lib.gpu_results import save, summary

# name -> (limit in seconds, description)
SECTIONS = {
    "export": (110, "write the models as fp16 ONNX"),
    "engine-resnet50": (75, "bare engine by batch size"),
    "serve-resnet50": (190, "designs behind the embedded Triton"),
    "first-request": (75, "from .onnx to the first served request, cold and warm"),
    "ort-resnet50": (70, "ONNX Runtime, CUDA graph on and off"),
    "engine-bert": (60, "bare engine by batch size"),
    "serve-bert": (60, "designs behind the embedded Triton"),
    "engine-mlp": (40, "bare engine by batch size"),
    "serve-mlp": (60, "designs behind the embedded Triton"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0, help="for the whole run")
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--without", nargs="*", default=[], choices=list(SECTIONS))
    parser.add_argument("--limit", nargs="*", default=[], metavar="SECTION=SECONDS", help="other time limits")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "gpu-serving"))
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out, work = arguments.out.absolute(), arguments.work.absolute()
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    if arguments.section:
        run_section(arguments.section, out, work, arguments.seconds)
        return 0
    given = {name: float(seconds) for name, _, seconds in (each.partition("=") for each in arguments.limit)}
    deadline = time.monotonic() + 60 * arguments.minutes
    for section in SECTIONS:
        if section not in arguments.only or section in arguments.without:
            continue
        limit_s = min(given.get(section, SECTIONS[section][0]), deadline - time.monotonic() - 5)
        if limit_s < 15:
            print(f"{section}: no time left", flush=True)
            continue
        run_shard(section, out, work, limit_s)
    text = summary(out)
    (out / "summary.txt").write_text(text)
    print(text)
    return 0


def run_section(section: str, out: Path, work: Path, limit_s: float) -> None:
    """Run a section in this process."""
    began = time.monotonic()

    def note(text: str) -> None:
        if text:
            print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    action, _, name = section.partition("-")
    if section == "export":
        result = export(work, note)
    elif section == "first-request":
        result = first_request(out, work, note)
    elif action == "engine":
        result = bare_engine(name, out, work, note)
    elif action == "ort":
        result = ort_engine(name, out, work, note)
    else:
        result = serve_designs(name, out, work, note, began + limit_s)
    save(out, section, result)


def run_shard(section: str, out: Path, work: Path, limit_s: float) -> None:
    """Run a section in its own process group, which ends with all its children when the time is over."""
    print(f"{section} ({SECTIONS[section][1]}), at most {limit_s:.0f} s", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-u", __file__, str(out), "--work", str(work), "--section", section]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    with (out / f"{section}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--seconds", str(limit_s - 4)],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment,
        )  # fmt: skip
        try:
            ended = f"exit {process.wait(timeout=limit_s)}"
        except subprocess.TimeoutExpired:
            ended = "out of time"
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                time.sleep(0.5)
            process.wait()
    tail = (out / f"{section}.log").read_text(errors="replace").splitlines()[-6:]
    print("\n".join(f"    {line[:220]}" for line in tail))
    print(f"  {ended} after {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
