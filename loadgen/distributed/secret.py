"""The secret that master and workers of a load test share, and the keys that are made from it."""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from loadgen.errors import BadInput

VARIABLE = "TRITUNE_CLUSTER_SECRET"
CHARACTERS_MIN = 16
_MAKE_ONE = f"Set the same on every machine, made once: export {VARIABLE}=$(openssl rand -hex 32)"
_SALT = b"tritune load test 1"


def keys_from_secret(secret: bytes) -> tuple[bytes, bytes]:
    """Return private keys of Curve25519, 32 bytes each: the master's, and the one that all workers have.

    This takes 16 MB and about 50 ms, so that a weak secret is slow to guess.
    """
    derived = hashlib.scrypt(secret, salt=_SALT, n=2**14, r=8, p=1, dklen=64)
    return derived[:32], derived[32:]


def cluster_secret(host: str, environment: Mapping[str, str]) -> bytes:
    """Return the secret of a test whose master is at `host`.

    It is the one in TRITUNE_CLUSTER_SECRET. For an address that only this machine reaches it can also be the
    user's own, which is made when it is first needed. Raises BadInput.
    """
    given = environment.get(VARIABLE, "")
    if given:
        if len(given) < CHARACTERS_MIN:
            raise BadInput(
                f"{VARIABLE} has {len(given)} characters, and fewer than {CHARACTERS_MIN} can be guessed.",
                _MAKE_ONE,
            )
        return given.encode(errors="surrogateescape")
    if not is_loopback(host):
        raise BadInput(
            f"Other machines can reach a master on {host}, and {VARIABLE} is not set: it decides who may join.",
            _MAKE_ONE,
        )
    return own_secret(_own_file(environment))


def is_loopback(host: str) -> bool:
    """True if only this machine can reach each address that `host` resolves to."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def own_secret(path: Path) -> bytes:
    """Return the secret in a file that only this user can read; the first process makes it. Raises BadInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            status = os.fstat(handle)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise BadInput(
                    f"Other users can read or write {path}, which holds the secret of load tests.", f"rm {path}"
                )
            secret = file.read(1024)
            if not secret:
                secret = secrets.token_hex(32).encode()
                file.write(secret)
    except OSError as error:
        raise BadInput(f"The secret in {path} cannot be used: {error.strerror}.", _MAKE_ONE) from error
    if len(secret) < CHARACTERS_MIN:
        raise BadInput(f"{path} holds {len(secret)} bytes, which is not a secret.", f"rm {path}")
    return secret


def _own_file(environment: Mapping[str, str]) -> Path:
    """Return a path in the user's folder for state, by the XDG base directory specification."""
    base = Path(environment.get("XDG_STATE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".local" / "state") / "tritune" / "cluster-secret"
    except RuntimeError as error:
        raise BadInput("This user has no home folder for a secret.", _MAKE_ONE) from error
