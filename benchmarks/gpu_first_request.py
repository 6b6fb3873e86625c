"""From an .onnx to the first served request, cold and warm.

    python benchmarks/gpu_first_request.py CACHE

takes that way once, with the engines in CACHE and the model beside it, and prints the seconds of each stage as
JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_engines import build, timed_engine
from gpu_models import MAX_BATCH
from gpu_results import save


def first_request(out: Path, work: Path, note) -> dict:
    """A fresh process each: cold without any cache, warm with what the first left."""
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
    """From the .onnx to an answer, one instance with all its CUDA graphs; stages in seconds on stdout."""
    import numpy as np

    from model_repo.config_pbtxt import graph_batch_sizes
    from model_repo.options import ServerOptions
    from model_repo.server import serve
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
        built, _ = build("resnet50", cache, note)  # now with the kernels among its files
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
                answer = client.infer(built.engine.model_name, [tensor]).as_numpy("logits")
                stages["request"] = time.monotonic() - began
                assert answer.shape == (1, 1000), answer.shape
                stages["total_without_python_start"] = time.monotonic() - started
        finally:
            if options.log_file.exists():
                note(options.log_file.read_text(errors="replace")[-6000:])
    print(json.dumps(stages))


if __name__ == "__main__":
    first_request_process(Path(sys.argv[1]))
