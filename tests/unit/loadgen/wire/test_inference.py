"""One inference outside the load: its outputs as arrays, or the reason why there are none."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from strange_servers import METADATA, Strange, document, grpc_answer, http_answer, serving
from tritonclient.grpc import service_pb2 as pb

from loadgen.errors import TargetRefused
from loadgen.spec.target import Target
from loadgen.traffic.payloads import Tensors
from loadgen.wire.http2_sending import grpc_message
from loadgen.wire.inference import infer
from loadgen.wire.questions import read_model_info

REQUEST = {"x": np.zeros((1, 4), np.float32)}
TEXTS = b"".join(len(text).to_bytes(4, "little") + text for text in (b"a", b"\xff\0"))
HALVES = np.array([0x3F80, 0xC000], "<u2").tobytes()  # the upper halves of 1.0 and -2.0 in 32 bits
OUTPUTS: dict[str, tuple[bytes, Any]] = {
    "FP32": (np.array([1.5, -2], np.float32).tobytes(), np.array([[1.5, -2]], np.float32)),
    "FP16": (np.array([1.5, -2], np.float16).tobytes(), np.array([[1.5, -2]], np.float16)),
    "INT64": (np.array([3, -4], np.int64).tobytes(), np.array([[3, -4]], np.int64)),
    "BOOL": (b"\1\0", np.array([[True, False]])),
    "BF16": (HALVES, np.array([[1.0, -2.0]], np.float32)),
    "BYTES": (TEXTS, np.array([[b"a", b"\xff\0"]], np.object_)),
}


def of_type(scheme: str, datatype: str, raw: bytes) -> dict[str, Any]:
    """The metadata and the answer of a model with an output of this type."""
    if scheme == "http":
        described = {**METADATA, "outputs": [{"name": "y", "datatype": datatype, "shape": [-1, 2]}]}
        output = {
            "name": "y",
            "datatype": datatype,
            "shape": [1, 2],
            "parameters": {"binary_data_size": len(raw)},
        }
        text = json.dumps({"model_name": "m", "outputs": [output]}).encode()
        inferred = http_answer(text + raw, f"Inference-Header-Content-Length: {len(text)}")
        return {"metadata": document(described), "infer": inferred}
    metadata, answer = pb.ModelMetadataResponse(name="m"), pb.ModelInferResponse(model_name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
    metadata.outputs.add(name="y", datatype=datatype, shape=[-1, 2])
    answer.outputs.add(name="y", datatype=datatype, shape=[1, 2])
    answer.raw_output_contents.append(raw)
    found = {"metadata": metadata, "infer": answer}
    return {name: grpc_answer(grpc_message(one.SerializeToString())) for name, one in found.items()}


def asked(scheme: str, answers: dict[str, Any]) -> Tensors:
    with serving(Strange(name="s", scheme=scheme, answers=answers)) as url:
        target = Target(url=url, model_name="m")
        return infer(target, read_model_info(target), REQUEST)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("datatype", OUTPUTS)
def test_outputs_are_arrays_by_their_name(scheme: str, datatype: str) -> None:
    raw, values = OUTPUTS[datatype]
    outputs: dict[str, NDArray[Any]] = asked(scheme, of_type(scheme, datatype, raw))
    assert [*outputs] == ["y"]
    assert outputs["y"].dtype == values.dtype
    assert outputs["y"].tolist() == values.tolist()


BAD: dict[str, tuple[str, Any]] = {
    "refused over HTTP": ("http", http_answer(b'{"error": "no key"}', status="403 Forbidden")),
    "refused over gRPC": ("grpc", grpc_answer(None, b"7", b"no key")),
    "an error with status 200": ("http", http_answer(b'{"error": "no key"}')),
    "no message": ("grpc", grpc_answer(None)),
    "JSON alone": (
        "http",
        http_answer(b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'),
    ),
    "an unknown type": ("http", of_type("http", "FP8", b"12")["infer"]),
    "too few rows": ("grpc", of_type("grpc", "FP32", bytes(4))["infer"]),
}


@pytest.mark.parametrize("answer", BAD)
def test_what_is_no_inference_is_an_error_and_no_answer_without_outputs(answer: str) -> None:
    scheme, inferred = BAD[answer]
    with pytest.raises(TargetRefused):
        asked(scheme, {"infer": inferred})


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_texts_whose_lengths_do_not_fit_are_named_with_their_bytes(scheme: str) -> None:
    with pytest.raises(TargetRefused, match=f" {len(TEXTS) - 1} bytes"):
        asked(scheme, of_type(scheme, "BYTES", TEXTS[:-1]))
