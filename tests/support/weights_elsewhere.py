"""Models whose weights lie in other files, under names of code or of files of ours."""

from pathlib import Path

import numpy as np
import onnx
from batch_models import node, write

START = b"import os, pathlib; pathlib.Path(os.environ['TRITUNE_TEST_RAN']).touch()\n#".rjust(128, b"\n")
"""Each file of weights begins with this. The weights are a comment: Python accepts the whole file as code."""

NAMES_OF_CODE = [
    "model.py",
    "__pycache__/model.cpython-311.pyc",
    "tritune_gpu/driver.py",
    "tritune_gpu/__init__.py",
    "numpy.py",
    "onnxruntime/__init__.py",
    "triton_python_backend_utils.py",
    "model.cpython-311-x86_64-linux-gnu.so",
]

NAMES_OF_OURS = ["model.onnx", "config.pbtxt", "engine.json", "kernels.cache", "weights-1.bin", "a/weights-0.bin"]


def model_with(folder: Path, *locations: str, size: int = 8) -> Path:
    """A model whose weights lie at each of `locations`, one matrix a file: as many products in a row."""
    names = [f"w{number}" for number in range(len(locations))]
    values = ["x", *(f"v{number}" for number in range(len(locations) - 1)), "y"]
    nodes = [node("MatMul", f"{a} {w}", b) for a, w, b in zip(values, names, values[1:], strict=False)]
    random = np.random.default_rng(0)
    # Numbers from 0.01 to 0.05, whose bytes are letters.
    weights = {name: random.choice(np.frombuffer(b"<=", np.uint8), (size, 4 * size)) for name in names}
    folder.mkdir(parents=True, exist_ok=True)
    shapes = ({"x": ["N", size]}, {"y": ["N", size]})
    path = write(
        folder / "net.onnx",
        nodes,
        *shapes,  # type: ignore[arg-type]
        {name: array.view(np.float32) for name, array in weights.items()},
    )
    proto = onnx.load_model(path)
    for tensor, location in zip(proto.graph.initializer, locations, strict=True):
        file = folder / location
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(START + weights[tensor.name].tobytes())
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", len(START)), ("length", 4 * size * size)):
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())
    return path
