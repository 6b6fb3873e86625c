"""The load generators for token streams that are compared: how each is installed, called, and read.

Each is asked for what its options offer for the same question: its limits of goodput (10 s for the first token,
and the number of tokens where it takes one), its time-out, `ignore_eos`, and the token counts of the server.
"""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
MODEL = "fake"
PROMPT_TOKENS = 32
LATE_S = 10  # the limit of goodput: nothing that the server does well takes as long


@dataclass(frozen=True)
class Load:
    """What each tool is asked to send: evenly spaced requests for so many tokens."""

    url: str
    folder: Path
    tokenizer: Path
    requests: int = 40
    rate_per_s: int = 10
    tokens: int = 32
    timeout_s: int = 5

    @property
    def output(self) -> Path:
        """The file with what the tool printed."""
        return self.folder / "output.txt"


@dataclass(frozen=True)
class Seen:
    """What a tool reports: good requests, and medians in ms; None if it has none.

    `doubted`: it says that the client was late.
    """

    good: int
    ttft_ms: float | None
    tpot_ms: float | None
    doubted: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool: what pip installs (nothing for ours), its program and options, and the reader of its report."""

    name: str
    package: str
    command: Callable[[Load], list[str]]
    read: Callable[[Load], Seen]
    asked_first: int = 0  # requests that it sends before those that it counts


def guidellm(load: Load) -> list[str]:
    metrics = {"kind": "generative", "slo": {"ttft_ms": LATE_S * 1000}}
    return [
        "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={load.url},model={MODEL},timeout={load.timeout_s}",
        "--profile", f"kind=constant,rate={load.rate_per_s}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
        "--tokenizer", f"kind=hf_auto,model={load.tokenizer}",
        "--metrics", json.dumps(metrics),
        "--output", f"kind=json,path={load.folder / 'guidellm.json'}",
    ]  # fmt: skip


def read_guidellm(load: Load) -> Seen:
    report = json.loads((load.folder / "guidellm.json").read_text())["benchmarks"][0]
    found = report["metrics"]
    good = round((found["slo_attainment"] or 0) * found["slo_determined_requests"])
    first, rest = (found[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    ttft_ms, tpot_ms = (one["median"] if one["count"] else None for one in (first, rest))
    return Seen(good, ttft_ms, tpot_ms, doubted=bool(report["warnings"]))  # of a missed schedule


def aiperf(load: Load) -> list[str]:
    return [
        "aiperf", "profile", "--model", MODEL, "--url", load.url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", str(load.tokenizer), "--isl", str(PROMPT_TOKENS), "--osl", str(load.tokens),
        "--request-rate", str(load.rate_per_s), "--request-rate-mode", "constant",
        "--request-count", str(load.requests), "--request-timeout-seconds", str(load.timeout_s),
        "--goodput", f"time_to_first_token:{LATE_S * 1000} output_sequence_length:{load.tokens}",
        "--use-server-token-count", "--extra-inputs", "ignore_eos:true", "--ui", "none",
        "--output-artifact-dir", str(load.folder / "aiperf"),
    ]  # fmt: skip


def read_aiperf(load: Load) -> Seen:
    found = json.loads((load.folder / "aiperf" / "profile_export_aiperf.json").read_text())
    first, rest = (found.get(name) or {} for name in ("time_to_first_token", "inter_token_latency"))
    good = (found.get("good_request_count") or {"avg": 0})["avg"]
    doubted = "Event loop for" in load.output.read_text()  # "... is taking too long to run", a warning
    return Seen(round(good), first.get("p50"), rest.get("p50"), doubted)


def inference_perf(load: Load) -> list[str]:
    settings = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "mock"},  # of its prompts for chat, those that need no data set; they ask for 30 tokens
        "load": {
            "type": "constant",
            "stages": [{"rate": load.rate_per_s, "duration": load.requests // load.rate_per_s}],
            "num_workers": 1,
            "request_timeout": load.timeout_s,
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "report": {
            "request_lifecycle": {"summary": True, "per_stage": False, "per_request": True},
            "goodput": {"constraints": {"ttft": LATE_S}},
        },
        "storage": {"local_storage": {"path": str(load.folder / "inference-perf")}},
    }
    path = load.folder / "inference-perf.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return ["inference-perf", "-c", str(path)]


def read_inference_perf(load: Load) -> Seen:
    path = load.folder / "inference-perf" / "summary_lifecycle_metrics.json"
    found = json.loads(path.read_text())["successes"]
    latency: dict[str, Any] = found.get("latency") or {}
    names = ("time_to_first_token", "time_per_output_token")
    ttft_s, tpot_s = ((latency.get(name) or {}).get("median") for name in names)
    good = (found.get("goodput_metrics") or {"good_requests": 0})["good_requests"]
    return Seen(good, ttft_s and 1000 * ttft_s, tpot_s and 1000 * tpot_s)


def vllm_bench(load: Load) -> list[str]:
    return [
        "vllm", "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", load.url, "--model", MODEL, "--tokenizer", str(load.tokenizer),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
        "--random-output-len", str(load.tokens), "--num-prompts", str(load.requests),
        "--request-rate", str(load.rate_per_s), "--burstiness", "1000", "--ignore-eos",
        "--goodput", f"ttft:{LATE_S * 1000}", "--percentile-metrics", "ttft,tpot", "--disable-tqdm",
        "--save-result", "--result-dir", str(load.folder), "--result-filename", "vllm.json",
    ]  # fmt: skip  # it has no option for a time-out


def read_vllm_bench(load: Load) -> Seen:
    found = json.loads((load.folder / "vllm.json").read_text())
    good = round(found["request_goodput"] * found["duration"])
    return Seen(good, found["median_ttft_ms"] or None, found["median_tpot_ms"])


def tritune(load: Load) -> list[str]:
    return [
        "/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-c",
        "from tritune.commands import loadtest; loadtest()",
        f"{load.url}/v1", "--api", "openai-chat", "--model", MODEL, "--prompt-tokens", str(PROMPT_TOKENS),
        "--output-tokens", str(load.tokens), "--rate", str(load.rate_per_s), "--arrivals", "constant",
        "--duration", f"{load.requests / load.rate_per_s}s", "--warmup", "0s", "--timeout", f"{load.timeout_s}s",
        "--output", str(load.folder / "tritune.json"), "--keep-log", str(load.folder / "log"),
    ]  # fmt: skip


def read_tritune(load: Load) -> Seen:
    found = json.loads((load.folder / "tritune.json").read_text())
    measured, doubted = found["measurement"], found["outcome"] == "untrustworthy"
    times = {path.stem: np.load(path) for path in (load.folder / "log").glob("*.npy")}
    good, streams = times["outcome"] == 0, times["streams"]
    ttft_ns = (streams["first_ns"] - times["scheduled_ns"])[good]
    tpot_ns = ((streams["last_ns"] - streams["first_ns"]) / np.maximum(streams["tokens_later"], 1))[good]
    ttft_ms, tpot_ms = (float(np.median(each)) / 1e6 if len(each) else None for each in (ttft_ns, tpot_ns))
    return Seen(measured["requests"] - measured["failures"], ttft_ms, tpot_ms, doubted)


TOOLS = (
    Tool("tritune", "", tritune, read_tritune, asked_first=1),
    Tool("GuideLLM", "guidellm==0.8.1", guidellm, read_guidellm),
    Tool("AIPerf", "aiperf==0.13.0", aiperf, read_aiperf),
    Tool("inference-perf", "inference-perf==0.7.0", inference_perf, read_inference_perf),
    Tool("vllm bench", "vllm==0.33.0", vllm_bench, read_vllm_bench),
)
REQUIRED = """
import importlib.metadata, sys
print("\\n".join(one for one in importlib.metadata.requires(sys.argv[1]) or () if "extra ==" not in one))
"""
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
bytes_alone = Tokenizer(models.BPE())
bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytes_alone.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
bytes_alone.train_from_iterator([*open(sys.argv[2]), *[" hello" * 50] * 200], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=bytes_alone, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
fast.save_pretrained(sys.argv[1])
"""


def installed(tool: Tool, cache: Path) -> tuple[Path, str]:
    """Return the folder of a tool's programs and its version; install it first if it is not in the cache.

    What it requires is installed apart from it, as some packages ask for a newer Python than they need.
    """
    if not tool.package:
        return Path(sys.executable).parent, importlib.metadata.version(tool.name)
    name = tool.package.partition("==")[0]
    bin_dir = cache / f"venv-{name}" / "bin"
    python = str(bin_dir / "python")
    if not bin_dir.is_dir():
        subprocess.run([sys.executable, "-m", "venv", bin_dir.parent], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--ignore-requires-python", tool.package], check=True)
        required = subprocess.check_output([python, "-c", REQUIRED, name], text=True).splitlines()
        subprocess.run([*pip, *required], check=True)
    version = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return bin_dir, subprocess.check_output([python, "-c", version], text=True).strip()


def local_tokenizer(python: Path, cache: Path, text: Path) -> Path:
    """Return the folder of a small tokenizer, trained on a text once: in it, " hello" is one token."""
    folder = cache / "tokenizer"
    if not folder.is_dir():
        subprocess.run([python, "-c", TOKENIZER, folder, text], check=True)
    return folder
