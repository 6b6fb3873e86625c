"""How much of a bare engine's speed is left when Triton serves it, on one NVIDIA GPU.

    python benchmarks/gpu_serving.py OUT [--minutes 9] [--only SECTION ...] [--without SECTION ...]

Sections run one after the other, each in a process of its own with a time limit, so that one that fails or hangs
costs only itself. Raw figures go to OUT/SECTION.json as soon as they are known, what a section said to
OUT/SECTION.log, and the ratios are printed at the end and written to OUT/summary.txt.

Needs torch, torchvision and transformers to write the models, TensorRT-RTX or TensorRT, and the embedded Triton.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAX_BATCH = 64
LIMIT_MS = 50.0
MODELS = ("resnet50", "bert", "mlp")
ROW_SHAPES = {
    "resnet50": {"image": (3, 224, 224)},
    "bert": {"input_ids": (128,), "attention_mask": (128,)},
    "mlp": {"features": (256,)},
}

# name -> (limit in seconds, what it is)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to serve; `mps` shares the GPU between the instances through NVIDIA's multi-process service."""

    instances: int
    input_path: str = "auto"
    wait: str = "block"
    delay_us: int = 0
    graphs: bool = True
    mps: bool = False
    backend: str = "tensorrt_rtx"

    @property
    def name(self) -> str:
        words = [f"{self.backend} {self.instances}x", self.input_path, self.wait, f"delay {self.delay_us}us"]
        return ", ".join([*words, "graphs" if self.graphs else "no graphs", *(["MPS"] if self.mps else [])])


DESIGNS = {
    "resnet50": (
        Design(instances=8),
        Design(instances=4),
        Design(instances=8, mps=True),
        Design(instances=6, mps=True),
        Design(instances=6),
        Design(instances=4, mps=True),
        Design(instances=4, input_path="pinned"),
        Design(instances=6, delay_us=2000),
        Design(instances=2),
        Design(instances=4, wait="spin"),
        Design(instances=4, graphs=False),
    ),
    "bert": (Design(instances=2), Design(instances=3, mps=True), Design(instances=1)),
    "mlp": (
        Design(instances=4),
        Design(instances=6),
        Design(instances=4, delay_us=500),
        Design(instances=4, input_path="direct"),
    ),
}


# --- sections


def export(out: Path, work: Path, note) -> dict:
    """All three models at once, each in a process of its own: most of it is importing torch."""
    processes = {
        name: subprocess.Popen([sys.executable, __file__, str(out), "--export-one", name, "--work", str(work)])
        for name in MODELS
    }
    seconds, started = {}, time.monotonic()
    for name, process in processes.items():
        code = process.wait()
        seconds[name] = round(time.monotonic() - started, 2)
        note(f"{name}: exit {code} after {seconds[name]} s")
    if not (work / "bert.onnx").exists():
        note("bert: the library's model cannot be exported here, so one in plain operators takes its place")
        command = [sys.executable, __file__, str(out), "--export-one", "plain-bert", "--work", str(work)]
        subprocess.run(command, check=False)
    return {"seconds": seconds, "bytes": {f.name: f.stat().st_size for f in sorted(work.glob("*.onnx"))}}


def export_one(name: str, work: Path) -> None:
    """Random weights: speed does not depend on them."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    if name == "resnet50":
        import torchvision

        model = torchvision.models.resnet50(weights=None)
        example, inputs, outputs = (torch.randn(2, 3, 224, 224).half(),), ["image"], ["logits"]
    elif name in ("bert", "plain-bert"):
        model = transformers_bert(torch) if name == "bert" else plain_bert(torch)
        ids = torch.ones(2, 128, dtype=torch.int64)
        example, inputs, outputs = (ids, ids.clone()), ["input_ids", "attention_mask"], ["logits"]
    else:
        sizes = (256, 512, 256)
        layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
        example, inputs, outputs = (torch.randn(2, 256).half(),), ["features"], ["score"]
    model = model.eval().half().to(device)
    example = tuple(value.to(device) for value in example)
    target, draft = work / f"{name.removeprefix('plain-')}.onnx", work / f"draft-{name}.onnx"
    common = {"input_names": inputs, "output_names": outputs, "opset_version": 17}
    axes = {each: {0: "batch"} for each in (*inputs, *outputs)}
    with torch.no_grad():
        try:
            torch.onnx.export(
                model, example, str(draft), dynamo=False, do_constant_folding=True, dynamic_axes=axes, **common
            )
        except Exception:
            traceback.print_exc()
            batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
            shapes = tuple({0: batch} for _ in example)
            common["opset_version"] = 18
            torch.onnx.export(
                model, example, str(draft), dynamo=True, dynamic_shapes=shapes, external_data=False, **common
            )
    draft.replace(target)


def transformers_bert(torch):
    """BERT-base with a head of two classes, as the library has it."""
    import transformers

    config = transformers.BertConfig(num_labels=2, attn_implementation="eager")
    bert = transformers.BertForSequenceClassification(config)

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask):
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits

    return Classifier()


def plain_bert(torch):
    """The same arithmetic (12 layers, 768 wide, 12 heads) in plain operators, should the exporter fail."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
            self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)
            self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)

        def forward(self, x, bias):
            q, k, v = (
                part.reshape(-1, 128, 12, 64).transpose(1, 2)
                for part in self.qkv(x).reshape(-1, 128, 3, 768).unbind(2)
            )
            weights = torch.softmax(q @ k.transpose(2, 3) * 0.125 + bias, dim=-1)
            x = self.norm1(x + self.out((weights @ v).transpose(1, 2).reshape(-1, 128, 768)))
            return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(30522, 768), nn.Parameter(torch.randn(1, 128, 768))
            self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 2)
            self.layers = nn.ModuleList(Layer() for _ in range(12))

        def forward(self, input_ids, attention_mask):
            bias = (1.0 - attention_mask[:, None, None, :].to(self.places.dtype)) * -10000.0
            x = self.norm(self.words(input_ids) + self.places)
            for layer in self.layers:
                x = layer(x, bias)
            return self.head(x[:, 0])

    return Bert()


def bare_engine(name: str, out: Path, work: Path, note) -> dict:
    """TensorRT(-RTX) alone: graph replay and plain launches, data on the GPU."""
    built, seconds = build(name, work / "cache", note)
    result = {"library": f"{built.engine.backend} {built.metadata.library_version}", "build_s": seconds}
    result["executed"] = built.metadata.executed
    folder = dict(built.engine.files)["model.plan"].parent
    for scratch in ("shared", "own"):
        result["scratch"] = scratch
        for graphs in (True, False):
            key = "graphs" if graphs else "launches"
            try:
                result[key] = timed_engine(
                    folder, "model.plan", built.engine.backend, name, graphs, note, scratch=scratch
                )
            except Exception as error:
                result[key] = {"error": str(error)}
                note(traceback.format_exc())
            save(out, f"engine-{name}", result)
        if any("times" in result[key] for key in ("graphs", "launches")):
            break
    return result


def ort_engine(name: str, out: Path, work: Path, note) -> dict:
    """ONNX Runtime CUDA on the same file."""
    result: dict = {}
    for graphs in (True, False):
        key = "graphs" if graphs else "launches"
        try:
            result[key] = timed_engine(work, f"{name}.onnx", "onnxruntime", name, graphs, note, largest=1)
        except Exception as error:
            result[key] = {"error": str(error)}
            note(traceback.format_exc())
        save(out, f"ort-{name}", result)
    return result


def serve_designs(name: str, out: Path, work: Path, note, deadline: float) -> dict:
    """Each design: closed-loop throughput, then the highest rate that keeps p99 within the limit, open loop."""
    built, _ = build(name, work / "cache", note)
    result: dict = {"designs": {}}
    for design in DESIGNS[name]:
        if time.monotonic() > deadline - 22:
            note(f"no time left for {design.name}")
            break
        note(f"--- {design.name}")
        row: dict = {}
        result["designs"][design.name] = row
        try:
            with mps(work, note) if design.mps else unchanged():
                serve_one(name, built, design, out, note, deadline, row)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
            note(traceback.format_exc())
            note(getattr(error, "log_tail", ""))
        save(out, f"serve-{name}", result)
    return result


def serve_one(name: str, built, design: Design, out: Path, note, deadline: float, row: dict) -> None:
    """Fills `row` as figures come in, so that what was measured before a failure is kept."""
    from dataclasses import asdict

    from loadgen.capacity import find_capacity
    from loadgen.plan import ClosedLoopPlan, Payload, Target
    from loadgen.runner import LoadGenerator
    from model_repo.config_pbtxt import graph_batch_sizes
    from model_repo.options import ServerOptions
    from model_repo.server import serve
    from model_repo.spec import ServingConfig
    from search.triton_bench import TritonBench

    config = ServingConfig(
        engine=built.engine,
        max_batch_size=MAX_BATCH,
        instance_count=design.instances,
        max_queue_delay_us=design.delay_us,
        cuda_graph_batch_sizes=graph_batch_sizes(MAX_BATCH) if design.graphs else (),
        backend_options=(
            ("input_path", design.input_path),
            ("gpu_wait", design.wait),
            ("scratch", scratch_that_works(out, name)),
        ),
    )
    with tempfile.TemporaryDirectory(prefix="gpu-serving-") as run_dir:
        options = ServerOptions(run_dir=Path(run_dir), gpu=True)
        try:
            with serve(options) as server, LoadGenerator(processes=load_processes()) as generator:
                payload = Payload(seed=1)
                bench = TritonBench(server, generator, payload=payload, limit_ms=LIMIT_MS, timeout_s=5.0)
                bench.load(config)
                row.update(**asdict(design), load_s=bench.spent.loading_s)
                note(f"loaded in {bench.spent.loading_s:.1f} s")
                endpoint = server.endpoint
                target = Target(
                    url=endpoint.http_url,
                    model_name=built.engine.model_name,
                    metrics_url=f"http://{endpoint.host}:{endpoint.metrics_port}/metrics",
                )
                generator.run(target, ClosedLoopPlan(concurrency=64, duration_s=1.0), payload=payload)
                row["closed"] = {}
                for concurrency in (2 * design.instances * MAX_BATCH, 1):
                    before, start = server_cpu_s(), time.monotonic()
                    seconds = 3.0 if concurrency > 1 else 1.0
                    run = generator.run(
                        target, ClosedLoopPlan(concurrency=concurrency, duration_s=seconds), payload=payload
                    )
                    row["closed"][concurrency] = figures(
                        run.measurement, server_cpu_s() - before, time.monotonic() - start
                    )
                    note(f"closed loop {concurrency}: {brief(run.measurement)}")
                most = row["closed"][2 * design.instances * MAX_BATCH]["rate_per_s"]
                probes = []

                def on_probe(seen) -> None:
                    probes.append(
                        (seen.rate_per_s, seen.verdict.latency_ms, seen.reading.kept, list(seen.problems))
                    )
                    note(
                        f"  {seen.rate_per_s:,.0f}/s: p99 {seen.verdict.latency_ms:.1f} ms "
                        + " ".join(seen.problems)
                    )

                estimate = find_capacity(
                    bench.measure,
                    limit_ms=LIMIT_MS,
                    budget_s=max(4.0, min(20.0, deadline - time.monotonic() - 6)),
                    seed=7,
                    start_rate_per_s=0.9 * most,
                    on_probe=on_probe,
                )
                row["open"] = {
                    "outcome": estimate.outcome, "reason": estimate.reason, "rate_per_s": estimate.rate_per_s,
                    "lower_per_s": estimate.lower_per_s, "upper_per_s": estimate.upper_per_s, "probes": probes,
                }  # fmt: skip
                last = bench.last_measurement()
                row["last_measurement"] = None if last is None else last.model_dump()
                note(f"highest rate: {estimate.rate_per_s} ({estimate.reason})")
        finally:
            log = options.log_file
            if log.exists():
                with (out / f"serve-{name}.server.log").open("a") as file:
                    file.write(f"=== {design.name}\n{log.read_text(errors='replace')[-20000:]}\n")


def first_request(out: Path, work: Path, note) -> dict:
    """A fresh process each: cold without any cache, warm with what the first left."""
    result, cache = {}, work / "first-request-cache"
    shutil.rmtree(cache, ignore_errors=True)
    for state in ("cold", "warm"):
        began = time.monotonic()
        answer = subprocess.run(
            [sys.executable, __file__, str(out), "--first-request", str(cache), "--work", str(work)],
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


# --- helpers


def build(name: str, cache: Path, note):
    """The engine from the cache, or built; and the seconds that took, the model's check included."""
    from optimizer.engines import EngineCache, Target, engine_from_variant
    from optimizer.hardware import hardware
    from optimizer.onnx_model import read_model
    from optimizer.tensorrt_library import installed_tensorrt

    began = time.monotonic()
    model = read_model(cache.parent / f"{name}.onnx")
    read_s = time.monotonic() - began
    (gpu, *_) = hardware().gpus
    library = installed_tensorrt()[-1]
    built = engine_from_variant(
        model,
        "fp16",
        library=library,
        target=Target(compute_capability=gpu.compute_capability or "9.0", name=gpu.name),
        cache=EngineCache(cache),
        max_batch_size=MAX_BATCH,
    )
    seconds = time.monotonic() - began
    note(f"{name}: {built.source} {built.metadata.executed} in {seconds:.2f} s (reading {read_s:.2f} s)")
    return built, seconds


def timed_engine(
    folder: Path,
    file: str,
    backend: str,
    name: str,
    graphs: bool,
    note,
    *,
    largest: int = MAX_BATCH,
    scratch: str = "shared",
) -> dict:
    """`optimizer.engine_time` in a process of its own."""
    command = [sys.executable, "-m", "optimizer.engine_time", str(folder), file, backend, str(largest)]
    answer = subprocess.run(
        [*command, str(int(graphs)), json.dumps(ROW_SHAPES[name]), *(["own-scratch"] if scratch == "own" else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    note(answer.stderr)
    if answer.returncode != 0:
        raise RuntimeError(f"engine_time ended with {answer.returncode}: {answer.stderr[-2000:]}")
    times = json.loads(answer.stdout.splitlines()[-1])
    for row in times["times"]:
        note(f"{backend} graphs={graphs} b{row['batch_size']}: {row['batch_ms']:.3f} ms, {row['per_s']:,.0f}/s, "
             f"first {row['first_s']:.2f} s")  # fmt: skip
    return times


def scratch_that_works(out: Path, name: str) -> str:
    """What the bare engine needed."""
    path = out / f"engine-{name}.json"
    return json.loads(path.read_text()).get("scratch", "shared") if path.exists() else "shared"


def load_processes() -> int:
    return max(1, min(6, len(os.sched_getaffinity(0)) // 3))


def server_cpu_s() -> float:
    """CPU seconds of tritonserver and the processes of its Python backend, so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command, fields = stat.with_name("cmdline").read_bytes(), stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"tritonserver" in command or b"triton_python_backend_stub" in command:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def figures(seen, cpu_s: float, wall_s: float) -> dict:
    """What is kept of a measurement."""
    server = seen.server
    return {
        "rate_per_s": seen.achieved_rate_per_s, "p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms,
        "errors": dict(seen.errors), "error_example": seen.error_example, "problems": list(seen.problems),
        "server_cores": cpu_s / wall_s,
        "requests_per_core_s": seen.n / cpu_s if cpu_s else None,
        "client_cpu_share": seen.client.cpu_share, "client_cpu_s": seen.client.cpu_s,
        "gpu": None if seen.gpu is None else {key: getattr(seen.gpu, key) for key in seen.gpu.__slots__},
        "stages_ms": None if server is None else {
            "queue": server.queue_ms, "input": server.input_ms, "infer": server.infer_ms,
            "output": server.output_ms, "total": server.total_ms, "mean_batch": server.mean_batch_size,
        },
        "batches": [] if server is None else [
            [b.batch_size, b.executions, b.input_ms, b.infer_ms, b.output_ms] for b in server.batches
        ],
    }  # fmt: skip


def brief(seen) -> str:
    server = seen.server
    stages = "" if server is None else (
        f", queue {server.queue_ms:.2f} in {server.input_ms:.2f} infer {server.infer_ms:.2f} "
        f"out {server.output_ms:.2f} ms, mean batch {server.mean_batch_size:.1f}"
    )  # fmt: skip
    errors = f", ERRORS {dict(seen.errors)} {seen.error_example}" if seen.errors else ""
    return (
        f"{seen.achieved_rate_per_s:,.0f}/s, p50 {seen.p50_ms:.2f} p99 {seen.p99_ms:.2f} ms{stages}, "
        f"client core {seen.client.cpu_share:.2f}, gpu {seen.gpu}{errors}"
    )


@contextmanager
def unchanged():
    yield


@contextmanager
def mps(work: Path, note):
    """NVIDIA's multi-process service for what is started in the block. The GPU's settings stay."""
    folder = work / "mps"
    folder.mkdir(exist_ok=True)
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    os.environ.update(dict.fromkeys(names, str(folder)))
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise RuntimeError("there is no nvidia-cuda-mps-control here")
    started = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=20, check=False)
    note(f"MPS: {started.returncode} {started.stdout} {started.stderr}")
    try:
        yield
    finally:
        ended = subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=30, check=False)
        note(f"MPS quit: {ended.returncode} {ended.stderr}")
        for name in names:
            del os.environ[name]
        for log in folder.glob("*.log"):
            note(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")


def save(out: Path, section: str, result: dict) -> None:
    """At once, so that a section that is cut short leaves what it had."""
    draft = out / f".{section}.json"
    draft.write_text(json.dumps(result, indent=1, default=str) + "\n")
    draft.replace(out / f"{section}.json")


def run_section(section: str, out: Path, work: Path, limit_s: float) -> None:
    """In this process."""
    began = time.monotonic()

    def note(text: str) -> None:
        if text:
            print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)

    action, _, name = section.partition("-")
    if section == "export":
        result = export(out, work, note)
    elif section == "first-request":
        result = first_request(out, work, note)
    elif action == "engine":
        result = bare_engine(name, out, work, note)
    elif action == "ort":
        result = ort_engine(name, out, work, note)
    else:
        result = serve_designs(name, out, work, note, began + limit_s)
    save(out, section, result)


def summary(out: Path) -> str:
    """The ratios, from the files."""
    lines = []

    def read(section: str) -> dict:
        path = out / f"{section}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    for name in MODELS:
        engine, served = read(f"engine-{name}"), read(f"serve-{name}")
        rows = engine.get("graphs", {}).get("times") or engine.get("launches", {}).get("times", [])
        best = max((row["per_s"] for row in rows), default=None)
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
        found = read(section)
        try:
            with_graph, without = (
                next(row["batch_ms"] for row in found[key]["times"] if row["batch_size"] == 1)
                for key in ("graphs", "launches")
            )
            lines.append(f"CUDA graph, {backend}, ResNet-50 batch 1: {without / with_graph:.2f} x faster")
        except (KeyError, StopIteration):
            lines.append(f"CUDA graph, {backend}: no figure")
    for state, row in read("first-request").items():
        failed = " FAILED" if row["exit"] else ""
        lines.append(f"first request {state}:{failed} {row['seconds']:.1f} s {row['stages']}")
    return "\n".join(lines) + "\n"


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
    parser.add_argument("--export-one", help=argparse.SUPPRESS)
    parser.add_argument("--first-request", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out, work = arguments.out.absolute(), arguments.work.absolute()
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    if arguments.export_one:
        export_one(arguments.export_one, work)
        return 0
    if arguments.first_request:
        first_request_process(arguments.first_request)
        return 0
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
        carry_out(section, out, work, limit_s)
    text = summary(out)
    (out / "summary.txt").write_text(text)
    print(text)
    return 0


def carry_out(section: str, out: Path, work: Path, limit_s: float) -> None:
    """The section in a process group of its own, ended with all its children when its time is over."""
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
