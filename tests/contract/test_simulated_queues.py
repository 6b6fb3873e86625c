"""The fast queue is the plain one: same arrivals, same times."""

from typing import Any

import fast_queue
import numpy as np
import plain_queue
import pytest
from numpy.typing import NDArray


def drawn_server(seed: int) -> tuple[np.random.Generator, NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    max_batch, instances = int(rng.integers(1, 10)), int(rng.integers(1, 5))
    sizes, busy = np.arange(max_batch + 1), np.arange(instances + 1)
    service_s = (rng.uniform(5e-4, 0.01) + rng.uniform(0, 0.003) * sizes)[:, None]
    service_s = service_s * np.maximum(busy, 1)[None, :] ** rng.uniform(0, 1)
    return rng, service_s, rng.uniform(0.6, 1.6, int(rng.integers(1, 6)))


@pytest.mark.parametrize("seed", range(40))
def test_open_loop(seed: int) -> None:
    rng, service_s, noise = drawn_server(seed)
    rate = rng.uniform(0.3, 1.3) * (service_s.shape[0] - 1) * (service_s.shape[1] - 1) / service_s[-1, -1]
    arrivals_s = np.cumsum(rng.exponential(1 / rate, 300))
    given: dict[str, Any] = {
        "service_s": service_s,
        "noise": noise,
        "delay_s": float(rng.choice([0.0, 0.001, 0.01])),
    }
    plain = plain_queue.batched_queue(arrivals_s, **given)
    fast = fast_queue.batched_queue(arrivals_s, **given)
    assert (plain == fast).all()
    limit_s = float(np.quantile(plain - arrivals_s, 0.9)) + 1e-9
    counted: dict[str, Any] = {"limit_s": limit_s, "counted_from": 50}
    late = int(np.sum((plain - arrivals_s)[50:] > limit_s))
    assert fast_queue.late_requests(arrivals_s, **given, **counted, at_most=300) == late
    assert fast_queue.late_requests(arrivals_s, **given, **counted, at_most=3) > 3 or late <= 3


@pytest.mark.parametrize("seed", range(40))
def test_closed_loop(seed: int) -> None:
    rng, service_s, noise = drawn_server(100 + seed)
    users = int(rng.integers(1, 30))
    given = {"service_s": service_s, "noise": noise, "pauses_s": rng.uniform(0, 3e-4, 17)}
    plain = plain_queue.closed_loop(users, 0.5, **given)
    fast = fast_queue.closed_loop(users, 0.5, **given)
    assert (plain[0] == fast[0]).all()
    assert (plain[1] == fast[1]).all()
    assert plain[2] == fast[2]
