"""The key of shared memory goes to the server whose owner left it, and to no other."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_stub import answering

from loadgen.sending import shared_memory
from loadgen.sending.shared_memory import HEADER, with_memory_key
from loadgen.spec.target import Target

NAME = "tritune-0123456789ab"


@contextmanager
def server_named(name: object, status: int = 200) -> Iterator[Target]:
    with answering(lambda *_: (status, json.dumps({"name": name}).encode())) as port:
        yield Target(url=f"http://127.0.0.1:{port}", model_name="m", headers=(("a", "b"),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "SHARED", tmp_path)
    return tmp_path


def test_the_key_joins_the_headers_and_no_repr(folder: Path) -> None:
    (folder / f"{NAME}-memory-key").write_text("s3cret")
    with server_named(NAME) as target:
        found = with_memory_key(target)
    assert found.headers == (("a", "b"), (HEADER, "s3cret"))
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize("name", ["triton", None, 3, "", f"{NAME}\n", f"../{NAME}", f"{NAME}/x", "tritune-XYZ"])
def test_a_server_of_another_name_gets_none(folder: Path, name: object) -> None:
    (folder / f"{NAME}-memory-key").write_text("s3cret")
    with server_named(name) as target:
        assert with_memory_key(target) == target


def test_no_key_no_server_and_a_refusal_leave_the_target_as_it_is(folder: Path) -> None:
    with server_named(NAME) as target:
        assert with_memory_key(target) == target
    assert with_memory_key(target) == target
    with server_named(NAME, status=403) as target:
        (folder / f"{NAME}-memory-key").write_text("s3cret")
        assert with_memory_key(target) == target


def test_what_is_no_file_is_no_key(folder: Path) -> None:
    with server_named(NAME) as target:
        os.mkfifo(folder / f"{NAME}-memory-key")
        assert with_memory_key(target) == target


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_key_of_another_user_is_not_taken(folder: Path) -> None:
    path = folder / f"{NAME}-memory-key"
    path.write_text("theirs")
    os.chown(path, 65534, 65534)
    with server_named(NAME) as target:
        assert with_memory_key(target) == target
        ours = path.replace(folder / "ours")
        os.chown(ours, 0, 0)
        path.symlink_to(ours)
        os.chown(path, 65534, 65534, follow_symlinks=False)
        assert with_memory_key(target) == target
