"""The model that is served: the user's, with nothing in it that could pass for code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from model_repo.spec import weights_name
from optimizer.onnx_files import link, load_proto, write_model

if TYPE_CHECKING:
    from pathlib import Path

    from optimizer.onnx_model import Model


def served_model(model: Model, work_dir: Path) -> Model:
    """The model with its weights under names of ours; as it is if they have such names, or all lies in one file.

    Triton's Python backend runs the `model.py` in a model's folder, and weights can have that name. Only the .onnx
    is written anew, to `work_dir`; the weights are hard links where the file system has them. `sha256` stays that
    of the user's files. Raises OSError.
    """
    if all(location == weights_name(number) for number, (location, _) in enumerate(model.external)):
        return model
    target = (work_dir / f"{model.name}-served.onnx").absolute()
    files = write_model(load_proto(model.path), target, dict(model.external), put=link)
    return replace(model, path=target, external=tuple(files.items()))
