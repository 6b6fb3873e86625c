"""The model that is served: the user's, with nothing in it that could pass for code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from model_repo.spec import weights_name
from optimizer.onnx_files import load_proto, write_model

if TYPE_CHECKING:
    from pathlib import Path

    from optimizer.onnx_model import Model


def served_model(model: Model, work_dir: Path) -> Model:
    """The model with its weights in `work_dir`, under names of ours; as it is if all of that is so.

    Triton's Python backend runs the `model.py` in a model's folder, and weights can have that name. They are
    copied, once a run: model repositories link to the copies. Links to the user's own would keep the user from
    loading the model, since ONNX refuses weights with several links. `sha256` stays that of the user's files.
    Raises OSError.
    """
    folder = work_dir.absolute()
    own = tuple((weights_name(number), folder / weights_name(number)) for number in range(len(model.external)))
    if model.external == own:
        return model
    target = folder / f"{model.name}-served.onnx"
    files = write_model(load_proto(model.path), target, dict(model.external))
    return replace(model, path=target, external=tuple(files.items()))
