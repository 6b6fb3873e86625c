"""Which secret a load test of several machines has."""

import os
import threading
from pathlib import Path

import pytest

from loadgen.distributed.secret import VARIABLE, cluster_secret, is_loopback, keys_from_secret, own_secret
from loadgen.errors import BadInput


@pytest.mark.parametrize(
    ("host", "only_from_here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("*", False),
        ("192.0.2.1", False),
        ("", False),
        ("no such name", False),
    ],
)
def test_only_addresses_that_stay_on_this_machine_are_loopback(host: str, only_from_here: bool) -> None:
    assert is_loopback(host) is only_from_here


def test_a_given_secret_is_taken_everywhere(tmp_path: Path) -> None:
    environment = {VARIABLE: "0123456789abcdef", "XDG_STATE_HOME": str(tmp_path)}
    assert cluster_secret("192.0.2.1", environment) == b"0123456789abcdef"
    assert cluster_secret("127.0.0.1", environment) == b"0123456789abcdef"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("secret", ["", "fifteen letters"])
def test_an_address_that_others_can_reach_needs_a_long_secret(secret: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=VARIABLE) as raised:
        cluster_secret("*", {VARIABLE: secret, "XDG_STATE_HOME": str(tmp_path)})
    assert raised.value.exit_code == 2
    assert not secret or secret not in str(raised.value)


def test_the_own_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    first = cluster_secret("localhost", environment)
    assert first == cluster_secret("127.0.0.1", environment)
    assert len(first) == 64
    (file,) = (tmp_path / "tritune").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_processes_that_need_it_at_once_agree(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(own_secret(tmp_path / "a" / "secret"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    own_secret(file)
    file.chmod(mode)
    with pytest.raises(BadInput, match=r"Other users"):
        own_secret(file)


def test_a_link_somebody_placed_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("x" * 32)
    real.chmod(0o600)
    (tmp_path / "secret").symlink_to(real)
    with pytest.raises(BadInput, match=r"cannot be used"):
        own_secret(tmp_path / "secret")


def test_a_short_file_is_no_secret(tmp_path: Path) -> None:
    with os.fdopen(os.open(tmp_path / "secret", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write("half a secret")
    with pytest.raises(BadInput, match=r"not a secret"):
        own_secret(tmp_path / "secret")


def test_a_folder_that_cannot_be_written_is_two_lines(tmp_path: Path) -> None:
    (tmp_path / "tritune").write_text("a file where a folder should be")
    with pytest.raises(BadInput, match=VARIABLE):
        cluster_secret("127.0.0.1", {"XDG_STATE_HOME": str(tmp_path)})


def test_different_secrets_have_different_keys() -> None:
    one, other = keys_from_secret(b"a" * 16), keys_from_secret(b"b" * 16)
    assert len({*one, *other}) == 4
    assert one == keys_from_secret(b"a" * 16)
