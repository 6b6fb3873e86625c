"""Write the larger of the foreign models, small versions of networks that everyone knows, and what writes them."""

from functools import partial
from pathlib import Path
from typing import Any

import batch_models
import numpy as np
from batch_models import FLOAT, INT64, draw, ints, node
from numpy.typing import NDArray
from onnx import NodeProto

write = partial(batch_models.write, checked=True)


def resnet(path: Path, *, width: int = 16, size: int = 64) -> Path:
    """ResNet-18 with a quarter of its channels and a batch fixed to 1, as PyTorch exports it by default."""
    nodes: list[NodeProto] = []
    constants: dict[str, NDArray[Any]] = {}

    def convolved(x: str, name: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        constants[f"{name}_w"] = draw(channels[1], channels[0], kernel, kernel) / np.float32(
            np.sqrt(channels[0] * kernel * kernel)
        )
        for part, value in (("scale", 1.0), ("bias", 0.1), ("mean", 0.0), ("var", 1.0)):
            constants[f"{name}_{part}"] = np.full(channels[1], value, np.float32)
        pads = [kernel // 2] * 4
        nodes.append(node("Conv", f"{x} {name}_w", f"{name}_c", pads=pads, strides=[stride, stride]))
        of = f"{name}_c {name}_scale {name}_bias {name}_mean {name}_var"
        nodes.append(node("BatchNormalization", of, f"{name}_n"))
        return f"{name}_n"

    def active(x: str) -> str:
        nodes.append(node("Relu", x, f"{x}_r"))
        return f"{x}_r"

    x = active(convolved("image", "stem", (3, width), 7, 2))
    nodes.append(node("MaxPool", x, "stem_p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    x, channels = "stem_p", width
    for block in range(8):
        wider = width * 2 ** (block // 2)
        stride = 2 if block in (2, 4, 6) else 1
        name = f"block{block}"
        first = active(convolved(x, f"{name}_a", (channels, wider), 3, stride))
        second = convolved(first, f"{name}_b", (wider, wider), 3, 1)
        same = x if stride == 1 else convolved(x, f"{name}_s", (channels, wider), 1, stride)
        nodes.append(node("Add", f"{second} {same}", f"{name}_sum"))
        x, channels = active(f"{name}_sum"), wider
    nodes += [node("GlobalAveragePool", x, "pooled"), node("Flatten", "pooled", "flat")]
    nodes.append(node("Gemm", "flat dense_w dense_b", "logits"))
    constants |= {"dense_w": draw(channels, 100) / 10, "dense_b": draw(100)}
    return write(path, nodes, {"image": (FLOAT, [1, 3, size, size])}, {"logits": (FLOAT, [1, 100])}, constants)


def bert(path: Path, *, layers: int = 2, width: int = 32, heads: int = 4) -> Path:
    """Encoder: input_ids, attention_mask (batch, sequence) int64 -> states (batch, sequence, width), pooled."""
    nodes = [
        node("Gather", "words input_ids", "embedded"),
        node("Cast", "attention_mask", "mask_f", to=FLOAT),
        node("Sub", "one mask_f", "away"),
        node("Mul", "away low", "far"),
        node("Unsqueeze", "far axes_1_2", "bias"),
    ]
    constants: dict[str, NDArray[Any]] = {
        "words": draw(1000, width),
        "one": np.array(1.0, np.float32),
        "low": np.array(-10000.0, np.float32),
        "axes_1_2": ints(1, 2),
        "split": ints(0, 0, heads, width // heads),
        "join": ints(0, 0, width),
        "root": np.array(np.sqrt(width // heads), np.float32),
        "half": np.array(0.5, np.float32),
        "root2": np.array(np.sqrt(2.0), np.float32),
        "gain": np.ones(width, np.float32),
        "zero": np.zeros(width, np.float32),
        "first": ints(0),
        "pool_w": draw(width, width) / 6,
    }
    x = "embedded"
    for layer in range(layers):
        at = f"l{layer}"
        for name, shape in {
            "q": (width, width),
            "k": (width, width),
            "v": (width, width),
            "o": (width, width),
        }.items():
            constants[f"{at}_{name}w"] = draw(*shape) / 6
        constants |= {f"{at}_up": draw(width, 4 * width) / 6, f"{at}_down": draw(4 * width, width) / 12}
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes += [
                node("MatMul", f"{x} {at}_{name}w", f"{at}_{name}"),
                node("Reshape", f"{at}_{name} split", f"{at}_{name}s"),
                node("Transpose", f"{at}_{name}s", f"{at}_{name}t", perm=perm),
            ]
        nodes += [
            node("MatMul", f"{at}_qt {at}_kt", f"{at}_raw"),
            node("Div", f"{at}_raw root", f"{at}_scaled"),
            node("Add", f"{at}_scaled bias", f"{at}_masked"),
            node("Softmax", f"{at}_masked", f"{at}_share", axis=-1),
            node("MatMul", f"{at}_share {at}_vt", f"{at}_mixed"),
            node("Transpose", f"{at}_mixed", f"{at}_back", perm=[0, 2, 1, 3]),
            node("Reshape", f"{at}_back join", f"{at}_joined"),
            node("MatMul", f"{at}_joined {at}_ow", f"{at}_out"),
            node("Add", f"{x} {at}_out", f"{at}_sum"),
            node("LayerNormalization", f"{at}_sum gain zero", f"{at}_norm", axis=-1),
            node("MatMul", f"{at}_norm {at}_up", f"{at}_wide"),
            node("Div", f"{at}_wide root2", f"{at}_e0"),
            node("Erf", f"{at}_e0", f"{at}_e1"),
            node("Mul", f"{at}_wide {at}_e1", f"{at}_e2"),
            node("Add", f"{at}_wide {at}_e2", f"{at}_e3"),
            node("Mul", f"{at}_e3 half", f"{at}_gelu"),
            node("MatMul", f"{at}_gelu {at}_down", f"{at}_narrow"),
            node("Add", f"{at}_norm {at}_narrow", f"{at}_sum2"),
            node("LayerNormalization", f"{at}_sum2 gain zero", f"{at}_end", axis=-1),
        ]
        x = f"{at}_end"
    nodes += [
        node("Identity", x, "states"),
        node("Gather", "states first", "token", axis=1),
        node("Squeeze", "token axis_1", "flat"),
        node("MatMul", "flat pool_w", "dense"),
        node("Tanh", "dense", "pooled"),
    ]
    constants["axis_1"] = ints(1)
    ids = (INT64, ["batch", "sequence"])
    outputs = {"states": (FLOAT, ["batch", "sequence", width]), "pooled": (FLOAT, ["batch", width])}
    return write(path, nodes, {"input_ids": ids, "attention_mask": ids}, outputs, constants)


def yolo(path: Path, *, size: int = 64, classes: int = 4) -> Path:
    """Detector with its NMS inside: images (1, 3, size, size) -> selected (found, 3): batch, class and box."""
    cells = (size // 8) ** 2
    nodes = [
        node("Conv", "images k1", "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", "c1", "s1"),
        node("Mul", "c1 s1", "a1"),
        node("Conv", "a1 k2", "c2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", "c2", "s2"),
        node("Mul", "c2 s2", "a2"),
        node("Conv", "a2 k3", "head", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Reshape", "head flat", "rows"),
        node("Slice", "rows box_from box_to axis", "raw_boxes"),
        node("Slice", "rows class_from class_to axis", "raw_scores"),
        node("Sigmoid", "raw_boxes", "unit_boxes"),
        node("Mul", "unit_boxes side", "boxes_t"),
        node("Transpose", "boxes_t", "boxes", perm=[0, 2, 1]),
        node("Sigmoid", "raw_scores", "scores"),
        node("NonMaxSuppression", "boxes scores most overlap least", "selected", center_point_box=1),
    ]
    constants: dict[str, NDArray[Any]] = {
        "k1": draw(8, 3, 3, 3) / 5,
        "k2": draw(16, 8, 3, 3) / 8,
        "k3": draw(4 + classes, 16, 3, 3) / 6,
        "flat": ints(1, 4 + classes, cells),
        "box_from": ints(0),
        "box_to": ints(4),
        "class_from": ints(4),
        "class_to": ints(4 + classes),
        "axis": ints(1),
        "side": np.array(size, np.float32),
        "most": ints(20),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.4], np.float32),
    }
    return write(
        path, nodes, {"images": (FLOAT, [1, 3, size, size])}, {"selected": (INT64, ["found", 3])}, constants
    )
