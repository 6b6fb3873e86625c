"""The models of gpu_serving.py, written as fp16 ONNX.

    python benchmarks/gpu_models.py MODEL FOLDER

writes one of them; needs torch, and torchvision or transformers.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import traceback
from pathlib import Path

MAX_BATCH = 64
MODELS = ("resnet50", "bert", "mlp")
ROW_SHAPES = {
    "resnet50": {"image": (3, 224, 224)},
    "bert": {"input_ids": (128,), "attention_mask": (128,)},
    "mlp": {"features": (256,)},
}


def export(work: Path, note) -> dict:
    """All three models at once, each in a process of its own: most of it is importing torch."""
    processes = {name: subprocess.Popen([sys.executable, __file__, name, str(work)]) for name in MODELS}
    seconds, started = {}, time.monotonic()
    for name, process in processes.items():
        code = process.wait()
        seconds[name] = round(time.monotonic() - started, 2)
        note(f"{name}: exit {code} after {seconds[name]} s")
    if not (work / "bert.onnx").exists():
        note("bert: the library's model cannot be exported here, so one in plain operators takes its place")
        command = [sys.executable, __file__, "plain-bert", str(work)]
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


if __name__ == "__main__":
    export_one(sys.argv[1], Path(sys.argv[2]))
