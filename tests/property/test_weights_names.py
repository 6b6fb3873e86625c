"""A model's weights under names of ours: whatever the model calls its files, every tensor keeps its values."""

import tempfile
from pathlib import Path
from typing import Any

import onnx
from hypothesis import given, settings, strategies
from onnx import TensorProto

from model_repo.spec import Engine, TensorSpec
from optimizer.model.files import external_files, load_proto, load_weights, write_model

SEGMENTS = strategies.sampled_from(
    [
        "model.py",
        "__pycache__",
        "weights-0.bin",
        "weights-1.bin",
        "model.onnx",
        "MODEL.ONNX",
        "a b",
        "é",
        "-rf",
        "w",
    ]
)
LOCATIONS = strategies.lists(SEGMENTS, min_size=1, max_size=3).map(tuple)


def without_files_as_folders(locations: Any) -> list[Any]:
    """Some of the locations, none of which is a folder on the way to another."""
    return [one for one in locations if not any(one == other[: len(one)] for other in locations if other != one)]


def tensor(name: str | None, location: Any, offset: Any) -> TensorProto:
    made = onnx.TensorProto(name=name, data_type=onnx.TensorProto.UINT8, dims=[4])
    made.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", "4")):
        made.external_data.add(key=key, value=value)
    return made


@settings(max_examples=40, deadline=None)
@given(
    locations=strategies.lists(LOCATIONS, min_size=1, max_size=15, unique=True).map(without_files_as_folders),
    data=strategies.data(),
)
def test_every_tensor_keeps_its_values_and_no_file_its_name(locations: Any, data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target", "model-served.onnx")
        for number, parts in enumerate(locations):
            file = source.joinpath(*parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes([number] * 4 + [100 + number] * 4))
        proto, expected = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="g")), {}  # type: ignore[var-annotated]
        for number, parts in enumerate(locations):
            for spelling in data.draw(strategies.lists(strategies.sampled_from(["", "./", ".//"]), min_size=1)):
                late, name = data.draw(strategies.booleans()), f"t{len(expected)}"
                proto.graph.initializer.append(tensor(name, spelling + "/".join(parts), 4 * late))
                expected[name] = bytes([100 * late + number] * 4)
        files = write_model(proto, target, external_files(proto, source))
        back = load_proto(target)
        load_weights(back, target.parent)
        assert {one.name: one.raw_data for one in back.graph.initializer} == expected
        assert len(files) == len(locations)
        x = TensorSpec(name="x", datatype="FP32", shape=(1,))
        Engine(
            model_name="m", backend="onnxruntime", precision="fp32", model_file="model.onnx", inputs=(x,),
            outputs=(x,), batched=True, files=(("model.onnx", target), *files.items()),
        )  # fmt: skip
