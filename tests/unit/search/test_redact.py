"""No part of a URL that may be a password is shown, in whatever form it was written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.redact import has_password, is_storage_url, shown_arguments, shown_storage

SECRET = "s3cret"
WITH = (
    "postgresql://me:s3cret@db:5432/optuna",
    "postgresql+psycopg://me:s3cret@db/optuna?sslmode=require",
    "postgresql://me:s3cret/x@db/optuna",
    "postgresql://db/optuna?user=me&password=s3cret",
    "postgresql://db/optuna?token=s3cret",
    "postgresql:///optuna?host=/tmp&passfile=s3cret",
    "postgresql://me:s3cret@/optuna?host=/tmp",
    "postgresql://me:x%20s3cret@db/optuna",
    "postgresql://:s3cret@db/optuna",
)
ODD = (
    "postgresql://me:s3cret@x@[::1]/optuna",
    "postgresql:me:s3cret@db/optuna",
    "postgresql:/me:s3cret@db/optuna",
    "host=db user=me password=s3cret",
    "host=db,user=me,password=s3cret",
    "postgresql://host=db password=s3cret",
    "postgresql://host=db&password=s3cret",
    "postgresql://db/dbname=x;password=s3cret",
    "postgresql://db/optuna password=s3cret",
    "postgresql://db/optuna password = 's3cret'",
    "me:s3cret@db/optuna",
    "//me:s3cret@db/optuna",
    "postgresql://me:1/s3cret@x@db/optuna",
    "s3cret",
    "postgresql://db:s3cret/optuna",
    "postgresql://db/opt\ns3cret",
)
WITHOUT = ("postgresql://db/optuna", "postgresql:///optuna?host=/tmp", "sqlite:////tmp/a:b c.db", "sqlite:///x.db")


@pytest.mark.parametrize("url", [*WITH, *ODD])
def test_a_password_is_noticed_and_shown_nowhere(url: str) -> None:
    assert has_password(url)
    assert SECRET not in shown_storage(url)


@pytest.mark.parametrize("url", ODD)
def test_what_cannot_be_parsed_is_no_storage(url: str) -> None:
    assert not is_storage_url(url)


@pytest.mark.parametrize("url", WITH)
def test_what_can_be_parsed_is_told_by_its_host_and_database(url: str) -> None:
    assert is_storage_url(url)
    assert shown_storage(url).split("?")[0].endswith("/optuna")


@pytest.mark.parametrize("url", WITHOUT)
def test_what_holds_no_password_is_shown(url: str) -> None:
    assert is_storage_url(url)
    assert not has_password(url)
    assert shown_storage(url) == url.partition("?")[0]


def test_a_user_alone_may_stand_among_the_arguments_and_is_not_shown_either() -> None:
    """It may be a token."""
    assert not has_password("postgresql://s3cret@db/optuna")
    assert shown_storage("postgresql://s3cret@db/optuna") == "postgresql://db/optuna"


def test_other_arguments_are_logged_as_they_were_given() -> None:
    arguments = ["--model", "m.onnx", "--p99=50ms", "--output", "runs/a b", "--server-url", "http://triton:8000"]
    assert list(shown_arguments(arguments)) == arguments
    urls = ["--storage", "postgresql://s3cret@db/optuna", "--storage=postgresql://me:s3cret@db/optuna?x=s3cret"]
    odd = [
        *urls,
        "--server-url=http://me:s3cret@triton:8000",
        "--server-url",
        "me:s3cret@triton",
        "password=s3cret",
    ]
    assert SECRET not in " ".join(shown_arguments(odd))


@given(
    st.text("abAB01:/@?#=&%+ [];,.'\"\\\n", max_size=12),
    st.text("abAB01:/@?#=&%+ [];,.'\"\\\n", max_size=12),
    st.sampled_from(["postgresql://", "postgresql:", "mysql+pymysql://", "", "//", "host="]),
)
def test_a_secret_behind_an_at_sign_or_a_word_is_never_shown(before: str, after: str, scheme: Any) -> None:
    for url in (f"{scheme}{before}:s3cret{after}@db/x", f"{scheme}{before} password=s3cret{after}"):
        assert SECRET not in shown_storage(url)
