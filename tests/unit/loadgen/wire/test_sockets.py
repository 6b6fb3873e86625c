"""Bytes over TCP and TLS: none is lost between TLS and a kernel that takes a part, and none stays hidden."""

import contextlib
import select
import socket
import ssl
import time
from pathlib import Path
from typing import Any, cast

import pytest
from memory_wire import Addresses, Memory, Watched, grpc_wire, http_wire
from waiting import wait_until

from loadgen.errors import PlanError, TargetUnreachable
from loadgen.spec.target import Target
from loadgen.wire.http2_frames import SETTINGS, frame
from loadgen.wire.poller import READ, WRITE
from loadgen.wire.sockets import Address, Stream, TcpStream, TlsStream, addresses_of, tls_context

TLS_FOLDER = Path(__file__).parents[3] / "support" / "tls"
BODY = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.0,2.0]}]}'
RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Tls:
    """A stream over TLS, and its server, on a TCP connection in memory."""

    def __init__(self, *, trusts: str | None = "localhost-ca.pem", protocol: str | None = None) -> None:
        client = ssl.create_default_context(cafile=trusts and str(TLS_FOLDER / trusts))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(TLS_FOLDER / "localhost.pem")
        for context in (client, server) if protocol else ():
            context.set_alpn_protocols([protocol or ""])
        self.tcp = Memory(100)
        self.stream = TlsStream(cast("TcpStream", self.tcp), client, "localhost")
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self._seen = 0
        self.got = bytearray()

    def serve(self) -> None:
        """Let the server take all that came and give what it has to say."""
        self.incoming.write(bytes(self.tcp.sent[self._seen :]))
        self._seen = len(self.tcp.sent)
        try:
            self.server.do_handshake()
            while True:
                self.got += self.server.read(1 << 16)
        except ssl.SSLWantReadError:
            pass
        if self.outgoing.pending:
            self.tcp.coming.append(self.outgoing.read())

    def shake_hands(self) -> None:
        while not self.stream.connected():
            self.serve()
        self.serve()

    def say(self, data: bytes) -> None:
        self.server.write(data)
        self.tcp.coming.append(self.outgoing.read())

    def read(self, size: int = 1 << 16) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.stream.recv_into(memoryview(buffer))])


@pytest.fixture
def tls() -> Tls:
    made = Tls()
    made.shake_hands()
    return made


@pytest.mark.parametrize("room", [0, 1, 5, 1000, 16_384, 65_536, 65_600, 130_000])
@pytest.mark.parametrize("size", [1, 65_536, 150_000])
def test_what_counts_as_sent_has_left_and_all_of_it_once(tls: Tls, room: int, size: int) -> None:
    """Where the kernel takes a part of the last piece, nobody would call again for the rest of it."""
    data = bytes(number % 251 for number in range(size))
    tls.tcp.room, sent = room, 0
    while sent < size:
        try:
            sent += tls.stream.send(memoryview(data)[sent:])
        except BlockingIOError:
            assert tls.stream.wants() == READ | WRITE or not room
            tls.tcp.room = room + 1
        tls.serve()
        assert len(tls.got) >= sent
    assert tls.got == data
    assert tls.stream.wants() == READ


@pytest.mark.parametrize("short_by", [1, 100, 5000])
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_a_request_leaves_whole_where_the_kernel_blocks_within_its_end(over: str, short_by: int) -> None:
    tls, watched, ended = Tls(protocol="h2"), Watched(), list[tuple[int, int, int]]()
    addresses = Addresses()
    addresses.open = lambda: tls.stream  # type: ignore[assignment, method-assign, return-value]
    request = bytes(10_000)
    wire: Any = (
        http_wire(addresses, lambda *one: ended.append(one), requests=[request], poller=watched)
        if over == "http"
        else grpc_wire(addresses, lambda *one: ended.append(one), messages=[request], poller=watched)
    )
    wire.open(1)
    while wire.connecting and (over == "http" or not tls.got):
        wire.handle(100, WRITE | READ)
        tls.serve()
    if over == "grpc":
        tls.say(frame(SETTINGS, 0, 0))
        wire.handle(100, READ)
    addresses.open = lambda: Memory(101)  # type: ignore[method-assign]
    tls.got.clear()
    tls.tcp.room = len(request) - short_by
    assert not wire.send(0)
    tls.tcp.room = None
    rounds = 0
    while watched.events[100] & WRITE:
        wire.handle(100, WRITE)
        rounds += 1
        assert rounds < 10, "it is asked for ever for room to write that it does not use"
    tls.serve()
    assert tls.got.endswith(request)
    assert tls.stream.wants() == READ


def test_all_that_came_is_read_though_the_poller_sees_the_first_of_it_only(tls: Tls) -> None:
    tls.say(RIGHT)
    tls.say(BODY)
    seen = b""
    for _ in range(50):
        try:
            seen += tls.read(40)
        except BlockingIOError:
            break
    assert seen == RIGHT + BODY


def test_what_comes_after_no_more_was_to_be_taken_stays_where_the_poller_sees_it(tls: Tls) -> None:
    tls.say(RIGHT)
    assert tls.read(10) == RIGHT[:10]
    tls.say(BODY)
    tls.stream.take_no_more()
    assert tls.read() == RIGHT[10:]
    reads = tls.tcp.reads
    with pytest.raises(BlockingIOError):
        tls.read()
    assert tls.tcp.reads == reads
    assert tls.read() == BODY, "from then on it takes again"


def test_a_server_that_ends_tls_or_the_connection_ends_the_stream(tls: Tls) -> None:
    tls.say(RIGHT)
    with pytest.raises(ssl.SSLWantReadError):
        tls.server.unwrap()
    tls.tcp.coming.append(tls.outgoing.read())
    assert tls.read() == RIGHT
    assert tls.read() == b""
    cut = Tls()
    cut.shake_hands()
    cut.tcp.coming.append(b"")
    assert cut.read() == b""


def test_records_without_data_do_not_keep_the_clock_from_being_looked_at(tls: Tls) -> None:
    with pytest.raises(BlockingIOError):
        tls.read()
    tls.say(RIGHT)
    whole = tls.tcp.coming.pop()
    tls.tcp.coming = [whole[at : at + 1] for at in range(len(whole))]
    before = tls.tcp.reads
    with pytest.raises(BlockingIOError):
        tls.read()
    assert tls.tcp.reads - before == 8


def test_a_handshake_that_the_server_leaves_is_an_error() -> None:
    tls = Tls()
    assert not tls.stream.connected()
    tls.tcp.coming.append(b"")
    with pytest.raises(ConnectionResetError, match="in the middle of the TLS handshake"):
        tls.stream.connected()


def test_a_certificate_that_nobody_trusts_is_an_error_and_the_server_hears_of_it() -> None:
    tls = Tls(trusts=None)
    assert not tls.stream.connected()
    tls.serve()
    before = len(tls.tcp.sent)
    with pytest.raises(ssl.SSLCertVerificationError):
        tls.stream.connected()
    assert len(tls.tcp.sent) > before


def test_the_protocol_is_what_both_sides_agreed_to_and_the_time_that_of_the_kernel() -> None:
    for protocol in ("h2", None):
        tls = Tls(protocol=protocol)
        tls.shake_hands()
        assert tls.stream.protocol == protocol
        assert (tls.stream.arrived_ns, tls.stream.fileno()) == (7, 100)
        tls.stream.close()
        assert tls.tcp.closed


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_tcp_says_when_bytes_came_by_the_wall_clock_and_when_the_other_end_closed(listener: Any) -> None:
    stream = TcpStream(socket.AF_INET, listener.getsockname())
    assert stream.wants() == WRITE
    other, _ = listener.accept()
    while not stream.connected():
        time.sleep(0.001)
    assert stream.wants() == READ
    assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    buffer = bytearray(10)
    with pytest.raises(BlockingIOError):
        stream.recv_into(memoryview(buffer))

    def has_a_time() -> bool:
        other.sendall(b"!")
        assert select.select([stream], [], [], 240)[0]
        return stream.recv_into(memoryview(buffer)) == 1 and stream.arrived_ns > 0

    wait_until(has_a_time)  # the kernel begins in the background to note when bytes come, with the first socket
    before_ns = time.time_ns()
    other.sendall(b"hello")
    assert select.select([stream], [], [], 240)[0]
    came_ns = time.time_ns()
    time.sleep(0.001)  # it is read later than it came
    assert stream.recv_into(memoryview(buffer)) == 5
    assert before_ns <= stream.arrived_ns <= came_ns
    other.close()
    assert stream.recv_into(memoryview(buffer)) == 0
    assert stream.arrived_ns == 0
    stream.close()


def target(url: str, **others: Any) -> Target:
    return Target(url=url, model_name="m", model_version="", headers=(), **others)


def test_a_name_with_two_addresses_is_the_one_that_takes_connections(
    listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = listener.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as gone:
        dead = gone.getsockname()
    entries = [(socket.AF_INET, 1, 6, "", dead), (socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]
    monkeypatch.setattr("loadgen.wire.sockets.socket_names.getaddrinfo", lambda *_args, **_more: entries)
    assert addresses_of(target(f"http://two:{port}"))[0].sockaddr == ("127.0.0.1", port)
    entries[1] = (socket.AF_INET, 1, 6, "", ("127.0.0.2", dead[1]))
    assert addresses_of(target(f"http://two:{port}"))[0].sockaddr == dead, "where none does, it is the first"
    entries.pop()
    assert addresses_of(target(f"http://two:{port}"))[0].sockaddr == dead, "an only one is not asked"


def opened(listener: Any, url: str, host: str = "localhost") -> tuple[Stream, Any]:
    """A connected stream to the listener, as the target at `url` has it, and its server's end."""
    wanted = target(url, ca_cert=TLS_FOLDER / "localhost-ca.pem")
    context = tls_context(wanted) if wanted.is_tls else None
    address = listener.getsockname()
    stream = Address(family=socket.AF_INET, sockaddr=address, server_name=host, context=context).open()
    server, _ = listener.accept()
    if wanted.is_tls:
        offers = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        offers.load_cert_chain(TLS_FOLDER / "localhost.pem")
        offers.set_alpn_protocols(["http/1.1", "h2"])
        server = offers.wrap_socket(server, server_side=True, do_handshake_on_connect=False)
    server.setblocking(False)
    try:
        while not stream.connected():
            if isinstance(server, ssl.SSLSocket):
                with contextlib.suppress(ssl.SSLWantReadError):
                    server.do_handshake()
    except OSError:
        stream.close()
        server.close()
        raise
    server.settimeout(240)
    return stream, server


@pytest.mark.parametrize(
    ("url", "kind", "protocol"),
    [
        ("http://x:1", TcpStream, None),
        ("grpc://x:1", TcpStream, None),
        ("https://x:1", TlsStream, None),
        ("grpcs://x:1", TlsStream, "h2"),
    ],
)
def test_an_address_opens_what_its_target_speaks(
    listener: Any, url: str, kind: type, protocol: str | None
) -> None:
    stream, server = opened(listener, url)
    assert isinstance(stream, kind)
    assert not isinstance(stream, TlsStream) or stream.protocol == protocol
    assert stream.send(b"hello") == 5
    assert server.recv(10) == b"hello"
    stream.close()
    server.close()


def test_a_server_of_another_name_is_not_spoken_to(listener: Any) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        opened(listener, "https://x:1", "example")


def test_tls_is_there_for_https_and_checks_unless_it_is_told_not_to() -> None:
    assert addresses_of(target("http://127.0.0.1:1"))[0].context is None
    checked = addresses_of(target("https://127.0.0.1:1"))[0].context
    assert checked is not None
    assert checked.verify_mode == ssl.CERT_REQUIRED
    assert checked.check_hostname
    unchecked = tls_context(target("https://127.0.0.1:1", insecure=True))
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)


def test_the_name_for_tls_is_the_servers_own_or_that_of_the_address() -> None:
    assert addresses_of(target("https://127.0.0.1:1"))[0].server_name == "127.0.0.1"
    assert addresses_of(target("https://127.0.0.1:1", server_name="a.example"))[0].server_name == "a.example"


@pytest.mark.parametrize(
    ("cert", "key", "problem"),
    [
        ("localhost-ca.pem", None, "no certificate or no key in PEM"),
        ("stranger-encrypted-key.pem", None, "no certificate or no key in PEM"),
        ("localhost.pem", "absent.pem", "No such file"),
        ("localhost.pem", "stranger.pem", "the key is that of another certificate"),
        ("localhost.pem", "stranger-encrypted-key.pem", "the key has a password"),
    ],
)
def test_a_client_certificate_without_its_key_is_refused(cert: str, key: str | None, problem: str) -> None:
    pair = {"client_cert": TLS_FOLDER / cert, "client_key": key and TLS_FOLDER / key}
    with pytest.raises(PlanError, match=f"--client-cert .*{cert}.* cannot be used: {problem}") as caught:
        tls_context(target("https://127.0.0.1:1", **pair))
    assert str(caught.value).count("\n") == 1


def test_names_and_certificate_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable, match="is not known"):
        addresses_of(target(f"http://{'x' * 64}:1"))[0]
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(TargetUnreachable, match="not a certificate file"):
        tls_context(target("https://127.0.0.1:1", ca_cert=tmp_path / "ca.pem"))
