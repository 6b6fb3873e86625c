"""Run Model Analyzer on our embedded Triton, within a time limit, and read its recommendation."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

Figures = dict[str, Any]
MODES = ("quick", "brute", "optuna")
AFTER_SIGINT_S = 90.0
"""After an interrupt, Model Analyzer finishes the measurement in progress and writes its tables."""

LOOK_EVERY_S = 0.5
LOOPBACK = tuple(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics"))


def profiled(
    program: Path,
    perf_analyzer: Path,
    repository: Path,
    folder: Path,
    *,
    mode: str,
    limit_ms: float,
    most_s: float,
    gpu: bool,
) -> Figures:
    """Return its recommendation, its promise, and how it ended; `knobs` is None if it has no recommendation.

    `repository` holds the one model with Triton's default configuration; `folder` gets its logs and tables. After
    `most_s` seconds it is interrupted, and the best of what it measured until then is its recommendation.
    """
    [model] = [path.parent.name for path in repository.glob("*/config.pbtxt")]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = settings_of(perf_analyzer, repository, folder, model=model, mode=mode, limit_ms=limit_ms, gpu=gpu)
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    began = time.monotonic()
    ended = _run([str(program), "profile", "--config-file", str(folder / "settings.yaml")], folder, most_s)
    wall_s = time.monotonic() - began
    measured = measurements_in(folder / "checkpoints")
    return {"wall_s": wall_s, "ended": ended, "measurements": len(measured), **choice_of(measured, limit_ms)}


def settings_of(
    perf_analyzer: Path, repository: Path, folder: Path, *, model: str, mode: str, limit_ms: float, gpu: bool
) -> Figures:
    """Return its settings: its defaults, but for the server, the mode and the latency limit."""
    server = folder / "tritonserver"
    command = shlex.join([sys.executable, "-m", "model_repo.server.entrypoint"])
    scratch = folder / "scratch"
    scratch.mkdir()
    server.write_text(
        f'#!/bin/sh\nexport TMPDIR={shlex.quote(str(scratch))}\nexec {command} "$@" {shlex.join(LOOPBACK)}\n'
    )
    server.chmod(0o755)
    http, grpc, metrics = _free_ports(3)
    return {
        "model_repository": str(repository),
        "profile_models": {model: {"cpu_only": not gpu}},
        "run_config_search_mode": mode,
        "constraints": {"perf_latency_p99": {"max": limit_ms}},
        "triton_launch_mode": "local",
        "triton_server_flags": {"allow-gpu-metrics": str(gpu).lower()},
        "triton_server_path": str(server),
        "triton_http_endpoint": f"127.0.0.1:{http}",
        "triton_grpc_endpoint": f"127.0.0.1:{grpc}",
        "triton_metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        "triton_output_path": str(folder / "server.log"),
        "perf_analyzer_path": str(perf_analyzer),
        "output_model_repository_path": str(folder / "variants"),
        "checkpoint_directory": str(folder / "checkpoints"),
        "export_path": str(folder),
        "override_output_model_repository": True,
        "skip_detailed_reports": True,
        "skip_summary_reports": True,
    }


def choice_of(measured: Sequence[Figures], limit_ms: float) -> Figures:
    """Return the measurement of the highest throughput whose p99 met the limit: its recommendation."""
    good = [one for one in measured if one["promised_p99_ms"] <= limit_ms]
    if not good:
        return {"knobs": None, "promised_per_s": None, "promised_p99_ms": None}
    return max(good, key=lambda one: float(one["promised_per_s"]))


def measurements_in(folder: Path) -> list[Figures]:
    """Return the measurements of the newest checkpoint; its tables are only written at the end of a whole run."""
    found: list[Figures] = []
    files = sorted(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
    if not files:
        return found
    [variants] = json.loads(files[-1].read_text())["ResultManager.results"]["_results"].values()
    for run_config, measured in variants.values():
        config = run_config["_model_run_configs"][0]["_model_config_variant"]["model_config"]
        knobs = {
            "max_batch_size": config.get("maxBatchSize", 0),
            "instance_count": sum(group["count"] for group in config["instanceGroup"]),
        }
        for one in measured.values():
            [model] = one["_model_config_measurements"]
            values = {name: record["_value"] for name, record in model["_non_gpu_data"]}
            found.append(
                {
                    "knobs": knobs,
                    "promised_per_s": values["perf_throughput"],
                    "promised_p99_ms": values["perf_latency_p99"],
                    "concurrency": model["_model_specific_pa_params"]["concurrency-range"],
                }
            )
    return found


def _run(command: Sequence[str], folder: Path, most_s: float) -> str:
    """Run it, and return how it ended. All processes that it started have ended when this returns."""
    family: set[psutil.Process] = set()
    ended = None
    with (folder / "log.txt").open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        if not _waited(process, most_s, family):
            ended = f"interrupted after {most_s:.0f} s"
            process.send_signal(signal.SIGINT)
            if not _waited(process, AFTER_SIGINT_S, family):
                ended += f", and killed {AFTER_SIGINT_S:.0f} s later"
    finally:
        _end({*family, process})
    if ended is None and process.returncode != 0:
        lines = (folder / "log.txt").read_text().strip().splitlines() or [""]
        ended = f"exit code {process.returncode}: {lines[-1][:200]}"
    return ended or "finished"


def _waited(process: psutil.Popen, seconds: float, family: set[psutil.Process]) -> bool:
    """Return if it has ended within so many seconds; `family` gets what it starts meanwhile.

    The server and perf_analyzer have sessions of their own, and outlive a Model Analyzer that crashes.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            family.update(process.children(recursive=True))
            process.wait(LOOK_EVERY_S)
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            process.wait()
        return True
    return False


def _end(family: set[psutil.Process]) -> None:
    """End them, gently first: a server that is killed leaves its shared memory behind."""
    left = list(family)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(one)
        _, left = psutil.wait_procs(left, timeout=10)


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
