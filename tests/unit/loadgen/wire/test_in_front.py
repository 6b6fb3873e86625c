"""Responses that something in front of the server made."""

from collections import Counter

import pytest
from memory_wire import right_message
from wire_benches import GrpcBench, HttpBench, grpc_answer

from loadgen.status import OK, outcome_of_http
from loadgen.wire.in_front import in_words, note_failure, note_model, note_success


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({b"age": b"12"}, "a cache in front of the server (age) gave 50% of the 2 responses"),
        ({b"x-cache": b"Hit from cloud"}, "(x-cache) gave 50%"),
        ({b"x-cache": b"MISS, TCP_HIT"}, "(x-cache)"),
        ({b"cache-status": b"one; fwd=miss, two; hit; ttl=3"}, "(cache-status)"),
        ({b"x-vsr-cache-hit": b"True"}, "(x-vsr-cache-hit)"),
        ({b"cf-aig-cache-status": b"HIT"}, "(cf-aig-cache-status)"),
        ({b"x-portkey-cache-status": b"SEMANTIC HIT"}, "(x-portkey-cache-status)"),
        ({b"x-cache-hits": b"0, 2", b"cache-control": b"no-store"}, "(x-cache-hits)"),
        ({b"cache-control": b"max-age=3", b"age": b"2"}, "(age)"),
        ({b"via": b"1.1 proxy"}, "a proxy (via) passed on 50%"),
        ({b"age": b"0", b"x-cache": b"MISS"}, ""),
        ({b"cf-cache-status": b"DYNAMIC", b"x-cache-key": b"white", b"x-rate-hit": b"true"}, ""),
        (
            {b"x-vsr-cache-hit": b"false", b"x-cache-hits": b"0", b"x-portkey-cache-status": b"SEMANTIC MISS"},
            "",
        ),
    ],
)
def test_caches_and_proxies_are_named_with_their_share(fields: dict[bytes, bytes], said: str) -> None:
    found: Counter[str] = Counter()
    note_success(found, fields)
    note_success(found, {b"content-type": b"application/json"})
    text = " ".join(in_words(found))
    assert said in text
    assert bool(text) == bool(said)


@pytest.mark.parametrize(
    ("status", "fields", "said"),
    [
        (429, {}, "1 requests failed at a limit in front of the server (http 429)"),
        (503, {b"x-envoy-overloaded": b"true"}, "limit in front of the server (x-envoy-overloaded)"),
        (503, {b"content-type": b"application/json"}, ""),
    ],
)
def test_the_limit_of_a_gateway_is_not_the_servers(status: int, fields: dict[bytes, bytes], said: str) -> None:
    found: Counter[str] = Counter()
    note_failure(found, outcome_of_http(status), fields)
    text = " ".join(in_words(found))
    assert said in text
    assert bool(text) == bool(said)


def test_models_are_named_with_their_shares_but_not_without_end() -> None:
    found: Counter[str] = Counter()
    for name in ("asked", "", "other", *(f"v{number}" for number in range(96))):
        note_success(found, {})
        note_model(found, "asked", name)
    note_model(found, "asked", "other")
    sentences = in_words(found)
    assert "'other'" in sentences[0]
    assert "'asked'" in sentences[0]
    assert " 2% of the 99" in sentences[0]
    assert len(sentences) < 20


def test_headers_of_some_good_and_of_all_failed_http_responses_are_counted() -> None:
    bench = HttpBench(1)
    body = b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0,0]}]}'
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nAge: 3\r\nContent-Length: {len(body)}\r\n\r\n"
    for row in range(26):
        bench.wire.send(row)
        bench.give(bench.of(row), head.encode() + body)
    bench.wire.send(26)
    bench.give(bench.of(26), b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n")
    assert {outcome for _, outcome, _ in bench.ended[:26]} == {OK}
    limit = "a limit in front of the server (http 429)"
    assert bench.wire.in_front == {"looked at": 2, "a cache in front of the server (age)": 2, limit: 1}
    bench.wire.close()


def test_a_limit_is_counted_over_grpc() -> None:
    bench = GrpcBench(1)
    bench.wire.send(0)
    bench.give(bench.of(0), grpc_answer(1, right_message(), status=b"8"))
    assert bench.wire.in_front == {"a limit in front of the server (grpc RESOURCE_EXHAUSTED)": 1}
    bench.wire.close()
