"""Open non-blocking byte streams to a server: plain TCP, or TLS over TCP."""

from __future__ import annotations

import _socket  # the sockets below gevent's, see loadgen.wire.poller
import contextlib
import errno
import os
import socket as socket_names
import ssl
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from loadgen.errors import PlanError, TargetUnreachable
from loadgen.spec.target import Target
from loadgen.wire.poller import READ, WRITE

_PROBE_S = 3.0
_MAX_FILLS = 8  # reads from the kernel in a row without data: a server may send empty TLS records
_SO_TIMESTAMPNS = 35  # Linux: the number of the option and of the messages that the kernel then adds
_ANCILLARY_BYTES = 64
_LITTLE = 1 << 14
_TIMESPEC = struct.Struct("qq")


class ReadBuffer:
    """Shared by all connections of one process: the bytes just read, and how many there were in all.

    `takes_little`: so far no more than 16 KiB came at once, far below the size of a socket's buffer.
    """

    def __init__(self, size: int = 1 << 20) -> None:
        self.view = memoryview(bytearray(size))
        self.bytes_received = 0
        self.takes_little = True

    def received(self, count: int) -> None:
        """Count the bytes of one read."""
        self.bytes_received += count
        if count > _LITTLE:
            self.takes_little = False


class TcpStream(_socket.socket):
    """A TCP socket without Nagle's delay; `send` calls the kernel directly.

    Methods raise BlockingIOError if they would wait, OSError if it broke. After BlockingIOError, `send` wants the
    same bytes or more. `hides_data`: it may hold received bytes that the poller cannot see; read until it would
    wait. `place`: the number of its address, see `loadgen.wire.addresses`. `arrived_ns`: the time when the kernel
    received the last bytes read, in ns of the wall clock; 0 if unknown.
    """

    hides_data = False
    place = 0

    def __init__(self, family: int, address: tuple[Any, ...]) -> None:
        super().__init__(family, _socket.SOCK_STREAM)
        self.setblocking(False)
        self.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.arrived_ns = 0
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.setsockopt(_socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._connected = False
        try:
            self.connect(address)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            raise

    def connected(self) -> bool:
        """Continue connecting; True once data can be sent."""
        if self._connected:
            return True  # a later error must not hide what the server sent before it, such as a TLS alert
        error = self.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        with contextlib.suppress(OSError):
            self.getpeername()
            self._connected = True
        return self._connected

    def recv_into(self, buffer: memoryview, /) -> int:  # type: ignore[override] # accepts fewer arguments
        """Return the number of bytes read; 0 at the end of the stream."""
        count, notes, _, _ = self.recvmsg_into((buffer,), _ANCILLARY_BYTES)
        if notes and notes[0][1] == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2])
            self.arrived_ns = seconds * 1_000_000_000 + nanoseconds
        else:
            self.arrived_ns = 0
        return count

    def take_no_more(self) -> None:
        """Read only hidden bytes until the stream would wait: the poller sees the others, which are all here."""

    def wants(self) -> int:
        """Return the events that the stream itself waits for, if the caller has no bytes left to send."""
        return READ if self._connected else WRITE


class TlsStream:
    """TLS over a TCP stream, through memory buffers: TLS may have bytes to send after a call returns."""

    hides_data = True
    place = 0

    def __init__(self, tcp: TcpStream, context: ssl.SSLContext, host: str) -> None:
        self._tcp = tcp
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._unsent = b""
        self._taken = 0  # bytes from the caller that TLS has taken and the kernel has not completely taken
        self._chunk = memoryview(bytearray(1 << 18))
        self._ready = False
        self._takes_no_more = False
        self.fileno = tcp.fileno
        self.close = tcp.close

    def connected(self) -> bool:
        """See `TcpStream`."""
        if self._ready:
            return True
        if not self._tcp.connected():
            return False
        self._fill()
        try:
            self._tls.do_handshake()
            self._ready = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self._flush()
        return self._ready

    @property
    def arrived_ns(self) -> int:
        """See `TcpStream`."""
        return self._tcp.arrived_ns

    @property
    def protocol(self) -> str | None:
        """The protocol that both sides agreed on (ALPN), known once connected."""
        return self._tls.selected_alpn_protocol()

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """See `TcpStream`; takes at most 64 KiB at once, which count as taken when the kernel has all of them.

        Otherwise there would be no further call for the rest of the last ones.
        """
        if not self._flush():
            raise BlockingIOError
        if not self._taken:
            self._taken = self._tls.write(data[: 1 << 16])
            if not self._flush():
                raise BlockingIOError
        taken, self._taken = self._taken, 0
        return taken

    def recv_into(self, buffer: memoryview, /) -> int:
        """See `TcpStream`; may return fewer bytes than there are, so read until it would wait."""
        for _ in range(_MAX_FILLS):
            try:
                return int(self._tls.read(len(buffer), buffer))  # with a buffer, `read` returns a count
            except ssl.SSLWantReadError:
                if self._takes_no_more:
                    break
                if self._fill() == 0:
                    return 0
                self._flush()
            except ssl.SSLZeroReturnError:
                return 0
        self._takes_no_more = False
        raise BlockingIOError

    def take_no_more(self) -> None:
        """See `TcpStream`."""
        self._takes_no_more = True

    def wants(self) -> int:
        """See `TcpStream`."""
        return self._tcp.wants() | (WRITE if self._unsent or self._outgoing.pending else 0)

    def _fill(self) -> int:
        """Read from the kernel; returns -1 if nothing is there in the handshake, later raises BlockingIOError."""
        try:
            count = self._tcp.recv_into(self._chunk)
        except BlockingIOError:
            if self._ready:
                raise
            return -1
        if count == 0 and not self._ready:
            raise ConnectionResetError("closed in the middle of the TLS handshake")
        self._incoming.write(self._chunk[:count])
        return count

    def _flush(self) -> bool:
        """Give the kernel the bytes that TLS has ready; True if it took all of them."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = self._outgoing.read()
            try:
                count = self._tcp.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[count:]
        return True


Stream = TcpStream | TlsStream
"""The socket of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address to connect to, the server's name for TLS, and the TLS context if the target needs one."""

    family: int
    sockaddr: tuple[Any, ...]
    server_name: str
    context: ssl.SSLContext | None

    def open(self) -> Stream:
        """Return a stream that begins to connect. Raises OSError if it cannot begin."""
        tcp = TcpStream(self.family, self.sockaddr)
        return tcp if self.context is None else TlsStream(tcp, self.context, self.server_name)


def addresses_of(target: Target) -> list[Address]:
    """Resolve the target's name once; returns its first address that accepts a connection, else its first.

    The others of its family follow: they may be other replicas. Raises TargetUnreachable if the name is unknown.
    """
    try:
        found = socket_names.getaddrinfo(target.host, target.port, type=socket_names.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name of 64 letters without a dot is a UnicodeError
        raise TargetUnreachable(
            f"the name {target.host} is not known ({error}).\nCheck the address {target.url}."
        ) from error
    first = next((entry for entry in found if len(found) == 1 or _answers(entry)), found[0])
    context = tls_context(target) if target.is_tls else None
    name = target.server_name or target.host
    return [
        Address(family=first[0], sockaddr=sockaddr, server_name=name, context=context)
        for sockaddr in dict.fromkeys((first[4], *(entry[4] for entry in found if entry[0] == first[0])))
    ]


def _answers(entry: tuple[Any, ...]) -> bool:
    """True if a connection can be opened: `localhost` may have two addresses, with a server on one of them."""
    with socket_names.socket(entry[0], socket_names.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        return probe.connect_ex(entry[4]) == 0


def tls_context(target: Target) -> ssl.SSLContext:
    """Return a context that checks certificates as the target requires; for gRPC it offers HTTP/2 by ALPN.

    Raises TargetUnreachable if the target's CA file cannot be used, PlanError if its client certificate cannot.
    """
    try:
        context = ssl.create_default_context(cafile=target.ca_cert)
    except (OSError, ssl.SSLError) as error:
        raise TargetUnreachable(
            f"{target.ca_cert} is not a certificate file ({error}).\nGive a PEM file."
        ) from error
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if target.client_cert is not None:
        _load_client_pair(context, target.client_cert, target.client_key)
    if not target.is_http:
        context.set_alpn_protocols(["h2"])
    return context


def _load_client_pair(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(cert, key, _no_password)
    except OSError as error:
        reason = error.strerror
        if isinstance(error, ssl.SSLError):
            other = error.reason == "KEY_VALUES_MISMATCH"
            reason = "the key is that of another certificate" if other else "no certificate or no key in PEM"
        pair = f"--client-cert {cert}" + (f" with --client-key {key}" if key else "")
        raise PlanError(
            f"{pair} cannot be used: {reason}.\n"
            "Give a PEM certificate, and its key without a password in the same file or as --client-key."
        ) from error


def _no_password() -> NoReturn:
    raise OSError(errno.EACCES, "the key has a password")  # OpenSSL would ask for it on the terminal
