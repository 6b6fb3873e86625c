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

    def __init__(self, model: ModelInfo = MODEL) -> None:
        self.outcomes: list[int] = []
        self.addresses = Addresses()
        self.wire = http_wire(self.addresses, lambda _row, outcome, _ns: self.outcomes.append(outcome), model)

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
    (binary(b"", parameters={"binary_data_size": 0}), "outputs of 8 bytes in all, and 0 bytes"),
    (binary(bytes(12), parameters={"binary_data_size": 12}), "outputs of 8 bytes in all, and 12 bytes"),
    (binary(bytes(7)), "outputs of 8 bytes in all, and 7"),
    (chunked(binary(bytes(7))), "outputs of 8 bytes in all, and 7"),
    (chunked(answered(b"{}", json_bytes=300)), "300 bytes in a body of 2"),
    (binary(parameters={}), "no inference"),
    (plain({"outputs": [RIGHT | {"parameters": {}, "data": [1.0]}]}), "takes 2 values, not 1"),
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
    for model in (replace(MODEL, max_batch_size=None), replace(MODEL, max_batch_size=0)):
        other = Bench(replace(model, outputs=(Tensor(name="y", datatype="FP32", shape=(-1, 2)),)))
        empty = binary(b"", shape=[0, 2], parameters={"binary_data_size": 0})
        assert other.answer(empty) == [OK]
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


def test_long_answers_of_json_alone_are_only_searched_in_the_end(bench: Bench) -> None:
    output = RIGHT | {"parameters": {}, "data": [1.0, 2.0], "note": "x" * 70_000}
    wrong = [plain({"outputs": [output | {"name": "other"}]}), plain({"error": "no", "outputs": [output]})]
    assert bench.answer(wrong[0], *[plain({"outputs": [output]})] * 40) == [MALFORMED, *[OK] * 40]
    assert bench.answer(*wrong)[-2:] == [OK, MALFORMED]
    assert bench.answer(plain({"outputs": [output], "more": "x" * 2_000_000}))[-1] == OK


@pytest.mark.parametrize(
    ("datatype", "shape"), [("FP32", (-1, -1)), ("BYTES", (-1, 2)), ("INT64", (-1,)), ("FP16", ())]
)
def test_answers_whose_length_is_drawn_are_right_as_long_as_they_agree_with_themselves(
    datatype: str, shape: tuple[int, ...]
) -> None:
    free = Bench(replace(MODEL, outputs=(Tensor(name="y", datatype=datatype, shape=shape),), max_batch_size=0))
    each = {"FP32": 4, "INT64": 8, "FP16": 2}.get(datatype)
    answers = []
    for count in range(100):
        sizes = [count if size == -1 else size for size in shape] if each else [1, 2]
        length = 2 * (4 + count) if each is None else each
        for size in sizes if each else ():
            length *= size
        parameters = {"binary_data_size": length}
        answers.append(binary(bytes(length), datatype=datatype, shape=sizes, parameters=parameters))
    assert set(free.answer(*answers)) == {OK}
    assert free.answer(answered(b"<html>", kind="text/html"))[-1] == MALFORMED
    free.wire.close()
