"""Calls spread over connections: idle ones first, and none is lost with its connection."""

import re
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from memory_wire import MODEL, right_message
from tritonclient.grpc.service_pb2 import ModelInferResponse
from wire_benches import GrpcBench, grpc_answer, widen

from loadgen.status import MALFORMED, OK, outcome_of_grpc
from loadgen.traffic.model_info import Tensor
from loadgen.wire.http2_frames import INITIAL_WINDOW
from loadgen.wire.http2_sending import grpc_message


@pytest.fixture
def two() -> Iterator[GrpcBench]:
    bench = GrpcBench(2)
    yield bench
    bench.wire.close()


def test_a_call_goes_to_an_idle_connection_while_there_is_one(two: GrpcBench) -> None:
    first, second = two.streams
    assert two.wire.answers_may_wait
    assert two.wire.send(0)
    assert not two.wire.send(1)  # no other connection is left: the next answer must be looked at
    assert not two.wire.answers_may_wait
    assert (first.calls(), second.calls()) == (1, 1)
    two.answer(second, 1)
    two.wire.send(2)
    assert (first.calls(), second.calls()) == (1, 2)
    two.wire.send(3)  # both are busy: they share
    assert first.calls() + second.calls() == 4


def test_a_connection_that_ended_is_replaced_so_that_its_address_gets_calls_again(two: GrpcBench) -> None:
    two.give(two.streams[0], b"")
    two.wire.send(0)
    two.settle()
    two.wire.send(1)
    assert [stream.calls() for stream in two.streams[1:]] == [1, 1]


def test_each_of_several_addresses_has_a_connection_and_each_row_its_place() -> None:
    bench = GrpcBench()
    bench.addresses.connections_min = 3
    bench.wire.open(1)
    bench.settle()
    bench.wire.places = bytearray(5)
    for place, stream in enumerate(bench.streams):
        stream.place = place
        bench.wire.send(place)
    bench.answer(bench.streams[0], 1)
    bench.answer(bench.streams[2], 1)
    bench.wire.send(3)
    bench.wire.send(4)
    assert bench.wire.places == bytes([1, 2, 3, 1, 2]), "a slow address gets its share"
    assert not bench.wire.answers_may_wait
    bench.wire.close()


def test_a_call_that_is_given_up_leaves_its_connection_idle(two: GrpcBench) -> None:
    first, second = two.streams
    two.wire.send(0)
    two.wire.send(1)
    two.wire.give_up(0)
    assert two.wire.answers_may_wait
    two.wire.send(2)
    assert (first.calls(), second.calls()) == (2, 1)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"", "status OK without a message"),
        (b"\0\0\0", "cut off in its prefix"),
        (b"\1" + right_message()[1:], "compressed"),
        (right_message()[:-1], "of which"),
        (right_message() + b"x", "of which"),
        (grpc_message(b""), "output y is missing"),
        (grpc_message(b"<html>Sign in.</html>"), "not a ModelInferResponse"),
        (right_message(name="other"), "output y is missing"),
        (right_message(datatype="INT32"), "type INT32, not FP32"),
        (right_message(shape=[1, 3], raw=bytes(12)), r"shape \[1, 3\], not \[1, 2\]"),
        (right_message(shape=[2]), r"shape \[2\], not \[1, 2\]"),
        (right_message(raw=b""), "takes 8 bytes, not 0"),
        (right_message(raw=bytes(12)), "takes 8 bytes, not 12"),
        (grpc_message(right_message()[5:] + b"\x32\0"), "outputs of 10 bytes in all, and 12 bytes"),
        (right_message(raw=None, contents={"fp64_contents": [1, 2]}), "FP32 holds fp64_contents"),
        (
            right_message(raw=None, contents={"fp32_contents": [1], "bytes_contents": [b""]}),
            "holds bytes_contents",
        ),
        (right_message(raw=None, contents={"fp32_contents": [1, 2, 3]}), "takes 2 values, not 3"),
        (right_message(raw=None), "takes 2 values, not 0"),
        (right_message(shape=[0, 2], raw=b""), r"\[0, 2\], not \[1, 2\]"),
        (right_message(shape=[7, 2], raw=bytes(56)), r"\[7, 2\], not \[1, 2\]"),
    ],
)
@pytest.mark.parametrize("right_ones_before", [0, 1, 40])
def test_a_status_of_ok_is_no_inference_by_itself(
    two: GrpcBench, message: bytes, named: str, right_ones_before: int
) -> None:
    for row in range(right_ones_before):
        two.wire.send(row)
        two.answer(two.streams[row % 2], row // 2 + 1)
    row = right_ones_before
    two.wire.send(row)
    two.answer(two.streams[row % 2], row // 2 + 1, message)
    assert [outcome for _, outcome, _ in two.ended] == [OK] * right_ones_before + [MALFORMED]
    assert re.search(named, two.wire.error_example or "")


def test_of_a_large_message_names_and_shapes_are_checked_as_well() -> None:
    large = GrpcBench(1, replace(MODEL, outputs=(Tensor(name="y", datatype="FP32", shape=(-1, 1 << 20)),)))
    shapes = ([1, 1 << 20], [2, 1 << 19], [1, 1 << 20])
    for row, shape in enumerate(shapes):
        large.wire.send(row)
        large.answer(large.streams[0], row + 1, right_message(shape=shape, raw=bytes(4 << 20)))
    assert [outcome for _, outcome, _ in large.ended] == [OK, MALFORMED, OK]
    large.wire.close()


@pytest.mark.parametrize(("name", "outcome"), [("y", OK), ("z", MALFORMED)])
def test_a_long_message_of_values_one_by_one_is_only_searched_for_its_names(name: str, outcome: int) -> None:
    other = GrpcBench(1, replace(MODEL, outputs=(Tensor(name="y", datatype="INT64", shape=(-1, -1)),)))
    answer = ModelInferResponse(model_name="m")
    answer.outputs.add(name=name, datatype="INT64", shape=[1, 90_000]).contents.int64_contents.extend([1] * 90_000)
    other.wire.send(0)
    other.answer(other.streams[0], 1, grpc_message(answer.SerializeToString()))
    assert [found for _, found, _ in other.ended] == [outcome]
    other.wire.close()


@pytest.mark.parametrize(
    "datatype", ["BOOL", "UINT8", "UINT16", "INT32", "INT64", "UINT64", "FP32", "FP64", "BYTES"]
)
def test_typed_values_are_in_the_field_of_their_type(datatype: str) -> None:
    fields = {"UINT8": "uint", "UINT16": "uint", "INT32": "int"}
    right = fields.get(datatype, datatype.lower()) + "_contents"
    for field in {right, "int_contents", "fp32_contents", "bool_contents"}:
        values = [b"a", b""] if field == "bytes_contents" else [1, 0]
        typed = GrpcBench(1, replace(MODEL, outputs=(Tensor(name="y", datatype=datatype, shape=(-1, 2)),)))
        typed.wire.send(0)
        typed.answer(typed.streams[0], 1, right_message(datatype=datatype, raw=None, contents={field: values}))
        assert [found for _, found, _ in typed.ended] == [OK if field == right else MALFORMED]
        typed.wire.close()


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (b"\3\0\0\0abc\0\0\0\0", OK),
        (b"\0\0\0\0\3\0\0\0abc", OK),
        (b"\4\0\0\0abc\0\0\0\0", MALFORMED),
        (b"\3\0\0\0abc\1\0\0\0", MALFORMED),
        (b"\xff" * 11, MALFORMED),
        (b"\0\1\1\0" + bytes(65_792) + b"\3\0\0\0abc", OK),
    ],
)
@pytest.mark.parametrize("right_ones_before", [0, 3])
def test_the_lengths_of_texts_are_read_in_each_answer(raw: bytes, outcome: int, right_ones_before: int) -> None:
    """With a tensor of numbers before them."""
    outputs = (
        Tensor(name="z", datatype="FP32", shape=(-1, 1)),
        Tensor(name="y", datatype="BYTES", shape=(-1, 2)),
    )
    texts = GrpcBench(1, replace(MODEL, outputs=outputs))
    answer = ModelInferResponse(model_name="m", raw_output_contents=[bytes(4), b"\3\0\0\0abc\0\0\0\0"])
    answer.outputs.add(name="z", datatype="FP32", shape=[1, 1])
    answer.outputs.add(name="y", datatype="BYTES", shape=[1, 2])
    for row in range(right_ones_before + 1):
        if row == right_ones_before:
            answer.raw_output_contents[1] = raw
        texts.wire.send(row)
        texts.answer(texts.streams[0], row + 1, grpc_message(answer.SerializeToString()))
    assert [found for _, found, _ in texts.ended] == [OK] * right_ones_before + [outcome]
    texts.wire.close()


@pytest.mark.parametrize("version", ["1", "2", ""])
def test_an_answer_is_of_the_version_that_was_asked_for(version: str) -> None:
    """Those of `right_message` are of version 1."""
    asked = GrpcBench(1, version=version)
    asked.wire.send(0)
    asked.answer(asked.streams[0], 1)
    assert [found for _, found, _ in asked.ended] == [MALFORMED if version == "2" else OK]
    asked.wire.close()


@pytest.mark.parametrize("settings", [b"", struct.pack(">HI", INITIAL_WINDOW, 1 << 30)], ids=["narrow", "wide"])
@pytest.mark.parametrize("status", [0, 8])
def test_an_answer_before_its_message_was_sent_whole_is_none(settings: bytes, status: int) -> None:
    """Whether the server's window or the kernel has no room for it; what the server refuses is told as such."""
    large = GrpcBench(1, messages=(bytes(1 << 20),), settle=False)
    large.settle(settings)
    stream = large.streams[0]
    large.give(stream, widen(0, 1 << 30))
    stream.room = 100_000
    large.wire.send(0)
    large.give(stream, grpc_answer(1, status=b"%d" % status))
    assert large.ended == [(0, outcome_of_grpc(status) if status else MALFORMED, 7)]
    large.wire.close()


def test_an_answer_after_the_last_byte_of_a_long_message_is_right() -> None:
    large = GrpcBench(1, messages=(bytes(1 << 20),))
    stream = large.streams[0]
    large.wire.send(0)
    large.give(stream, widen(0, 1 << 30), widen(1, 1 << 30))
    large.wire.send(1)  # the next one waits for the window, which changes nothing for the first
    large.give(stream, grpc_answer(1))
    assert large.ended == [(0, OK, 7)]
    large.wire.close()
