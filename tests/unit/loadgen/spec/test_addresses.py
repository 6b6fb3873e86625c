"""Addresses in messages: no part of them that may be a password."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import PlanError
from loadgen.spec.addresses import NOT_SHOWN, plain_address, shown_address
from loadgen.spec.target import Target

ODD = (
    "http://me:s3cret@host:8000",
    "http:me:s3cret@host:8000",
    "http:/me:s3cret@host:8000",
    "me:s3cret@host:8000",
    "http://me:s3cret/x@host:8000",
    "http://me:1/s3cret@host:8000",
    "http://me:s3cret?x@host:8000",
    "http://me:1?s3cret@host:8000",
    "http://me:1#s3cret@host:8000",
    "http://s3cret@host:8000",
    "http://host:8000?token=s3cret",
    "http://host:8000/#s3cret",
    "http://host:s3cret",
    "http://me:s3 s3cret@host",
    "ftp://me:s3cret@host",
    "grpc://host/x?s3cret",
    "s3cret",
)


@pytest.mark.parametrize("url", ODD)
def test_no_refusal_repeats_a_password(url: str) -> None:
    with pytest.raises(PlanError) as caught:
        Target(url=url, model_name="m")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in shown_address(url)
    with pytest.raises(PlanError) as caught:
        Target(url="http://host", model_name="m", metrics_url=f"x{url}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://triton:8000", "http://triton:8000"),
        ("https://[::1]:8443/models/a", "https://[::1]:8443/models/a"),
        ("localhost:8000", "localhost:8000"),
        ("http://me:x@triton:8000/v2?a=1", "http://***@triton:8000/v2?***"),
        ("http://", NOT_SHOWN),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert shown_address(url) == shown


@given(
    st.text("ab01:/@?#=&%+ [];,.\\\n", max_size=12),
    st.text("ab01:/@?#=&%+ [];,.\\\n", max_size=12),
    st.sampled_from(["http://", "grpc://", "http:", "", "//", "https:/"]),
)
def test_what_stands_before_an_at_sign_is_never_shown(before: str, after: str, scheme: Any) -> None:
    url = f"{scheme}{before}:s3cret{after}@host"
    assert "s3cret" not in shown_address(url)
    assert "s3cret" not in (plain_address(url) or "")
