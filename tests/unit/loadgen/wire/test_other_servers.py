"""Servers of the KServe v2 protocol that are not Triton: NVIDIA Dynamo, KServe's own, MLServer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kserve_server import JsonServer
from strange_servers import Strange, document, grpc_answer, http_answer, serving
from tritonclient.grpc import service_pb2 as pb

from loadgen.errors import LoadError, PayloadError, TargetRefused
from loadgen.measurement.server_stats import read_statistics
from loadgen.sending.prepared import PreparedTarget
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target
from loadgen.wire.http2_sending import grpc_message
from loadgen.wire.poller import Poller

JSON = Payload(format="json")


@contextmanager
def prepared(url: str, payload: Payload | None = None) -> Iterator[PreparedTarget]:
    """Prepare a load, which tries one request."""
    poller = Poller()
    try:
        found = PreparedTarget(Target(url=url, model_name="m"), payload or Payload(), poller, 5.0)
        assert found.answered
        yield found
        found.close()
    finally:
        poller.close()


def message(one: Any) -> Callable[[int], bytes]:
    return grpc_answer(grpc_message(one.SerializeToString()))


def dynamo(
    answer: Any, *, rows: int = 8, inputs: Any = (("x", "FP32", [4]),), outputs: Any = (), configured: Any = None
) -> Strange:
    """A model with a configuration of Triton's on Dynamo's front end, whose metadata repeats it.

    `configured` are the tensors that the configuration names, None: all.
    """
    metadata, config = pb.ModelMetadataResponse(name="inner", platform="dynamo"), pb.ModelConfigResponse()
    config.config.max_batch_size = rows
    for name, kind, dims in inputs:
        metadata.inputs.add(name=name, datatype=f"TYPE_{kind}", shape=dims)
        config.config.input.add(name=name, dims=dims, optional=name == "streaming")
    for name, kind, dims in outputs or (("y", "FP32", [2]),):
        metadata.outputs.add(name=name, datatype=f"TYPE_{kind}", shape=dims)
        config.config.output.add(name=name, dims=dims)
    for tensors in () if configured is None else (config.config.input, config.config.output):
        for at in reversed([at for at, one in enumerate(tensors) if one.name not in configured]):
            del tensors[at]
    answers = {"metadata": message(metadata), "config": message(config), "infer": message(answer)}
    return Strange(name="", scheme="grpc", answers={**answers, "stats": grpc_answer(None, b"12")})


def inference(shape: list[int], **contents: Any) -> Any:
    answer = pb.ModelInferResponse(model_name="m", model_version="1")
    answer.outputs.add(name="y", datatype="FP32", shape=shape, contents=contents or None)
    answer.raw_output_contents.extend([] if contents else [bytes(4 * int(np.prod(shape)))])
    return answer


@pytest.mark.parametrize(
    "answer", [inference([1, 2]), inference([1, 2], fp32_contents=[0, 1])], ids=["raw", "typed"]
)
def test_dynamos_metadata_has_the_types_and_shapes_of_a_configuration(answer: Any) -> None:
    with serving(dynamo(answer)) as url, prepared(url) as found:
        assert [(one.datatype, one.shape) for one in found.info.inputs] == [("FP32", (-1, 4))]
        assert found.notes == ()
        assert read_statistics(Target(url=url, model_name="m")) is None


@pytest.mark.parametrize("kind", ["FP32", "TYPE_FP32", "fp32"])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_datatypes_in_small_letters_are_the_protocols(scheme: str, kind: str) -> None:
    """In metadata and answers alike; a configuration without tensors, or with null, changes nothing."""
    tensor = {"datatype": kind, "shape": [-1, 2]}
    described: dict[str, Any] = {"inputs": [{**tensor, "name": "x"}], "outputs": [{**tensor, "name": "y"}]}
    answer = inference([1, 2], fp32_contents=[0, 1])
    answer.outputs[0].datatype = kind
    answers: dict[str, Any] = {"metadata": message(pb.ModelMetadataResponse(name="m", **described))}
    answers["infer"] = message(answer)
    if scheme == "http":
        values = {"name": "y", "datatype": kind, "shape": [1, 2], "data": [0.5, 1]}
        config = document({"name": "m", "max_batch_size": 8, "input": None, "output": None})
        answers = {
            "config": config,
            "metadata": document({"name": "m", **described}),
            "infer": document({"outputs": [values]}),
        }
    with serving(Strange(name="", scheme=scheme, answers=answers)) as url, prepared(url, JSON) as found:
        assert [one.datatype for one in (*found.info.inputs, *found.info.outputs)] == ["FP32", "FP32"]


@pytest.mark.parametrize("configured", [["x"], ["x", "y"], ["y"]])
def test_tensors_that_the_configuration_leaves_out_have_the_batch_like_the_others(configured: list[str]) -> None:
    strange = dynamo(inference([1, 2]), configured=configured)
    with serving(strange) as url, prepared(url) as found:
        assert [one.shape for one in (*found.info.inputs, *found.info.outputs)] == [(-1, 4), (-1, 2)]


def test_a_text_model_on_dynamo_gets_the_text_alone_and_answers_typed_texts() -> None:
    answer = pb.ModelInferResponse(model_name="m")
    for name in ("text_output", "finish_reason"):
        answer.outputs.add(name=name, datatype="BYTES", shape=[1], contents={"bytes_contents": [b"x" * 100_000]})
    strange = dynamo(
        answer,
        rows=0,
        inputs=(("text_input", "STRING", [1]), ("streaming", "BOOL", [1])),
        outputs=(("text_output", "STRING", [-1]), ("finish_reason", "STRING", [-1])),
    )
    with serving(strange) as url, prepared(url) as found:
        assert [(one.name, one.datatype) for one in found.info.inputs] == [("text_input", "BYTES")]


@pytest.mark.parametrize("kind", [{"sequence_batching": {}}, {"model_transaction_policy": {"decoupled": True}}])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_models_of_sequences_and_streams_are_refused_by_their_configuration(scheme: str, kind: Any) -> None:
    config: Any = document({"name": "m", "max_batch_size": 8, "input": [{"name": "x"}], **kind})
    if scheme == "grpc":
        config = message(pb.ModelConfigResponse(config=kind))
    strange = Strange(name="", scheme=scheme, answers={"config": config})
    with serving(strange) as url, pytest.raises(PayloadError) as refused, prepared(url):
        pass
    assert str(refused.value).count("\n") == 1
    assert ("sequence" if "sequence_batching" in kind else "decoupled") in str(refused.value).partition("\n")[0]


@pytest.mark.parametrize("refusal", [400, 415, 422, 500])
def test_a_server_that_takes_no_binary_tensors_gets_json(refusal: int) -> None:
    fake = JsonServer(refusal)
    with fake.serving() as url:
        with pytest.raises(TargetRefused, match="--format json"), prepared(url):
            pass
        with prepared(url, Payload(format="json", batch_size=2)):
            (asked,) = fake.asked
    (x,) = asked["inputs"]
    assert (x["name"], x["datatype"], x["shape"], len(x["data"])) == ("x", "FP32", [2, 4], 8)
    assert "parameters" not in asked


def test_some_outputs_are_asked_for_by_name() -> None:
    fake = JsonServer()
    with fake.serving() as url:
        with prepared(url, Payload(format="json", outputs=("z",))):
            assert [one["name"] for one in fake.asked[0]["outputs"]] == ["z"]
        with pytest.raises(PayloadError, match="y, z"), prepared(url, Payload(outputs=("z", "other"))):
            pass


def test_inputs_that_the_server_does_not_name_are_those_of_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.arange(8, dtype=">f4").reshape(2, 4), text=np.array([[b"a"], [b"b"]]))
    fake = JsonServer(bare=True)
    with fake.serving() as url:
        with pytest.raises(PayloadError, match="--input-data"), prepared(url, JSON):
            pass
        with prepared(url, Payload(format="json", data_file=path)) as found:
            assert "x (FP32), text (BYTES)" in found.notes[0]
    x, text = fake.asked[0]["inputs"]
    assert (x["shape"], x["datatype"], x["data"]) == ([1, 4], "FP32", [0, 1, 2, 3])
    assert (text["shape"], text["datatype"], text["data"]) == ([1, 1], "BYTES", ["a"])


def test_samples_of_no_shape_are_refused_where_the_server_names_no_inputs(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_text('{"data": [{"x": [[1, 2], [3]]}]}')
    payload = Payload(data_file=path)
    with (
        JsonServer(bare=True).serving() as url,
        pytest.raises(PayloadError, match="lengths"),
        prepared(url, payload),
    ):
        pass


@pytest.mark.parametrize(
    ("status", "advised"),
    [
        (307, "redirects"),
        (400, "--input-data FILE"),
        (401, "authorization"),
        (403, "authorization"),
        (404, "name and version"),
        (413, "smaller"),
        (415, "--format json"),
        (500, "log"),
        (500, "--input-data FILE"),
    ],
)
def test_the_advice_on_a_first_request_follows_its_cause(status: int, advised: str) -> None:
    strange = Strange(name="", answers={"infer": http_answer(b'{"error":"no."}', status=f"{status} No")})
    with serving(strange) as url, pytest.raises(LoadError) as failed, prepared(url):
        pass
    what, fix = str(failed.value).split("\n")
    assert what.endswith(f"http {status}, no.")
    assert advised in fix
    assert ("--format json" in fix) == (status == 415), "this server's configuration is Triton's"


@pytest.mark.parametrize(
    ("status", "advised"),
    [
        (3, "--input-data"),
        (5, "name and version"),
        (7, "authorization"),
        (8, "smaller"),
        (11, "smaller"),
        (13, "log"),
    ],
)
def test_the_advice_over_grpc(status: int, advised: str) -> None:
    strange = Strange(name="", scheme="grpc", answers={"infer": grpc_answer(None, str(status).encode(), b"no")})
    with serving(strange) as url, pytest.raises(TargetRefused) as failed, prepared(url):
        pass
    assert advised in str(failed.value).partition("\n")[2]


def test_with_samples_of_ones_own_the_advice_is_to_check_them(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.zeros((2, 4), np.float32))
    strange = Strange(name="", answers={"infer": http_answer(b"", status="400 No")})
    samples = Payload(data_file=path)
    with serving(strange) as url, pytest.raises(TargetRefused, match=str(path)), prepared(url, samples):
        pass
