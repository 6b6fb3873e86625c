"""The secret that master and workers of a load test share, and the keys that are made from it."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.errors import BadInput

VARIABLE = "TRITUNE_CLUSTER_SECRET"
CHARACTERS_MIN = 16
_MAKE_ONE = f"Set the same on every machine, made once: export {VARIABLE}=$(openssl rand -hex 32)"
_SALT = b"tritune load test 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKeys:
    """Private keys of Curve25519, 32 bytes each: the master's, and the one that all workers have."""

    master: bytes = field(repr=False)
    worker: bytes = field(repr=False)


def keys_from_secret(secret: bytes) -> ClusterKeys:
    """Return both keys. This takes 16 MB and about 50 ms, so that a weak secret is slow to guess."""
    derived = hashlib.scrypt(secret, salt=_SALT, n=2**14, r=8, p=1, dklen=64)
    return ClusterKeys(master=derived[:32], worker=derived[32:])


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
    """Return the secret in a file that only this user can read; make the file if needed. Raises BadInput."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _create(path)
        return _read(path)
    except OSError as error:
        raise BadInput(f"The secret in {path} cannot be used: {error.strerror}.", _MAKE_ONE) from error


def _create(path: Path) -> None:
    """Write a secret, whole or not at all; of two processes the first one's stays."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
        file.write(secrets.token_hex(32).encode())
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)


def _read(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise BadInput(
                f"Other users can read or write {path}, which holds the secret of load tests.", f"rm {path}"
            )
        secret = file.read(1024)
    if len(secret) < CHARACTERS_MIN:
        raise BadInput(f"{path} holds {len(secret)} bytes, which is not a secret.", f"rm {path}")
    return secret


def _own_file(environment: Mapping[str, str]) -> Path:
    """Return a path in the user's folder for state, by the XDG base directory specification."""
    base = environment.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise BadInput("This user has no home folder for a secret.", _MAKE_ONE) from error
    return folder / "tritune" / "cluster-secret"
