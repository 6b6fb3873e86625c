"""A password is found wherever a URL may hold one."""

import pytest

from search.secrets import has_password, hidden, without_userinfo

WITH = (
    "postgresql://me:s3cret@db:5432/optuna",
    "postgresql+psycopg://me:s3cret@db/optuna?sslmode=require",
    "postgresql://me:s3cret@x@[::1]/optuna",
    "postgresql://me:s3cret/x@db/optuna",
    "postgresql://db/optuna?user=me&password=s3cret",
    "http://me:s3cret@triton:8000",
)


@pytest.mark.parametrize("url", WITH)
def test_a_password_is_noticed_and_hidden(url):
    assert has_password(url)
    assert "s3cret" not in hidden(f"arguments: --storage {url} --study m")
    assert hidden(url).endswith(url.rpartition("@")[2][-7:] if "@" in url else "***")


@pytest.mark.parametrize(
    "url", ["postgresql://me@db/optuna", "sqlite:////tmp/a:b.db", "http://triton:8000", "m.onnx", "50ms"]
)
def test_what_holds_no_password_stays_as_it_is(url):
    assert not has_password(url)
    assert hidden(url) == url


def test_the_address_remains_without_the_user():
    assert without_userinfo("http://me:s3cret@triton:8000") == "http://triton:8000"
    assert without_userinfo("http://triton:8000") == "http://triton:8000"
