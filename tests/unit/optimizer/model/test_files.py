import os
from pathlib import Path
from typing import Any

import bad_models
import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

from loadgen.files import sha256_of
from optimizer.errors import ModelError, UnsafeModel
from optimizer.model.files import external_files, load_proto, load_weights, write_model


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        external_files(load_proto(path), path.parent)
    assert len(str(caught.value).splitlines()) == 2
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    return caught.value.what


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"<html>404: not found</html>\n", "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git LFS pointer"),
        (onnx.ModelProto(producer_name="\x01nobody").SerializeToString(), "not ONNX"),
    ],
)
def test_a_file_that_is_no_model_is_said_to_be_what_it_is(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert words in refused(path)


def test_a_directory_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    assert "is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "m.onnx")
    assert "cannot be read" in refused(tmp_path / "m.onnx")


def test_missing_external_data(tmp_path: Path) -> None:
    assert "is not there" in refused(bad_models.with_external_data(tmp_path / "m.onnx"))


def test_external_data_that_is_too_short(tmp_path: Path) -> None:
    path = bad_models.with_external_data(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").write_bytes(b"abc")
    assert "which has 3 bytes" in refused(path)


@pytest.mark.parametrize("make", [bad_models.with_external_data, bad_models.hidden_external_data])
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "..\\secret", ""])
def test_locations_outside_the_folder(tmp_path: Path, make: Any, location: str) -> None:
    bad_models.weights_for(tmp_path, name="secret")
    folder = tmp_path / "model"
    folder.mkdir()
    path = make(folder / "m.onnx", location)
    with pytest.raises(UnsafeModel):
        external_files(load_proto(path), folder)


def test_a_link_out_of_the_folder_is_refused_without_being_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening it would block until the test's time-out
    (folder / "weights.bin").symlink_to(tmp_path / "pipe")
    path = bad_models.with_external_data(folder / "m.onnx")
    with pytest.raises(UnsafeModel, match="symbolic link"):
        external_files(load_proto(path), folder)


def test_a_linked_folder_below_the_model_is_refused(tmp_path: Path) -> None:
    bad_models.weights_for(tmp_path / "elsewhere")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "data").symlink_to(tmp_path / "elsewhere")
    path = bad_models.with_external_data(folder / "m.onnx", "data/weights.bin")
    with pytest.raises(UnsafeModel, match="symbolic link"):
        external_files(load_proto(path), folder)


def test_external_data_in_a_folder_below_is_fine(tmp_path: Path) -> None:
    weights = bad_models.weights_for(tmp_path / "data")
    path = bad_models.with_external_data(tmp_path / "m.onnx", "data/weights.bin")
    assert external_files(load_proto(path), tmp_path) == {"data/weights.bin": weights}


def test_the_hash_covers_external_data(tmp_path: Path) -> None:
    weights = bad_models.weights_for(tmp_path)
    path = bad_models.with_external_data(tmp_path / "m.onnx")
    before = sha256_of(path, {"weights.bin": weights})
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x99")
    assert sha256_of(path, {"weights.bin": weights}) != before
    assert sha256_of(path, {}) != before


def test_a_written_model_is_complete_and_leaves_nothing_else(tmp_path: Path) -> None:
    weights = bad_models.weights_for(tmp_path / "from")
    path = bad_models.with_external_data(tmp_path / "from" / "m.onnx")
    target = tmp_path / "to" / "copy.onnx"
    copies = write_model(load_proto(path), target, {"weights.bin": weights})
    assert sorted(file.name for file in target.parent.iterdir()) == ["copy.onnx", "weights-0.bin"]
    assert copies["weights-0.bin"].read_bytes() == weights.read_bytes()
    assert copies["weights-0.bin"].stat().st_nlink == 1
    onnx.checker.check_model(str(target))


def located(name: str | None, location: str) -> TensorProto:
    """Return a tensor of four bytes at an external location."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def tensors_everywhere(location: str) -> ModelProto:
    """Return a model with a tensor at `location` in every place that ONNX's format has for one."""

    def graph(inner: list[AttributeProto] | tuple[()] = ()) -> GraphProto:
        made = onnx.GraphProto(initializer=[located("i", location)], node=[onnx.NodeProto(attribute=inner)])
        made.sparse_initializer.add().CopyFrom(sparse())
        return made

    def sparse() -> SparseTensorProto:
        return onnx.SparseTensorProto(values=located("v", location), indices=located("x", location))

    attributes = [
        onnx.AttributeProto(name="t", t=located("t", location), tensors=[located("s", location)]),
        onnx.AttributeProto(name="p", sparse_tensor=sparse(), sparse_tensors=[sparse()]),
        onnx.AttributeProto(name="g", g=graph(), graphs=[graph()]),
    ]
    function = onnx.FunctionProto(node=[onnx.NodeProto(attribute=attributes)], attribute_proto=attributes)
    training = onnx.TrainingInfoProto(initialization=graph(attributes), algorithm=graph(attributes))
    return onnx.ModelProto(graph=graph(attributes), functions=[function], training_info=[training])


def test_weights_get_names_of_ours_wherever_a_model_has_tensors(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(b"12345678")
    proto = tensors_everywhere("model.py")
    assert proto.SerializeToString().count(b"model.py") == 12 * 5 + 3 * 3  # in attributes, and in graphs
    files = external_files(proto, tmp_path)
    target = tmp_path / "to" / "m.onnx"
    assert write_model(proto, target, files) == {"weights-0.bin": target.parent / "weights-0.bin"}
    written = (tmp_path / "to" / "m.onnx").read_bytes()
    assert b"model.py" not in written
    assert written.count(b"weights-0.bin") == 12 * 5 + 3 * 3


def test_one_file_under_two_spellings_is_one_file(tmp_path: Path) -> None:
    for name in ("w", "W"):
        (tmp_path / name).write_bytes(b"12345678")
    proto = onnx.ModelProto(
        graph=onnx.GraphProto(initializer=[located("a", "./w"), located("b", "w"), located("c", "W")])
    )
    files = write_model(proto, tmp_path / "to" / "m.onnx", external_files(proto, tmp_path))
    assert sorted(files) == ["weights-0.bin", "weights-1.bin"]
    names = [next(e.value for e in t.external_data if e.key == "location") for t in proto.graph.initializer]
    assert names[0] == names[1] != names[2]
    assert [e.value for e in proto.graph.initializer[0].external_data if e.key == "offset"] == ["4"]


def test_a_location_that_is_said_twice_is_refused(tmp_path: Path) -> None:
    proto = onnx.ModelProto(graph=onnx.GraphProto(initializer=[located("a", "w")]))
    proto.graph.initializer[0].external_data.add(key="location", value="../w")
    with pytest.raises(UnsafeModel, match="gives the place of tensor 'a' twice"):
        external_files(proto, tmp_path)


def test_weights_with_several_links_are_read(tmp_path: Path) -> None:
    """ONNX's loader refuses them as an attack, but package managers and runs that serve models link files."""
    weights = bad_models.weights_for(tmp_path)
    os.link(weights, tmp_path / "elsewhere")
    proto = load_proto(bad_models.with_external_data(tmp_path / "m.onnx"))
    load_weights(proto, tmp_path)
    (tensor,) = proto.graph.initializer
    assert tensor.raw_data == weights.read_bytes()
    assert onnx.numpy_helper.to_array(tensor).shape == (64, 64)
