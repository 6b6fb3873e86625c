"""Recognize models that are not ONNX files, and say which way works for them. Nothing of them is unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

_IN_REPOSITORY = "put it into a repository as NAME/1/model.%s: --repository DIR --model NAME --server docker"
_FACTORY = "Give --model package.module:factory, a callable that returns the module and example inputs"


def why_not_onnx(path: Path) -> tuple[str, str] | None:
    """Return what a file or folder is, and what to do with it; None for what is not known. Raises no OSError."""
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix.lower() in _TORCH:
            return _of_torch(path)
    except (OSError, zipfile.BadZipFile):
        return None
    found = _FILES.get(path.suffix.lower())
    return None if found is None else (f"The model {path} is {found[0]}, not ONNX.", found[1].format(path=path))


def _of_folder(folder: Path) -> tuple[str, str] | None:
    if files := sorted(folder.glob("*.onnx")):
        return f"The model {folder} is a directory.", f"Name the .onnx file in it: --model {files[0]}"
    weights = (*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin"))
    if weights and (folder / "config.json").is_file():
        export = f"optimum-cli export onnx --model {folder} NEW"
        return (
            f"The model {folder} is a Hugging Face model, not ONNX.",
            f"Export it with the package optimum-onnx: {export}, and give --model NEW/model.onnx",
        )
    if (folder / "saved_model.pb").is_file():
        return (
            f"The model {folder} is a TensorFlow SavedModel, not ONNX.",
            f"Convert it: pip install tf2onnx; python -m tf2onnx.convert --saved-model {folder} --output m.onnx",
        )
    return _of_triton(folder)


def _of_triton(folder: Path) -> tuple[str, str] | None:
    def is_model(one: Path) -> bool:
        versions = [sub for sub in one.iterdir() if sub.name.isdecimal() and sub.is_dir()]
        described = (one / "config.pbtxt").is_file()
        return any(described or any(version.glob("model.*")) for version in versions)

    if is_model(folder):
        what, root, name = "a model of a Triton repository", folder.absolute().parent, folder.absolute().name
    else:
        models = sorted(one.name for one in folder.iterdir() if one.is_dir() and is_model(one))
        if not models:
            return None
        what, root, name = "a Triton model repository", folder, models[0] if len(models) == 1 else "NAME"
    return f"--model {folder} is {what}.", f"Give --repository {root} --model {name}"


_TORCH = (".pt", ".pth", ".torchscript", ".ckpt")


def _of_torch(path: Path) -> tuple[str, str] | None:
    """Return what PyTorch saved there: TorchScript has code, and other archives have pickled objects alone."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2].partition("/")[0] for name in archive.namelist()}
    if "code" in parts:
        save = "torch.export.save(torch.export.export(module, inputs), 'm.pt2')"
        return (
            f"The model {path} is TorchScript, not ONNX.",
            f"Export the module instead, {save}; or {_IN_REPOSITORY % 'pt'}",
        )
    return (
        f"The model {path} holds weights that PyTorch pickled, and no graph; it is not opened.",
        f"{_FACTORY}, and load the weights there.",
    )


_PLAN = ("a TensorRT engine", f"Give the ONNX file that it was built from; or {_IN_REPOSITORY % 'plan'}")
_KERAS = ("a Keras model", "Export it: keras.models.load_model('{path}').export('m.onnx', format='onnx')")
_PICKLE = ("a pickle, which is not opened", "Convert a scikit-learn model with skl2onnx.to_onnx(model, sample)")
_WEIGHTS = ("a file of weights without a graph", f"{_FACTORY}, and load the weights there.")
_FILES = {
    ".plan": _PLAN,
    ".engine": _PLAN,
    ".trt": _PLAN,
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".tflite": (
        "a TensorFlow Lite model",
        "Convert it: python -m tf2onnx.convert --tflite {path} --output m.onnx",
    ),
    ".pkl": _PICKLE,
    ".joblib": _PICKLE,
    ".safetensors": _WEIGHTS,
    ".xml": ("OpenVINO's format", f"Give the ONNX file that it was made from; or {_IN_REPOSITORY % 'xml'}"),
}
