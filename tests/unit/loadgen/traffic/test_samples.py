"""Requests of the samples or the lengths in a file."""

import json
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload, TensorFormat
from loadgen.spec.target import Target
from loadgen.traffic.model_info import ModelInfo, Tensor, model_info
from loadgen.traffic.payloads import grpc_request, http_request, raw_inputs, request_tensors, settled
from loadgen.traffic.samples import MAX_LENGTHS, lengths_from_file, shapes_in_file


def tokens(*sizes: int, max_batch_size: int = 8) -> ModelInfo:
    inputs = tuple(Tensor(name=name, datatype="INT64", shape=(-1, *sizes)) for name in ("ids", "mask"))
    return ModelInfo(name="m", max_batch_size=max_batch_size, inputs=inputs, outputs=())


def written(folder: Path, text: str) -> Path:
    path = folder / "lengths.txt"
    path.write_text(text)
    return path


def test_requests_have_the_lengths_in_turn_in_all_free_dimensions(tmp_path: Path) -> None:
    path = written(tmp_path, "# tokens\n7\n3\n\n7 # again\n")
    pool = request_tensors(tokens(-1), Payload(data_file=path))
    assert [(one["ids"].shape, one["mask"].shape) for one in pool] == [((1, n), (1, n)) for n in (7, 3, 7)]
    again = request_tensors(tokens(-1), Payload(data_file=path, picked=(1,)))
    assert [one["ids"].tolist() for one in again] == [pool[1]["ids"].tolist()]
    assert request_tensors(tokens(2, -1), Payload(data_file=path))[0]["ids"].shape == (1, 2, 7)
    assert [dict(one)["length"] for one in shapes_in_file(path)] == [(7,), (3,), (7,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("7\nmany\n", "line 2: 'many' is not a length"),
        ("0\n", "line 1"),
        ("1.5\n", "line 1"),
        ("", "empty"),
        ("1\n" * (MAX_LENGTHS + 1), "over 10,000"),
    ],
)
def test_files_that_hold_no_lengths(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PayloadError, match=says) as caught:
        request_tensors(tokens(-1), Payload(data_file=written(tmp_path, text)))
    assert str(caught.value).count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="cannot be read"):
        lengths_from_file(tmp_path / "none.txt")


def test_lengths_need_a_free_dimension_and_make_no_batch(tmp_path: Path) -> None:
    path = written(tmp_path, "7\n3\n")
    with pytest.raises(PayloadError, match="no input of m has a free dimension"):
        request_tensors(tokens(4), Payload(data_file=path))
    with pytest.raises(PayloadError, match="differ in shape"):
        request_tensors(tokens(-1), Payload(data_file=path, batch_size=2))


def asked(datatype: str, values: object, folder: Path) -> object:
    """What a request carries of these values in JSON, as a list."""
    path = folder / "data.json"
    path.write_text(json.dumps([{"x": values}]))
    x = Tensor(name="x", datatype=datatype, shape=(-1,))
    (request,) = request_tensors(
        ModelInfo(name="m", max_batch_size=0, inputs=(x,), outputs=()), Payload(data_file=path)
    )
    return request["x"].tolist()


@pytest.mark.parametrize(
    ("datatype", "values", "sent"),
    [
        ("UINT8", [0, 255], [0, 255]),
        ("INT64", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("INT32", [3.0], [3]),
        ("FP32", [1, 0.5], [1.0, 0.5]),
        ("BOOL", [True, 0], [True, False]),
        ("BYTES", ["a\0", ""], ["a\0", ""]),
        ("BYTES", [{"b64": "AP8="}, "x"], [b"\x00\xff", "x"]),
        ("BYTES", {"b64": "AP8="}, [b"\x00\xff"]),
        ("BYTES", {"content": ["a\0", "b"], "shape": [2]}, ["a\0", "b"]),
        ("BYTES", {"b64": b64encode(b"\2\0\0\0a\0\0\0\0\0").decode()}, [b"a\0", b""]),
        ("INT16", {"b64": "AQD//w=="}, [1, -1]),
        ("FP64", {"content": {"b64": b64encode(np.float64(0.1).tobytes()).decode()}, "shape": [1]}, [0.1]),
        ("BF16", {"b64": "gD8="}, [1.0]),
        ("BOOL", {"b64": "AQA="}, [True, False]),
    ],
)
def test_values_are_sent_as_they_are(datatype: str, values: object, sent: object, tmp_path: Path) -> None:
    assert asked(datatype, values, tmp_path) == sent


@pytest.mark.parametrize(
    ("datatype", "values", "named"),
    [
        ("UINT8", [1, 300], "300"),
        ("UINT32", [-1], "-1"),
        ("INT64", [2**63], "9223372036854775808"),
        ("INT32", [1.9], "1.9"),
        ("INT32", [float("nan")], "nan"),
        ("FP16", [70000], "70000"),
        ("FP32", [None], "None"),
        ("FP32", ["1"], "'1'"),
        ("BOOL", [2], "2"),
        ("BYTES", [None], "None"),
        ("BYTES", [3], "3"),
        ("BYTES", [{"b64": "?"}], ""),
        ("BYTES", ["a", "\ud800"], "surrogates"),
        ("FP32", {"b64": "AP8="}, "size"),
        ("FP32", {"b64": "?"}, ""),
        ("INT16", {"b64": "AQD//w==", "shape": [3]}, "shape"),
        ("INT16", {"bytes": "AQD//w=="}, ""),
        ("FP8", [1], "FP8"),
        ("FP8", {"b64": "AQ=="}, "FP8"),
    ],
)
def test_a_value_that_would_change_on_the_way_is_refused_by_name(
    datatype: str, values: object, named: str, tmp_path: Path
) -> None:
    with pytest.raises(PayloadError, match=r"sample 0 of .*: x is no") as refused:
        asked(datatype, values, tmp_path)
    assert named in str(refused.value)


SQUARE = Tensor(name="x", datatype="INT32", shape=(-1, -1, 3))


@pytest.mark.parametrize(
    "given", [[1, 2, 3, 4, 5, 6], {"b64": b64encode(np.arange(6, dtype="<i4").tobytes()).decode()}]
)
def test_a_flat_list_takes_the_shape_that_is_given(given: object, tmp_path: Path) -> None:
    info = ModelInfo(name="m", max_batch_size=8, inputs=(SQUARE,), outputs=())
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"x": given}]}))
    (request,) = request_tensors(info, Payload(data_file=path, shapes={"x": (2, 3)}))
    assert request["x"].shape == (1, 2, 3)
    for shapes in ({}, {"x": (2, 2)}, {"x": (3, 2)}):
        with pytest.raises(PayloadError, match="--shape"):
            request_tensors(info, Payload(data_file=path, shapes=shapes))


def test_samples_in_base64_have_their_shape_or_differ_by_their_size(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"x": {"b64": "AAAA", "shape": [3]}}, {"x": {"b64": "AAAA"}}, {"x": {"b64": ""}}]))
    assert [dict(one)["x"] for one in shapes_in_file(path)] == [(3,), (4,), (0,)]


def test_streams_are_named_as_sequences_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"data": [[{"x": ["1"]}, {"x": ["2"]}], [{"x": ["1"]}]]}')
    with pytest.raises(PayloadError, match="sequences") as refused:
        request_tensors(tokens(1), Payload(data_file=path))
    assert str(refused.value).count("\n") == 1


def test_texts_of_an_npz_keep_the_zeros_at_their_end_or_are_refused(tmp_path: Path) -> None:
    info = ModelInfo(
        name="m", max_batch_size=8, inputs=(Tensor(name="x", datatype="BYTES", shape=(-1, 1)),), outputs=()
    )
    path, texts = tmp_path / "data.npz", np.array([[b"a\0\0"], [b"\0b\0"]], dtype="S3")
    np.savez(path, x=texts)
    with pytest.raises(PayloadError, match="V3") as refused:
        request_tensors(info, Payload(data_file=path))
    assert "x.astype('S2')" in str(refused.value)
    np.savez(path, x=texts.view("V3"))
    pool = request_tensors(info, Payload(data_file=path))
    assert [raw_inputs(info, one)["x"] for one in pool] == [b"\3\0\0\0a\0\0", b"\3\0\0\0\0b\0"]
    np.savez(path, x=texts.view("V3")[:, 0])
    assert raw_inputs(info, request_tensors(info, Payload(data_file=path))[0])["x"] == b"\3\0\0\0a\0\0"
    np.savez(path, x=np.array([["a"], ["bc"]]))
    assert raw_inputs(info, request_tensors(info, Payload(data_file=path))[0])["x"] == b"\1\0\0\0a"


def test_an_optional_input_is_sent_where_a_sample_has_it_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    described = {
        "name": "m",
        "inputs": [{"name": name, "datatype": "FP32", "shape": [-1, 1]} for name in ("x", "bias")],
    }
    config = {"max_batch_size": 4, "input": [{"name": "x"}, {"name": "bias", "optional": True}]}
    info = model_info(described, config)
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"x": [1.0]}, {"x": [1.0], "bias": [2.0]}]))
    without, with_bias = request_tensors(info, Payload(data_file=path))
    assert raw_inputs(info, without).keys() == {"x"}
    assert raw_inputs(info, with_bias).keys() == {"x", "bias"}
    target = Target(url="http://localhost:8000", model_name="m")
    assert (
        b'"bias"' in http_request(target, info, without),
        b'"bias"' in http_request(target, info, with_bias),
    ) == (False, True)
    with pytest.raises(PayloadError, match="differ in shape or inputs"):
        request_tensors(info, Payload(data_file=path, batch_size=2))
    path.write_text(json.dumps([{"x": [1.0], "bais": [2.0]}]))
    with pytest.raises(PayloadError, match="has the input bais"):
        request_tensors(info, Payload(data_file=path))


X = ModelInfo(name="m", max_batch_size=8, inputs=(Tensor(name="x", datatype="INT64", shape=(-1, 2)),), outputs=())


def test_parameters_of_a_file_are_those_of_every_request_in_either_protocol(tmp_path: Path) -> None:
    given = {"max_tokens": 256, "greedy": True, "adapter": "a b"}
    file = tmp_path / "samples.json"
    file.write_text(json.dumps({"data": [{"x": [1, 2]}, {"x": [3, 4]}], "parameters": given}))
    info, _ = settled(X, Payload(data_file=file))
    target = Target(url="http://localhost:1", model_name="m")
    for tensors in request_tensors(info, Payload(data_file=file)):
        message = ModelInferRequest.FromString(grpc_request(target, info, tensors))
        sent = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in message.parameters.items()
        }
        assert sent == given
        assert {type(value) for value in sent.values()} == {int, bool, str}
        formats: dict[TensorFormat, dict[str, bool]] = {"binary": {"binary_data_output": True}, "json": {}}
        for kind, more in formats.items():
            body = http_request(target, info, tensors, tensors_as=kind).partition(b"\r\n\r\n")[2]
            document, _ = json.JSONDecoder().raw_decode(body.decode("latin1"))
            assert document["parameters"] == {**given, **more}


@pytest.mark.parametrize("wrong", [[1], {"a": 1.5}, {"a": [1]}, {"a": None}, {"a": 2**63}, "text"])
def test_parameters_that_cannot_be_sent_are_refused(tmp_path: Path, wrong: object) -> None:
    file = tmp_path / "samples.json"
    file.write_text(json.dumps({"data": [{"x": [1, 2]}], "parameters": wrong}))
    with pytest.raises(PayloadError, match="parameters"):
        settled(X, Payload(data_file=file))


def test_a_model_whose_inputs_are_all_optional_gets_all_of_them() -> None:
    info = model_info(
        {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]},
        {"input": [{"name": "x", "optional": True}]},
    )
    (request, *_) = request_tensors(info, Payload())
    assert request.keys() == {"x"}


NAMED = ModelInfo(
    name="m",
    max_batch_size=8,
    inputs=(
        Tensor(name="image", datatype="INT16", shape=(-1, 2, 2)),
        Tensor(name="texts", datatype="BYTES", shape=(-1, 2)),
    ),
    outputs=(Tensor(name="label", datatype="BYTES", shape=(-1, 1)),),
)


def folder_of(root: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def test_a_folder_is_one_sample_with_a_file_for_each_input(tmp_path: Path) -> None:
    image = np.array([[1, -2], [3, 256]], "<i2")
    folder = folder_of(tmp_path, image=image.tobytes(), texts=b"two words\n\n", label=b"cat\n")
    (request,) = request_tensors(NAMED, Payload(data_file=folder))
    assert request["image"].tolist() == [image.tolist()]
    assert request["texts"].tolist() == [[b"two words", b""]]
    assert len(shapes_in_file(folder)) == 1
    (two,) = request_tensors(NAMED, Payload(data_file=folder, batch_size=2))
    assert two["image"].tolist() == [image.tolist()] * 2


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"image": b"12345678"}, "texts"),
        ({"image": b"1234567", "texts": b"a\nb"}, "image"),
        ({"image": b"123456", "texts": b"a\nb"}, "image"),
        ({"image": b"12345678", "texts": b"a"}, "texts"),
        ({"image": b"12345678", "texts": b"a\nb", "imgae": b""}, "imgae"),
        ({}, "image"),
    ],
)
def test_a_folder_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, files: dict[str, bytes], named: str
) -> None:
    with pytest.raises(PayloadError, match=named) as refused:
        request_tensors(NAMED, Payload(data_file=folder_of(tmp_path, **files)))
    assert str(refused.value).count("\n") == 1


def test_a_folder_says_no_types_to_a_server_without_metadata(tmp_path: Path) -> None:
    unknown = ModelInfo(name="m", max_batch_size=None, inputs=(), outputs=())
    with pytest.raises(PayloadError, match="names no inputs"):
        settled(unknown, Payload(data_file=folder_of(tmp_path, x=b"1")))
