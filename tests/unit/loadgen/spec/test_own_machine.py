import pytest

from loadgen.spec.addresses import is_on_this_machine


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.5.5.5", "0.0.0.0"])  # noqa: S104
def test_loopback_is_this_machine(host: str) -> None:
    assert is_on_this_machine(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "203.0.113.9", "no-such-name.invalid", "", "a" * 300])
def test_documentation_addresses_and_unknown_names_are_not(host: str) -> None:
    assert not is_on_this_machine(host)
