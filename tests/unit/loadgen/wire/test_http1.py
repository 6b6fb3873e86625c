"""An answer of status 200 is an inference if it holds what the model gives, and a malformed answer otherwise."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from memory_wire import MODEL, Addresses, connect, http_wire

from loadgen.status import MALFORMED, OK
from loadgen.traffic.model_info import ModelInfo, Tensor
from loadgen.wire.poller import READ

RIGHT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}


def answered(body: bytes, *, json_bytes: int | None = None, kind: str = "application/octet-stream") -> bytes:
    head = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    if json_bytes is not None:
        head.append(f"Inference-Header-Content-Length: {json_bytes}")
    return "\r\n".join([*head, "", ""]).encode() + body


def binary(raw: bytes = bytes(8), **changed: Any) -> bytes:
    """An answer with its tensor after the JSON, as Triton gives it, but for what is changed in its output."""
    text = json.dumps({"model_name": "m", "outputs": [RIGHT | changed]}).encode()
    return answered(text + raw, json_bytes=len(text))


def plain(document: object) -> bytes:
    return answered(json.dumps(document).encode(), kind="application/json")


def chunked(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    fields = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return fields + b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


class Bench:
    """A wire whose requests are answered one after the other, and their outcomes."""

    def __init__(self, model: ModelInfo = MODEL, version: str = "") -> None:
        self.outcomes: list[int] = []
        self.addresses = Addresses()
        self.wire = http_wire(
            self.addresses, lambda _row, outcome, _ns: self.outcomes.append(outcome), model, version=version
        )

    def answer(self, *answers: bytes) -> list[int]:
        for data in answers:
            row = len(self.outcomes)
            self.wire.send(row)
            connect(self.wire, self.addresses)
            stream = self.wire.in_flight[row].stream
            stream.coming = [data]  # type: ignore[union-attr]
            while stream.coming:  # type: ignore[union-attr]
                self.wire.handle(stream.fd, READ)  # type: ignore[union-attr]
            if len(self.outcomes) == row:  # its end is that of the connection
                stream.coming = [b""]  # type: ignore[union-attr]
                self.wire.handle(stream.fd, READ)  # type: ignore[union-attr]
        return self.outcomes


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.wire.close()


WITHOUT_BATCHES = replace(MODEL, max_batch_size=0)
NO_INFERENCE = [
    (answered(b"<html>Sign in, please.</html>", kind="text/html"), r"http 200, text/html.*Sign in"),
    (answered(b"<html>Sign in.</html>", json_bytes=10), "no inference"),
    (plain({"error": "the model broke"}), "the model broke"),
    (plain({"outputs": "none"}), "no inference"),
    (plain([1, 2]), "no inference"),
    (answered(b""), "no inference"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "no content type"),
    (chunked(plain({"error": "the model broke"})), "the model broke"),
    (b"HTTP/1.0 200 OK\r\n\r\nhello", "hello"),
    (answered(b"[" * 200_000, kind="application/json"), "no inference"),
    (plain({"outputs": []}), "output y is missing"),
    (binary(name="other"), "output y is missing"),
    (binary(datatype="INT32"), "type INT32, not FP32"),
    (binary(bytes(12), shape=[1, 3], parameters={"binary_data_size": 12}), r"\[1, 3\], not \[1, 2\]"),
    (binary(shape=[2]), r"\[2\], not \[1, 2\]"),
    (binary(shape=[1, 2.5]), "no inference"),
    (binary(shape=[1, -2]), r"\[1, -2\], not \[1, 2\]"),
    (binary(b"", parameters={"binary_data_size": 0}), "takes 8 bytes, not 0"),
    (binary(bytes(12), parameters={"binary_data_size": 12}), "takes 8 bytes, not 12"),
    (binary(parameters={"binary_data_size": 7}), "takes 8 bytes, not 7"),
    (binary(parameters={"binary_data_size": None}), "no inference"),
    (binary(bytes(7)), "outputs of 8 bytes in all, and 7"),
    (chunked(binary(bytes(7))), "outputs of 8 bytes in all, and 7"),
    (chunked(answered(b"{}", json_bytes=300)), "300 bytes in a body of 2"),
    (binary(parameters={}), "no inference"),
    (plain({"outputs": [RIGHT | {"parameters": {}, "data": [1.0]}]}), "takes 2 values, not 1"),
    *(
        (plain({"outputs": [RIGHT | {"parameters": {}, "data": [1.0, value]}]}), f"type FP32 holds {named}")
        for value, named in ((None, "null"), ({"a": 1}, "{"), ("1", '"1"'), (True, "true"), ([1.0], r"\[1.0\]"))
    ),
    (plain({"outputs": [RIGHT | {"parameters": {}, "data": {"a": 1, "b": 2}}]}), "no inference"),
    (plain({"error": "CUDA out of memory", "outputs": []}), "CUDA out of memory"),
    (plain({"error": "x" * 9000, "outputs": []}), "xxx"),
    (plain({"model_name": "another", "outputs": [RIGHT]}), "of the model 'another'"),
    (binary(b"", shape=[0, 2], parameters={"binary_data_size": 0}), r"\[0, 2\], not \[1, 2\]"),
    (binary(bytes(56), shape=[7, 2], parameters={"binary_data_size": 56}), r"\[7, 2\], not \[1, 2\]"),
]


@pytest.mark.parametrize(("wrong", "named"), NO_INFERENCE)
@pytest.mark.parametrize("right_ones_before", [0, 1, 40])
def test_a_status_of_200_is_no_inference_by_itself(
    bench: Bench, wrong: bytes, named: str, right_ones_before: int
) -> None:
    assert bench.answer(*[binary()] * right_ones_before, wrong) == [OK] * right_ones_before + [MALFORMED]
    assert re.search(named, bench.wire.error_example or "")


@pytest.mark.parametrize(
    "right",
    [
        binary(),
        chunked(binary()),
        b"HTTP/1.0" + binary()[8:].replace(b"Content-Length: ", b"X-Length: ", 1),
        plain({"outputs": [RIGHT | {"parameters": {}, "data": [1.0, 2.0]}]}),
        plain({"outputs": [RIGHT | {"parameters": {}, "data": [[1.0, 2.0]]}]}),
        chunked(plain({"outputs": [RIGHT | {"parameters": {}, "data": [1.0, 2.0]}]})),
    ],
)
def test_inferences_in_every_legal_form_are_right(bench: Bench, right: bytes) -> None:
    assert bench.answer(*[right] * 40) == [OK] * 40


def test_what_no_configuration_describes_may_have_rows_and_a_name_of_its_own() -> None:
    """A server that is not Triton, or a model without batches, such as one that finds objects in a picture."""
    empty = binary(b"", shape=[0, 2], parameters={"binary_data_size": 0})
    five = binary(bytes(40), shape=[5, 2], parameters={"binary_data_size": 40})
    none = binary(b"", shape=[1, 0], parameters={"binary_data_size": 0})
    for model, zero in (
        (replace(MODEL, max_batch_size=None, whole_shapes=True), MALFORMED),
        (WITHOUT_BATCHES, OK),
    ):
        other = Bench(replace(model, outputs=(Tensor(name="y", datatype="FP32", shape=(-1, -1)),)))
        assert other.answer(five, empty, none) == [OK, zero, MALFORMED]
        other.wire.close()
    alias = Bench(replace(MODEL, name="alias", max_batch_size=None))
    assert alias.answer(binary()) == [OK]
    alias.wire.close()


def test_heads_and_descriptions_that_always_differ_are_right_and_none_passes_for_another(bench: Bench) -> None:
    """A gateway's `Date` makes each head a new one, an `id` each description."""
    dated = [binary(id=number).replace(b"\r\n", b"\r\nDate: %d\r\n" % number, 1) for number in range(2000)]
    assert set(bench.answer(*dated)) == {OK}
    other = binary(bytes(12), shape=[1, 3], parameters={"binary_data_size": 12})
    assert bench.answer(other.replace(b"\r\n", b"\r\nDate: x\r\n", 1))[-1] == MALFORMED


@pytest.mark.parametrize("inputs", [(Tensor(name="x", datatype="FP32", shape=(-1, 4)),), ()])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_without_a_configuration_the_rows_are_those_of_the_request(inputs: tuple[Tensor, ...], rows: int) -> None:
    free = Tensor(name="y", datatype="FP32", shape=(-1, 2))
    one = Bench(replace(MODEL, max_batch_size=None, inputs=inputs, outputs=(free,)))
    answer = binary(bytes(8 * rows), shape=[rows, 2], parameters={"binary_data_size": 8 * rows})
    assert one.answer(answer) == [OK if rows == 1 else MALFORMED]
    one.wire.close()


@pytest.mark.parametrize("asked", ["", "2"])
@pytest.mark.parametrize("said", ["1", "2", None])
def test_an_answer_is_of_the_version_that_was_asked_for(asked: str, said: str | None) -> None:
    bench = Bench(version=asked)
    output = RIGHT | {"parameters": {}, "data": [1.0, 2.0]}
    expected = MALFORMED if (asked, said) == ("2", "1") else OK
    assert bench.answer(plain({"model_version": said, "outputs": [output]})) == [expected]
    bench.wire.close()


COUNT = 20_000


def long_one(values: list[Any], **changed: Any) -> bytes:
    """An answer of JSON alone with many values."""
    return plain({"outputs": [RIGHT | {"shape": [1, COUNT], "parameters": {}, "data": values} | changed]})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (long_one([1.5] * (COUNT - 1)), "takes 20,000 values, not 19,999"),
        (long_one([1.5] * (COUNT - 1) + [None]), "null"),
        (long_one([None] * COUNT), "null"),
        (long_one(["1.5"] * COUNT), '"1.5"'),
        (long_one([{}] * COUNT), "{}"),
        (long_one([]), "not 0"),
        (long_one([1.5] * COUNT, name="other"), "output y is missing"),
        (long_one([1.5] * COUNT, shape=[2, COUNT // 2]), "has the shape"),
        (long_one([1.5] * COUNT, datatype="FP64"), "is of type FP64"),
        (plain({"error": "no", "outputs": [{"data": "x" * 70_000}]}), "an error"),
        (plain({"outputs": ["x" * 70_000]}), "no inference"),
    ],
)
@pytest.mark.parametrize("right_ones_before", [0, 3])
def test_long_answers_of_json_alone_are_checked_to_the_last(
    wrong: bytes, named: str, right_ones_before: int
) -> None:
    long = Bench(replace(MODEL, outputs=(Tensor(name="y", datatype="FP32", shape=(-1, COUNT)),)))
    right = [long_one([0.25 * row] * COUNT) for row in range(right_ones_before)]
    assert long.answer(*right, wrong) == [OK] * right_ones_before + [MALFORMED]
    assert named in (long.wire.error_example or "")
    assert long.answer(long_one([[-1e-7] * (COUNT // 2)] * 2))[-1] == OK
    long.wire.close()


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, OK),
        ({"shape": [1, 0]}, MALFORMED),
        ({"datatype": "INT8"}, MALFORMED),
        ({"shape": [1, 1 << 40]}, MALFORMED),
    ],
)
def test_of_json_that_is_too_long_to_keep_the_first_output_is_checked(changed: Any, outcome: int) -> None:
    free = Bench(replace(MODEL, outputs=(Tensor(name="y", datatype="FP32", shape=(-1, -1)),)))
    right = {"name": "y", "datatype": "FP32", "shape": [1, 400_000]}
    more = [RIGHT | {"data": [1.0]}, "a second one that is not read"]
    assert free.answer(plain({"outputs": [right | changed | {"data": [1.25] * 400_000}, *more]})) == [outcome]
    assert free.answer(plain({"outputs": "x" * 2_000_000}), plain({"outputs": [], "data": "x" * 2_000_000})) == [
        outcome,
        MALFORMED,
        MALFORMED,
    ]
    free.wire.close()


TEXTS = b"".join(len(text).to_bytes(4, "little") + text for text in (b"abc", b""))


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (TEXTS, OK),
        (b"\0\0\0\0\3\0\0\0abc", OK),
        (b"\4\0\0\0abc\0\0\0\0", MALFORMED),
        (b"\2\0\0\0abc\0\0\0\0", MALFORMED),
        (b"\3\0\0\0abc\1\0\0\0", MALFORMED),
        (b"\7\0\0\0abc\0\0\0\0", MALFORMED),
        (b"\0\0\0\0\0\0\0\0abc", MALFORMED),
        (b"\xff" * 11, MALFORMED),
    ],
)
@pytest.mark.parametrize("right_ones_before", [0, 3])
def test_the_lengths_of_texts_are_read_in_each_answer(raw: bytes, outcome: int, right_ones_before: int) -> None:
    texts = Bench(replace(MODEL, outputs=(Tensor(name="y", datatype="BYTES", shape=(-1, 2)),)))
    right = binary(TEXTS, datatype="BYTES", parameters={"binary_data_size": 11})
    answer = binary(raw, datatype="BYTES", parameters={"binary_data_size": 11})
    assert texts.answer(*[right] * right_ones_before, answer) == [OK] * right_ones_before + [outcome]
    texts.wire.close()


def test_of_long_texts_the_first_64_kib_are_read() -> None:
    texts = Bench(replace(MODEL, outputs=(Tensor(name="y", datatype="BYTES", shape=(-1, 2)),)))
    raw = b"\0\1\1\0" + bytes(65_792) + b"\3\0\0\0abc"
    for ending, outcome in ((b"", OK), (b"\0", OK), (b"\0" * 4, OK)):
        size = {"binary_data_size": len(raw + ending)}
        assert texts.answer(binary(raw + ending, datatype="BYTES", parameters=size))[-1] == outcome
    texts.wire.close()
