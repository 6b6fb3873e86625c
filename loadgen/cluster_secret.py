"""The secret that the master and the workers of one load test share, and the keys that are made from it."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "TRITUNE_CLUSTER_SECRET"
LEAST_CHARACTERS = 16
_MAKE_ONE = f"Set the same on every machine, made once: export {VARIABLE}=$(openssl rand -hex 32)"
_SALT = b"tritune load test 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKeys:
    """Private keys of Curve25519, 32 bytes each: the master's, and the one that all workers have."""

    master: bytes = field(repr=False)
    worker: bytes = field(repr=False)


def keys_from_secret(secret: bytes) -> ClusterKeys:
    """Both keys. Takes 16 MB and some 50 ms, so that a weak secret is slow to guess."""
    derived = hashlib.scrypt(secret, salt=_SALT, n=2**14, r=8, p=1, dklen=64)
    return ClusterKeys(master=derived[:32], worker=derived[32:])


def cluster_secret(host: str, environment: Mapping[str, str]) -> bytes:
    """The secret of a test whose master is at `host`.

    That in TRITUNE_CLUSTER_SECRET; for an address that only this machine reaches also the user's own, which is
    made when it is first needed. Raises BadInput.
    """
    given = environment.get(VARIABLE, "")
    if given:
        if len(given) < LEAST_CHARACTERS:
            raise BadInput(
                f"{VARIABLE} has {len(given)} characters, and fewer than {LEAST_CHARACTERS} can be guessed.",
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
    """True if every address that `host` resolves to is reached from this machine alone."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def own_secret(path: Path) -> bytes:
    """The secret in a file that only this user can read; the file is made where there is none. Raises BadInput."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _create(path)
        return _read(path)
    except OSError as error:
        raise BadInput(f"The secret in {path} cannot be used: {error.strerror}.", _MAKE_ONE) from error


def _create(path: Path) -> None:
    """Whole or not at all; whoever comes first wins."""
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
    if len(secret) < LEAST_CHARACTERS:
        raise BadInput(f"{path} holds {len(secret)} bytes, which is no secret.", f"rm {path}")
    return secret


def _own_file(environment: Mapping[str, str]) -> Path:
    """In the user's folder for state, as the XDG base directory specification has it."""
    base = environment.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise BadInput("This user has no home folder to keep a secret in.", _MAKE_ONE) from error
    return folder / "tritune" / "cluster-secret"
