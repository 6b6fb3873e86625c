"""Write the models of gpu_serving.py as fp16 ONNX.

    python benchmarks/gpu_models.py MODEL FOLDER

Writes one of them. Needs torch, and torchvision or transformers.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.gpu_results import MAX_BATCH, MODELS


def export(work: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Write all three models at once, each in its own process: most of the time goes to importing torch."""
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
    """Write one model with random weights: speed does not depend on them."""
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
        example, inputs, outputs = (ids, ids.clone()), ["input_ids", "attention_mask"], ["logits"]  # type: ignore[assignment]
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


def transformers_bert(torch: Any) -> Any:
    """Return the library's BERT-base with a head of two classes."""
    import transformers

    config = transformers.BertConfig(num_labels=2, attn_implementation="eager")
    bert = transformers.BertForSequenceClassification(config)

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits

    return Classifier()


def plain_bert(torch: Any) -> Any:
    """Return the same arithmetic (12 layers, 768 wide, 12 heads) in plain operators, if the exporter fails."""
    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
            self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)
            self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)

        def forward(self, x: Any, bias: Any) -> Any:
            q, k, v = (
                part.reshape(-1, 128, 12, 64).transpose(1, 2)
                for part in self.qkv(x).reshape(-1, 128, 3, 768).unbind(2)
            )
            weights = torch.softmax(q @ k.transpose(2, 3) * 0.125 + bias, dim=-1)
            x = self.norm1(x + self.out((weights @ v).transpose(1, 2).reshape(-1, 128, 768)))
            return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))

    class Bert(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30522, 768), nn.Parameter(torch.randn(1, 128, 768))
            self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 2)
            self.layers = nn.ModuleList(Layer() for _ in range(12))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            bias = (1.0 - attention_mask[:, None, None, :].to(self.places.dtype)) * -10000.0
            x = self.norm(self.words(input_ids) + self.places)
            for layer in self.layers:
                x = layer(x, bias)
            return self.head(x[:, 0])

    return Bert()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*MODELS, "plain-bert"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    export_one(arguments.model, arguments.folder)


if __name__ == "__main__":
    main()
