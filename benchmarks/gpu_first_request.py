"""Time the way from an .onnx to the first served request, cold and warm.

    python benchmarks/gpu_first_request.py CACHE

Runs it once, with the engines in the folder CACHE and the model next to it, and prints the seconds of each stage
as JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.gpu_engines import build, timed_engine
from lib.gpu_results import MAX_BATCH, save


def first_request(out: Path, work: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Measure in new processes: cold without any cache, then warm with the cache of the first."""
    result, cache = {}, work / "first-request-cache"
    shutil.rmtree(cache, ignore_errors=True)
    for state in ("cold", "warm"):
        began = time.monotonic()
        answer = subprocess.run(
            [sys.executable, __file__, str(cache)],
            capture_output=True, text=True, timeout=70, check=False,
        )  # fmt: skip
        note(answer.stderr)
        seconds = time.monotonic() - began
        stages = json.loads(answer.stdout.splitlines()[-1]) if answer.returncode == 0 else None
        result[state] = {"seconds": seconds, "stages": stages, "exit": answer.returncode}
        note(f"{state}: {result[state]}")
        save(out, "first-request", result)
    return result


def first_request_process(cache: Path) -> None:
    """Go from the .onnx to a response, with one instance and all its CUDA graphs; print the stages in seconds."""
    import numpy as np

    from model_repo.repository.config_pbtxt import graph_batch_sizes
    from model_repo.server.options import ServerOptions
    from model_repo.server.triton import serve
    from model_repo.spec import ServingConfig

    def note(text: str) -> None:
        print(text, file=sys.stderr)

    started = time.monotonic()
    stages: dict[str, float] = {}
    built, stages["build"] = build("resnet50", cache, note)
    folder = dict(built.engine.files)["model.plan"].parent
    if not (folder / "kernels.cache").exists():
        began = time.monotonic()
        timed_engine(folder, "model.plan", built.engine.backend, "resnet50", True, note)
        stages["compile_kernels"] = time.monotonic() - began
        built, _ = build("resnet50", cache, note)  # now its files include the kernels
    config = ServingConfig(
        engine=built.engine, max_batch_size=MAX_BATCH, cuda_graph_batch_sizes=graph_batch_sizes(MAX_BATCH)
    )
    with tempfile.TemporaryDirectory(prefix="gpu-first-") as run_dir:
        options = ServerOptions(run_dir=Path(run_dir), gpu=True)
        began = time.monotonic()
        try:
            with serve(options) as server:
                stages["server"] = time.monotonic() - began
                began = time.monotonic()
                server.load(config)
                stages["load"] = time.monotonic() - began
                import tritonclient.http as http

                client = http.InferenceServerClient(f"{server.endpoint.host}:{server.endpoint.http_port}")
                tensor = http.InferInput("image", [1, 3, 224, 224], "FP16")
                tensor.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float16))
                began = time.monotonic()
                key = dict(server.endpoint.headers("http"))
                answer = client.infer(built.engine.model_name, [tensor], headers=key).as_numpy("logits")
                stages["request"] = time.monotonic() - began
                assert answer.shape == (1, 1000), answer.shape
                stages["total_without_python_start"] = time.monotonic() - started
        finally:
            if options.log_file.exists():
                note(options.log_file.read_text(errors="replace")[-6000:])
    print(json.dumps(stages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    first_request_process(parser.parse_args().cache)


if __name__ == "__main__":
    main()
