"""A server that is only starting, or full for a moment: first requests and questions are sent again."""

import itertools
import socket
import threading
import time
from collections.abc import Callable

import pytest
from strange_servers import RIGHT_GRPC, RIGHT_HTTP, Close, Strange, grpc_answer, http_answer, serving

from loadgen.errors import PayloadError, TargetRefused, TargetUnreachable
from loadgen.sending.prepared import PreparedTarget, wait_ready
from loadgen.spec.plan import Payload, Streamed
from loadgen.spec.target import Target
from loadgen.wire.poller import Poller

BUSY = http_answer(b'{"error":"loading"}', status="503 Service Unavailable")
LATER = http_answer(b'{"error":"full"}', "Retry-After: 2", status="429 Too Many Requests")


def first(count: int, answer: bytes | type[Exception], right: bytes) -> Callable[[socket.socket], None]:
    """Give so many of these answers, then the right one."""
    seen = itertools.count()

    def give(connection: socket.socket) -> None:
        if next(seen) >= count:
            connection.sendall(right)
        elif isinstance(answer, bytes):
            connection.sendall(answer)
        else:
            raise answer

    return give


def prepare(url: str) -> float:
    """Return the seconds until a first request was answered."""
    began, poller = time.monotonic(), Poller()
    prepared = PreparedTarget(Target(url=url, model_name="m"), Payload(), poller, 5.0)
    assert prepared.answered
    assert prepared.info.max_batch_size == 8
    prepared.close()
    poller.close()
    return time.monotonic() - began


@pytest.mark.parametrize("question", ["metadata", "config", "infer"])
@pytest.mark.parametrize("answer", [BUSY, LATER, Close])
def test_two_failures_that_pass_cost_only_time(question: str, answer: bytes | type[Exception]) -> None:
    with serving(Strange(name="", answers={question: first(2, answer, RIGHT_HTTP[question])})) as url:
        seconds = prepare(url)
    assert seconds >= (4.0 if answer is LATER else 1.5), "Retry-After is heeded"


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "404 Not Found"])
def test_streams_of_an_address_that_is_wrong_get_no_load(status: str) -> None:
    asked = Payload(streamed=Streamed(api="openai-chat", output_tokens=1, prompt_tokens=1))
    strange = Strange(
        name="", answers={"metadata": http_answer(b"", status=status)}
    )  # to all that is no inference
    with serving(strange) as url, pytest.raises(TargetRefused, match=f"http {status[:3]}"):
        PreparedTarget(Target(url=url, model_name="m"), asked, Poller(), 5.0)


@pytest.mark.parametrize("question", ["metadata", "config", "infer"])
def test_unavailable_over_grpc_passes_too(question: str) -> None:
    seen, busy = itertools.count(), grpc_answer(None, b"14", b"loading")

    def answer(stream_id: int) -> bytes:
        return (busy if next(seen) < 2 else RIGHT_GRPC[question])(stream_id)

    with serving(Strange(name="", scheme="grpc", answers={question: answer})) as url:
        assert prepare(url) >= 1.5


@pytest.mark.parametrize("question", ["metadata", "infer"])
def test_the_third_failure_ends_it_and_names_the_way_to_wait(question: str) -> None:
    with serving(Strange(name="", answers={question: BUSY})) as url, pytest.raises(TargetRefused) as failed:
        prepare(url)
    assert "http 503, loading" in str(failed.value)
    assert "--wait-ready" in str(failed.value)


def wait(url: str, patience_s: float, *, timeout_s: float = 5.0, stop: bool = False) -> float | None:
    target = Target(url=url, model_name="m")
    return wait_ready(target, Payload(), patience_s=patience_s, timeout_s=timeout_s, stop=lambda: stop)


def test_a_server_that_starts_later_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    def serve() -> None:
        time.sleep(1.5)
        with socket.create_server(("127.0.0.1", port)) as late:
            while not done.is_set():
                connection, _ = late.accept()
                head = connection.recv(1 << 16)
                name = next((one for one in ("infer", "config") if b"/" + one.encode() in head), "metadata")
                connection.sendall(RIGHT_HTTP[name])
                connection.close()
                if name == "infer":
                    done.set()

    done = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    seconds = wait(f"http://127.0.0.1:{port}", 20.0)
    thread.join()
    assert seconds is not None
    assert 1.4 < seconds < 10


def test_a_held_first_request_is_no_answer_yet() -> None:
    held = itertools.count()

    def hold(connection: socket.socket) -> None:
        if next(held):
            connection.sendall(RIGHT_HTTP["infer"])

    with serving(Strange(name="", answers={"infer": hold})) as url:
        assert (wait(url, 20.0, timeout_s=0.5) or 0.0) > 0.5


def test_waiting_ends_after_its_time_or_when_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(TargetUnreachable, match="for 1 s now"):
        wait(url, 1.0)
    assert wait(url, 60.0, stop=True) is None


def test_a_model_without_inputs_is_refused() -> None:
    none = http_answer(b'{"name":"m","inputs":[],"outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]}')
    with serving(Strange(name="", answers={"metadata": none})) as url, pytest.raises(PayloadError) as failed:
        prepare(url)
    assert "names no inputs" in str(failed.value)
