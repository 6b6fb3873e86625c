import math

from hypothesis import assume, given
from hypothesis import strategies as st

from search.cost.cost import Machine, cost_per_million_inferences_usd, price_for, replicas

RATES = st.floats(1e-3, 1e6)
PRICES = st.floats(1e-3, 1e3)


@given(rate=RATES, price=PRICES)
def test_a_million_inferences_cost_the_time_they_take(rate: float, price: float) -> None:
    hours = 1e6 / rate / 3600
    assert math.isclose(cost_per_million_inferences_usd(price, rate), price * hours, rel_tol=1e-9)


@given(rate=RATES, certified=RATES, headroom=st.floats(0, 0.9))
def test_replicas_are_enough_and_one_less_is_not(rate: float, certified: float, headroom: float) -> None:
    assume(rate / certified < 1e6)
    count = replicas(rate, certified, headroom=headroom)
    usable = certified * (1 - headroom)
    assert count >= 1
    assert count * usable >= rate * (1 - 1e-6)
    assert count == 1 or (count - 1) * usable < rate


@given(vcpus=st.integers(1, 512), memory_gib=st.floats(0.5, 4096))
def test_every_machine_without_gpu_has_a_price(vcpus: int, memory_gib: float) -> None:
    price = price_for(Machine(vcpus=vcpus, memory_bytes=int(memory_gib * 2**30)))
    assert 0 < price.usd_per_hour < 100 * vcpus
    assert price.as_of
    assert price.source.startswith("https://")
