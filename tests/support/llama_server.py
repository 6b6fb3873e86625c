"""llama.cpp's own server, in a process of its own, with a random model of 40 MB that is written for it.

`python llama_server.py MODEL` prints its address and serves until its stdin closes. Its log has the times of each
request.
"""

import re
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SLOTS = 4
TIMING = re.compile(r"task (\d+) \| +(prompt eval|eval) time = +([\d.]+) ms / +(\d+) tokens")
WIDTH, INNER, LAYERS, HEADS = 512, 1408, 6, 8
LETTERS = string.ascii_letters + string.digits + ".,:;!?'-"
WORDS = [f"Ġ{first}{second}" for first in string.ascii_lowercase for second in string.ascii_lowercase]
TOKENS = ["<s>", "</s>", "Ġ", *LETTERS, *WORDS][:512]  # all are text, so that each is streamed as it is made


def write_model(path: Path) -> None:
    """Write a Llama of random weights in GGUF. It says nothing, at the speed of a model of its size."""
    import gguf
    import numpy as np

    random, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))  # two control tokens
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    block = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH),
             "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
             "ffn_down": (WIDTH, INNER), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {name: (len(TOKENS), WIDTH) for name in ("token_embd", "output")}
    shapes["output_norm"] = (WIDTH,)
    shapes |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in block.items()}
    for name, shape in shapes.items():
        drawn = np.float16(0.05) * random.standard_normal(shape, np.float32).astype(np.float16)
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32) if len(shape) == 1 else drawn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(frozen=True)
class LlamaServer:
    """A running server, and the file of its log."""

    url: str
    log: Path

    def timings_ms(self) -> list[tuple[float, float]]:
        """Return the time of the prompt and that per further token of each request, in the order of arrival."""
        lines = TIMING.findall(self.log.read_text())
        found = {(int(task), kind): (float(ms), int(tokens)) for task, kind, ms, tokens in lines}
        each = (
            (found[task, "prompt eval"][0], *found[task, "eval"]) for task in sorted({task for task, _ in found})
        )
        return [(prompt_ms, ms / (tokens - 1)) for prompt_ms, ms, tokens in each]


@contextmanager
def llama_server(folder: Path) -> Iterator[LlamaServer]:
    """Write the model into the folder, and serve it: one thread, a few slots, and no cache of prompts."""
    write_model(folder / "random.gguf")
    command = [sys.executable, __file__, str(folder / "random.gguf")]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield LlamaServer(process.stdout.readline().strip(), folder / "log.txt")
        finally:
            process.stdin.close()
            process.wait(timeout=10)


def main() -> None:
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = sys.argv[1]
    options.model_alias = {"random"}
    options.hostnames, options.port = ["127.0.0.1"], 0
    options.n_ctx, options.n_parallel, options.n_gpu_layers = 1024 * SLOTS, SLOTS, 0
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.cache_prompt = False
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
