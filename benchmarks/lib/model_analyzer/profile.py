"""Run Model Analyzer on our embedded Triton, within a time limit, and read its recommendation."""

from __future__ import annotations

import contextlib
import csv
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

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
) -> dict[str, Any]:
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
    rows = rows_of(folder / "results" / "metrics-model-inference.csv")
    return {"wall_s": time.monotonic() - began, "ended": ended, "measurements": len(rows), **choice_of(rows)}


def settings_of(
    perf_analyzer: Path, repository: Path, folder: Path, *, model: str, mode: str, limit_ms: float, gpu: bool
) -> dict[str, Any]:
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


def choice_of(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the row of the highest throughput that meets the limit: its configuration and its promise."""
    good = [row for row in rows if row["Satisfies Constraints"] == "Yes"]
    if not good:
        return {"knobs": None, "promised_per_s": None, "promised_p99_ms": None}
    best = max(good, key=lambda row: float(row["Throughput (infer/sec)"]))
    instances = sum(int(group.split(":")[0]) for group in best["Instance Group"].split("/"))
    return {
        "knobs": {"max_batch_size": int(best["Max Batch Size"]), "instance_count": instances},
        "promised_per_s": float(best["Throughput (infer/sec)"]),
        "promised_p99_ms": float(best["p99 Latency (ms)"]),
        "concurrency": int(best["Concurrency"]),
    }


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of its table of measurements; none if it wrote none."""
    return list(csv.DictReader(file.read_text().splitlines())) if file.is_file() else []


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
