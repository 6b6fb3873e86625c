import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.grpc.service_pb2 import ModelInferRequest

from loadgen.errors import PayloadError
from loadgen.json_values import Unusable
from loadgen.sending.children import PAYLOAD
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target
from loadgen.traffic.model_info import ModelInfo, Tensor, model_info
from loadgen.traffic.payloads import grpc_request, http_request, raw_bytes, request_tensors, settled
from loadgen.traffic.random_inputs import check_request_size

TARGET = Target(url="http://h:8000/base", model_name="m", headers=(("X-Key", "v"),))


def info(*inputs: tuple[str, str, tuple[int, ...]], max_batch_size: int | None = 8) -> ModelInfo:
    tensors = tuple(Tensor(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs)
    return ModelInfo(name="m", inputs=tensors, outputs=(), max_batch_size=max_batch_size)


TOKENS = info(("ids", "INT64", (-1, -1)), ("mask", "INT64", (-1, -1)))


def test_integers_are_zero_or_one_and_floats_vary() -> None:
    pool = request_tensors(
        info(("ids", "INT64", (-1, 64)), ("x", "FP16", (-1, 64)), ("flag", "BOOL", (-1, 1))), Payload()
    )
    assert len(pool) == 16
    assert set(np.unique([request["ids"] for request in pool])) == {0, 1}
    assert pool[0]["x"].dtype == np.float16
    assert not np.array_equal(pool[0]["x"], pool[1]["x"])
    assert pool[0]["flag"].dtype == np.bool_


def test_the_same_seed_makes_the_same_requests() -> None:
    wanted = info(("x", "FP32", (-1, 4)))
    first, again, other = (request_tensors(wanted, Payload(seed=seed))[0]["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_pool_of_large_requests_is_smaller() -> None:
    assert len(request_tensors(info(("x", "FP32", (-1, 8_000_000))), Payload())) == 2


def test_a_free_dimension_names_the_option_that_fixes_it() -> None:
    with pytest.raises(PayloadError, match="--shape ids:N"):
        request_tensors(TOKENS, Payload())


def test_free_dimensions_are_filled_and_the_batch_comes_first() -> None:
    pool = request_tensors(TOKENS, Payload(batch_size=3, shapes={"ids": (128,), "mask": (128,)}))
    assert pool[0]["ids"].shape == (3, 128)


@pytest.mark.parametrize("shape", [(3,), (4, 1)])
def test_a_shape_that_contradicts_the_model(shape: tuple[int] | tuple[int, int]) -> None:
    with pytest.raises(PayloadError, match=r"takes \(4,\), not"):
        request_tensors(info(("x", "FP32", (-1, 4))), Payload(shapes={"x": shape}))


def test_a_shape_for_an_input_that_does_not_exist() -> None:
    with pytest.raises(PayloadError, match="has no input y"):
        request_tensors(info(("x", "FP32", (-1, 4))), Payload(shapes={"y": (4,)}))


def test_batches_the_model_does_not_take() -> None:
    with pytest.raises(PayloadError, match="at most 8, not 9"):
        request_tensors(info(("x", "FP32", (-1, 4))), Payload(batch_size=9))
    with pytest.raises(PayloadError, match="takes no batches"):
        request_tensors(info(("x", "FP32", (2, 4)), max_batch_size=0), Payload(batch_size=2))


@pytest.mark.parametrize(
    ("groups", "instances"),
    [(None, 1), ([{"count": 3}], 3), ([{"count": 2, "gpus": [0, 1]}, {}], 5), ([{"count": 0}], 1)],
)
def test_instances_are_those_of_all_groups_on_all_their_gpus(groups: list[Any] | None, instances: int) -> None:
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}
    config = {"max_batch_size": 8} if groups is None else {"max_batch_size": 8, "instance_group": groups}
    assert model_info(metadata, config).instances == instances


def test_a_server_that_hides_its_configuration_is_judged_by_its_shapes() -> None:
    batched = model_info({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}, None)
    plain = model_info({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}, None)
    assert batched.batched
    assert not plain.batched


def test_optional_inputs_are_left_out() -> None:
    metadata = {
        "name": "m",
        "inputs": [{"name": name, "datatype": "FP32", "shape": [-1, "4"]} for name in ("x", "extra")],
    }
    config = {"max_batch_size": 4, "input": [{"name": "x"}, {"name": "extra", "optional": True}]}
    assert [tensor.name for tensor in model_info(metadata, config).inputs] == ["x"]


def test_a_datatype_that_nobody_knows() -> None:
    with pytest.raises(PayloadError, match="FP8"):
        request_tensors(info(("x", "FP8", (-1, 4))), Payload())


@pytest.mark.parametrize(
    ("values", "datatype", "expected"),
    [
        (np.array([1.0, -2.0]), "FP32", "0000803f000000c0"),
        (np.array([1.0, -2.0]), "FP16", "003c00c0"),
        (np.array([1.0, -2.0]), "BF16", "803f00c0"),
        (np.array([[1], [2]]), "INT64", "01000000000000000200000000000000"),
        (np.array([True, False]), "BOOL", "0100"),
        (np.array([b"ab", "é"], dtype=object), "BYTES", "0200000061620200" + "0000c3a9"),
    ],
)
def test_values_as_the_protocol_carries_them(values: NDArray[Any], datatype: str, expected: str) -> None:
    assert raw_bytes(values, datatype).hex() == expected


def test_an_http_request_can_be_read_back() -> None:
    wanted = info(("ids", "INT64", (-1, 2)), ("x", "FP32", (-1, 3)))
    tensors = {"ids": np.array([[1, 0]]), "x": np.array([[1.0, 2.0, 3.0]])}
    head, _, body = http_request(TARGET, wanted, tensors).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /base/v2/models/m/infer HTTP/1.1"
    fields = dict(line.split(": ") for line in lines[1:])
    assert fields["Host"] == "h:8000"
    assert fields["X-Key"] == "v"
    assert int(fields["Content-Length"]) == len(body)
    json_length = int(fields["Inference-Header-Content-Length"])
    document = json.loads(body[:json_length])
    assert [entry["shape"] for entry in document["inputs"]] == [[1, 2], [1, 3]]
    assert [entry["parameters"]["binary_data_size"] for entry in document["inputs"]] == [16, 12]
    assert document["parameters"]["binary_data_output"] is True
    raw = body[json_length:]
    assert np.frombuffer(raw[:16], np.int64).tolist() == [1, 0]
    assert np.frombuffer(raw[16:], np.float32).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("datatype", "values"),
    [("FP32", [1.0, float("nan")]), ("FP64", [float("inf"), 0.0]), ("BYTES", [b"\xff", b""])],
)
def test_values_that_json_has_not_are_refused(datatype: str, values: list[Any]) -> None:
    tensors = {"x": np.array([values], dtype=object if datatype == "BYTES" else None)}
    with pytest.raises(PayloadError, match="JSON"):
        http_request(TARGET, info(("x", datatype, (-1, 2))), tensors, tensors_as="json")


def test_requests_ask_for_some_outputs_in_either_protocol() -> None:
    outputs = tuple(Tensor(name=name, datatype="FP32", shape=(-1, 2)) for name in ("y", "z"))
    wanted, _ = settled(replace(info(("x", "FP32", (-1, 1))), outputs=outputs), Payload(outputs=("z",)))
    tensors = {"x": np.ones((1, 1), np.float32)}
    body = http_request(TARGET, wanted, tensors).partition(b"\r\n\r\n")[2]
    document = json.loads(body[:-4])
    assert document["outputs"] == [{"name": "z", "parameters": {"binary_data": True}}]
    assert [one.name for one in ModelInferRequest.FromString(grpc_request(TARGET, wanted, tensors)).outputs] == [
        "z"
    ]


def test_a_grpc_request_can_be_read_back() -> None:
    wanted = info(("ids", "INT64", (-1, 2)))
    data = grpc_request(TARGET, wanted, {"ids": np.array([[1, 0]])})
    request = ModelInferRequest.FromString(data)
    assert request.model_name == "m"
    assert list(request.inputs[0].shape) == [1, 2]
    assert np.frombuffer(request.raw_input_contents[0], np.int64).tolist() == [1, 0]


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(20, dtype=np.float32).reshape(5, 4))
    return path


X = info(("x", "FP32", (-1, 4)))


def test_samples_of_an_npz_are_cycled_in_batches(npz: Any) -> None:
    pool = request_tensors(X, Payload(data_file=npz, batch_size=2))
    assert [request["x"][:, 0].tolist() for request in pool] == [[0, 4], [8, 12], [16, 0]]


def test_samples_of_json_nested_flat_and_with_a_shape(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(
        json.dumps(
            {"data": [{"x": [1, 2, 3, 4]}, {"x": [[5, 6], [7, 8]]}, {"x": {"content": [9] * 4, "shape": [4]}}]}
        )
    )
    pool = request_tensors(X, Payload(data_file=path))
    assert [request["x"].tolist() for request in pool] == [[[1, 2, 3, 4]], [[5, 6, 7, 8]], [[9, 9, 9, 9]]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no samples"),
        ("[]", "is empty"),
        ('[{"y": [1]}]', "sample 0 .* has no input x"),
        ('[{"x": [1, 2]}]', r"has shape \(2,\), and the model takes \(4,\)"),
        ('[{"x": ["a", "b", "c", "d"]}]', "x is not FP32"),
        ('{"samples": []}', "holds no samples"),
    ],
)
def test_files_that_hold_no_samples_for_this_model(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(PayloadError, match=says):
        request_tensors(X, Payload(data_file=path))


def test_an_npz_with_columns_of_different_length_and_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((2, 4)), z=np.zeros((3, 4)))
    with pytest.raises(PayloadError, match="different numbers of samples"):
        request_tensors(X, Payload(data_file=path))
    with pytest.raises(PayloadError, match="holds no samples"):
        request_tensors(X, Payload(data_file=tmp_path / "none.npz"))


def test_only_picked_samples_are_sent_in_that_order(npz: Any) -> None:
    pool = request_tensors(X, Payload(data_file=npz))
    sent = Payload(data_file=npz, picked=(2, 0), outputs=("y",), format="json")
    received = PAYLOAD.validate_python(PAYLOAD.dump_python(sent, mode="json"))
    assert received == sent
    picked = request_tensors(X, received)
    assert [request["x"].tolist() for request in picked] == [pool[number]["x"].tolist() for number in (2, 0)]


def huge(shape: list[int], datatype: str = "FP32", max_batch_size: int = 0) -> ModelInfo:
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": datatype, "shape": shape}]}
    return model_info(metadata, {"max_batch_size": max_batch_size, "name": "m"})


@pytest.mark.parametrize(
    ("info", "named"),
    [
        (huge([-1, 400_000_000], max_batch_size=8), r"1.49 GiB, over 1 GiB"),
        (huge([10**12]), "GiB"),
        (huge([10**18] * 32), "GiB"),
        (huge([1 << 25], "BYTES"), "2 GiB"),
        (huge([(1 << 27) + 1], "FP64"), "over 1 GiB"),
    ],
    ids=["a batch of many", "a terabyte", "more than a float holds", "texts", "a byte too many"],
)
def test_a_request_that_the_server_makes_large_is_not_made_unasked(info: ModelInfo, named: str) -> None:
    with pytest.raises(PayloadError, match=named) as caught:
        request_tensors(info, Payload())
    assert "--shape x:" in str(caught.value)


def test_a_size_that_the_user_asks_for_is_a_matter_of_memory_alone() -> None:
    info = huge([1 << 25, 16], "INT8")
    check_request_size(info, {"x": (1 << 25, 16)}, ())
    with pytest.raises(PayloadError, match="ask for it"):
        check_request_size(info, {"x": (1 << 25, 64)}, ())
    check_request_size(info, {"x": (1 << 25, 64)}, ("x",))
    with pytest.raises(PayloadError, match="do not fit"):
        check_request_size(info, {"x": (1 << 45, 64)}, ("x",))


@pytest.mark.parametrize(
    ("metadata", "config", "named"),
    [
        (None, None, "the metadata is not a JSON object: None"),
        ({"name": "m" * 2000}, None, "a name is a str of 2,002 characters"),
        ({"name": "\ud800"}, None, "not UTF-8"),
        ({"name": "m", "inputs": {}}, None, "inputs is not a list"),
        ({"name": "m", "inputs": [{}] * 20_000}, None, "inputs is not a list of at most 10,000"),
        ({"name": "m", "inputs": [{"name": "x"}]}, None, "x has the datatype None"),
        ({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1] * 33}]}, None, "over 32"),
        (
            {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": ["+5"]}]},
            None,
            "not a whole number",
        ),
        ({"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}] * 2}, None, "the same name"),
        ({"name": "m"}, {"max_batch_size": -1}, "less than 0"),
    ],
)
def test_what_describes_no_model_is_told_with_its_value(metadata: object, config: object, named: str) -> None:
    with pytest.raises(Unusable, match=named):
        model_info(metadata, config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "inputs", "outputs", "input", "datatype", "shape", "optional"]), inner
        )
    ),
    max_leaves=10,
)
TENSOR = st.fixed_dictionaries(
    {
        "name": st.text(max_size=3) | JSON,
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "FP8", ""]) | JSON,
        "shape": st.lists(st.sampled_from([1, 1, 1, 1, 2, 0, -1, -2, 10**9, 10**13]) | JSON, max_size=40) | JSON,
    }
)


@given(
    st.fixed_dictionaries({"name": st.just("m") | JSON, "inputs": st.lists(TENSOR, max_size=3) | JSON}),
    st.none() | st.fixed_dictionaries({"max_batch_size": st.sampled_from([0, 8]) | JSON, "input": JSON}),
)
@settings(deadline=None)
def test_whatever_a_server_describes_there_is_a_request_or_two_lines(metadata: object, config: object) -> None:
    try:
        info = model_info(metadata, config)
        for tensors in request_tensors(info, Payload())[:1]:
            assert http_request(TARGET, info, tensors)
            assert grpc_request(TARGET, info, tensors)
    except Unusable:
        return
    except PayloadError as error:
        lines = str(error).split("\n")
        assert len(lines) == 2


@pytest.mark.parametrize(
    ("shape", "payload", "sent", "guess"),
    [
        ((-1, 4), Payload(), (1, 4), "x has the batch as its first dimension"),
        ((-1, 4), Payload(batch_size=3), (3, 4), None),
        ((-1, 4), Payload(shapes={"x": (7, 4)}), (7, 4), None),
        ((-1, -1), Payload(shapes={"x": (7,)}), (1, 7), "x has the batch as its first dimension"),
        ((-1,), Payload(shapes={"x": (16000,)}), (16000,), None),
        ((-1,), Payload(batch_size=3), (3,), None),
        ((2, 4), Payload(), (2, 4), None),
    ],
)
def test_without_a_configuration_the_user_decides_and_a_guess_is_said(
    shape: tuple[int, ...], payload: Payload, sent: tuple[int, ...], guess: str | None
) -> None:
    model, notes = settled(info(("x", "FP32", shape), max_batch_size=None), payload)
    assert request_tensors(model, payload)[0]["x"].shape == sent
    assert len(notes) == (guess is not None)
    assert (guess or "") in "".join(notes)


def test_one_free_dimension_without_a_configuration_needs_its_size() -> None:
    model, _ = settled(info(("audio", "FP32", (-1,)), max_batch_size=None), Payload())
    with pytest.raises(PayloadError, match="--shape audio:N"):
        request_tensors(model, Payload())
