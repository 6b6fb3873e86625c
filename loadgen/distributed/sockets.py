"""Encrypted connections between Locust's master and workers, by ZeroMQ's CURVE.

A worker knows the master's public key, the master knows the workers', and both keys come from the secret of the
test. A peer without it gets no data from us, and none of its data is read.
"""

from __future__ import annotations

import hmac
from types import SimpleNamespace
from typing import Any

import zmq
from zmq.utils import z85

from loadgen.distributed.secret import keys_from_secret

Options = dict[int, Any]

_HANDSHAKE_MS = 3_000
_DOMAIN = b"tritune"
_MESSAGE_BYTES_MAX = 2_000_000  # what a peer without a key can make us take


def master_options(secret: bytes) -> Options:
    """Return ZeroMQ's options of a socket that listens to workers with the secret."""
    options = _pair(keys_from_secret(secret)[0])
    return options | {zmq.CURVE_SERVER: 1, zmq.ZAP_DOMAIN: _DOMAIN, zmq.ZAP_ENFORCE_DOMAIN: 1}


def worker_options(secret: bytes) -> Options:
    """Return ZeroMQ's options of a socket for a master with the secret."""
    master, worker = keys_from_secret(secret)
    return _pair(worker) | {zmq.CURVE_SERVERKEY: _public(master)}


def _pair(key: bytes) -> Options:
    pair: Options = {zmq.CURVE_SECRETKEY: z85.encode(key), zmq.CURVE_PUBLICKEY: _public(key)}
    return pair | {zmq.HANDSHAKE_IVL: _HANDSHAKE_MS, zmq.MAXMSGSIZE: _MESSAGE_BYTES_MAX}


def _public(key: bytes) -> bytes:
    return zmq.curve_public(z85.encode(key))


def encrypt_locust(options: Options, secret: bytes) -> None:
    """Let the sockets that Locust makes in this process have the options; it has no parameter for them.

    Those that listen take only peers that have the workers' key.
    """
    import gevent
    from locust.rpc import zmqrpc
    from zmq import green

    context = green.Context()

    def encrypted(kind: int) -> Any:
        made = context.socket(kind)
        for option, value in options.items():
            made.setsockopt(option, value)
        return made

    gevent.spawn(_admit, context, z85.decode(_public(keys_from_secret(secret)[1])))
    gevent.sleep(0)
    module: Any = zmqrpc
    module.zmq = SimpleNamespace(**{**vars(green), "Context": lambda: SimpleNamespace(socket=encrypted)})


def _admit(context: Any, worker: bytes) -> None:
    """Answer ZeroMQ's questions about peers (RFC 27)."""
    with context.socket(zmq.REP) as door:
        door.linger = 0
        door.bind("inproc://zeromq.zap.01")
        while True:
            version, number, _, _, _, mechanism, *credentials = door.recv_multipart()
            known = mechanism == b"CURVE" and hmac.compare_digest(credentials[0], worker)
            status = (b"200", b"OK") if known else (b"400", b"unknown key")
            door.send_multipart([version, number, *status, b"", b""])
