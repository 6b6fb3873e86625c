"""What each address of a name took of a run."""

import numpy as np
import pytest

from loadgen.measurement.addresses import AddressUse, address_remarks, histograms_of, uses_of


def use(address: str, requests: int, p99_ms: float | None, failures: int = 0) -> AddressUse:
    return AddressUse(address=address, requests=requests, failures=failures, latency_p99_ms=p99_ms)


def test_shares_failures_and_p99_of_several_processes_add_up() -> None:
    def shard(first_ms: int) -> dict[str, list[tuple[int, int]]]:
        latency = np.repeat([first_ms, 80], 500) * 1_000_000
        failed = np.zeros(1000, bool)
        failed[:2] = True
        return histograms_of(latency, failed, bytearray([1] * 500 + [2] * 500), ["a", "b", "c"])

    a, b, c = uses_of([shard(2), shard(4)])
    assert (a.address, a.requests, a.failures) == ("a", 1000, 4)
    assert a.latency_p99_ms == pytest.approx(4, rel=0.01)
    assert (b.requests, b.latency_p99_ms) == (1000, pytest.approx(80, rel=0.01))
    assert c == use("c", 0, None)
    assert uses_of([{}, {}]) == ()


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        ([use("a", 500, 2.0), use("b", 500, 2.2)], ""),
        ([use("a", 500, 2.0), use("b", 500, 80.0)], "b took 50%, p99 80 ms"),
        ([use("a", 500, 2.0), use("b", 500, None, failures=30)], "b took 50%, p99 its failures, 30 failed"),
        ([use("a", 500, 2.0), use("b", 0, None)], "b took no request"),
        ([use("a", 5, 2.0), use("b", 6, 9.0)], ""),
    ],
)
def test_addresses_are_named_if_they_differ(uses: list[AddressUse], said: str) -> None:
    found = " ".join(address_remarks(uses))
    assert said in found
    assert bool(found) == bool(said)
