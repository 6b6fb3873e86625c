"""Servers that ask for a client certificate, or whose certificate has another name than their address."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clusters import LOADTEST, master_command, workers
from fake_grpc import fake_grpc
from fake_triton import TLS_FOLDER, fake_triton
from machine import free_port

from loadgen.errors import TargetUnreachable
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target

pytestmark = pytest.mark.system

PLAN = LoadPlan(rate_per_s=100, duration_s=0.5, seed=1, timeout_s=60.0)
AUTHORITY, OWN, STRANGER = (TLS_FOLDER / name for name in ("localhost-ca.pem", "localhost.pem", "stranger.pem"))


@contextmanager
def server_at(scheme: str, *options: str) -> Iterator[str]:
    """A server with a certificate for `localhost`; yields its address, which is 127.0.0.1."""
    if scheme == "grpcs":
        with fake_grpc("--tls", *options) as url:
            yield url
    else:
        with fake_triton("--tls", *options, scheme="https") as server:
            yield server.url


def target(url: str, **others: Any) -> Target:
    return Target(url=url, model_name="delay", ca_cert=AUTHORITY, **others)


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_the_name_in_the_certificate_may_be_another_than_the_address(
    generator: LoadGenerator, scheme: str
) -> None:
    with server_at(scheme) as url:
        assert not generator.run(target(url, server_name="localhost"), PLAN).log.failed.any()
        by_name = url.replace("127.0.0.1", "localhost")
        with pytest.raises(TargetUnreachable, match=r"not accepted: .*elsewhere.example(.|\n)*--server-name"):
            generator.run(target(by_name, server_name="elsewhere.example"), PLAN)


@pytest.mark.parametrize(
    ("scheme", "options", "alerts"),
    [
        ("https", (), ("certificate required", "unknown ca")),
        ("https", ("--tls-1-2",), ("handshake failure", "unknown ca")),
        ("grpcs", (), ("closed", "closed")),  # gRPC's server sends no alert
    ],
)
def test_a_server_that_asks_for_a_certificate_gets_it_and_its_alert_is_reported(
    generator: LoadGenerator, scheme: str, options: tuple[str, ...], alerts: tuple[str, str]
) -> None:
    with server_at(scheme, "--mutual", *options) as url:
        for pair in ({"client_cert": OWN}, {"client_cert": AUTHORITY, "client_key": OWN}):
            assert not generator.run(target(url, server_name="localhost", **pair), PLAN).log.failed.any()
        for cert, alert in zip((None, STRANGER), alerts, strict=True):
            with pytest.raises(TargetUnreachable, match=rf": .*{alert}.*\n.*--client-cert"):
                generator.run(target(url, server_name="localhost", client_cert=cert), PLAN)


def test_a_pair_that_cannot_be_used_ends_the_command_in_two_lines() -> None:
    command = [*LOADTEST, "https://127.0.0.1:9", "--model", "delay", "--rate", "1", "--client-cert", str(OWN)]
    key = TLS_FOLDER / "stranger-encrypted-key.pem"
    done = subprocess.run(
        [*command, "--client-key", str(key)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: --client-cert {OWN} with --client-key {key} cannot be used: the key has a password.",
        "       Give a PEM certificate, and its key without a password in the same file or as --client-key.",
    ]


@pytest.mark.long
@pytest.mark.parametrize("own", [OWN, None])
def test_each_worker_has_its_own_certificate(own: Path | None) -> None:
    port = free_port()
    options = ("--rate", "100", "--duration", "1s", "--warmup", "0s", "--max-send-lag", "30s")
    with server_at("https", "--mutual") as url:
        rights = () if own is None else (url, "--client-cert", str(own))
        with workers(port, rights):
            done = subprocess.run(
                master_command(
                    url,
                    port,
                    *options,
                    *("--ca-cert", str(AUTHORITY), "--server-name", "localhost", "--client-cert", str(OWN)),
                    workers=1,
                ),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
    assert done.returncode == (2 if own is None else 0), done.stderr
    assert ("its own --client-cert" in done.stderr) == (own is None)
