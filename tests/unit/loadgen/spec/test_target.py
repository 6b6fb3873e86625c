from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BadInput, PlanError, TargetRefused
from loadgen.spec.target import (
    Target,
    errors_without_secrets,
    headers_from_options,
    http_head,
    stranger_text,
    without_secrets,
)


def test_headers_come_from_options_and_from_the_environment() -> None:
    found = headers_from_options(["X-Team: a: b "], ["Authorization=TOKEN"], {"TOKEN": "Bearer s3cret"})
    assert found == (("X-Team", "a: b"), ("Authorization", "Bearer s3cret"))


@pytest.mark.parametrize(
    ("headers", "from_environment"),
    [
        (["s3cret"], []),
        ([": s3cret"], []),
        ([], ["Authorization"]),
        ([], ["=TOKEN"]),
        ([], ["Authorization=ABSENT"]),
        ([], ["Authorization=EMPTY"]),
        (["Content-Length: s3cret"], []),
    ],
)
def test_what_is_no_header_is_refused_and_no_value_is_shown(
    headers: list[str], from_environment: list[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        headers_from_options(headers, from_environment, {"TOKEN": "s3cret", "EMPTY": ""})
    assert "s3cret" not in str(caught.value)


def test_a_secret_that_the_server_echoes_is_struck_out() -> None:
    headers = (("Authorization", "Bearer s3cret-token"), ("X-Flag", "on"))
    echoed = 'http 401: {"error": "token s3cret-token is on the list", "header": "Bearer s3cret-token"}'
    cleaned = without_secrets(echoed, headers)
    assert "s3cret" not in cleaned
    assert "is on the list" in cleaned  # short values are words of the language, not secrets


@pytest.mark.parametrize(
    ("value", "echo"),
    [
        ('Key "s3cret"', '{"error": "Key \\"s3cret\\" is not known"}'),
        ("Bearer s3cret/+=", "http://login?token=s3cret%2F%2B%3D"),
        ("Basic bWU6czNjcmV0", "no user me with the password s3cret"),
    ],
)
def test_it_is_struck_out_in_other_spellings(value: str, echo: str) -> None:
    assert "s3cret" not in without_secrets(echo, (("Authorization", value),))


def test_an_error_that_quotes_the_server_is_the_same_error_without_the_secret() -> None:
    headers = (("Authorization", "Bearer s3cret-token"),)
    with pytest.raises(TargetRefused) as caught, errors_without_secrets(headers):
        raise TargetRefused("m did not answer: http 401: s3cret-token is not known.\nCheck it.")
    assert str(caught.value) == "m did not answer: http 401: *** is not known.\nCheck it."
    assert caught.value.__suppress_context__


def test_a_query_travels_with_each_request_and_of_its_values_the_api_version_alone_is_shown() -> None:
    target = Target(url="https://a/x", query="api-version=2024-10-21&code=s3cr%2Bet&t0ken", model_name="m")
    line = http_head(target, "POST /x/y", []).decode().partition("\r\n")[0]
    assert line == "POST /x/y?api-version=2024-10-21&code=s3cr%2Bet&t0ken HTTP/1.1"
    assert target.shown == "https://a/x?api-version=2024-10-21&***&***"
    echo = f"{line}: 2024-10-21 does not take s3cr+et or t0ken"
    shown = stranger_text(echo, target.secrets)
    assert shown == "POST /x/y?api-version=2024-10-21&code=***&*** HTTP/1.1: 2024-10-21 does not take *** or ***"
    assert "t0ken" not in repr(target)


@pytest.mark.parametrize("name", ["a.example", "A-1.b_c", "localhost", "10.0.0.1", "::1", "münchen.example"])
def test_a_server_name_changes_no_host_header(name: str) -> None:
    assert Target(url="https://10.0.0.2:8443", model_name="m", server_name=name).authority == "10.0.0.2:8443"


@pytest.mark.parametrize(
    "name",
    ["", ".", "a.example:443", "https://a.example", "a b", ".a", "a..b", "a/b", "a\n", "\0", "x" * 64, "\ud800"],
)
def test_what_is_no_server_name_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match="--server-name") as caught:
        Target(url="https://10.0.0.2:8443", model_name="m", server_name=name)
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize(
    ("url", "others", "named"),
    [
        ("http://a", {"client_cert": Path("c.pem")}, "not encrypted"),
        ("grpc://a", {"server_name": "b"}, "not encrypted"),
        ("https://a", {"client_key": Path("k.pem")}, "--client-cert"),
    ],
)
def test_certificates_without_tls_and_a_key_alone_are_refused(
    url: str, others: dict[str, Any], named: str
) -> None:
    with pytest.raises(PlanError, match=named):
        Target(url=url, model_name="m", **others)
