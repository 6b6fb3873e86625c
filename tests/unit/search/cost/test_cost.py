import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BadInput
from search.cost.cost import (
    Machine,
    cost_per_million_inferences_usd,
    energy_kwh_per_million_inferences,
    price_for,
    read_prices,
    replicas,
)

GIB = 2**30


def entry(**changes: str | float) -> dict[Any, Any]:
    values = {
        "provider": "Acme",
        "instance": "small",
        "region": "moon-1",
        "usd_per_hour": 0.2,
        "vcpus": 4,
        "memory_gib": 16,
        "as_of": "2025-01-02",
        "source": "https://acme.example/prices",
    }
    return values | changes


@pytest.fixture
def prices(tmp_path: Path) -> Callable[..., Path]:
    """Writes a price file of the given entries."""

    def write(*entries: Any, **changes: Any) -> Path:
        path = tmp_path / "prices.json"
        path.write_text(json.dumps({"schema_version": 1, "instances": list(entries)} | changes))
        return path

    return write


def machine(vcpus: int = 4, memory_gib: float = 16.0, **more: Any) -> Machine:
    return Machine(vcpus=vcpus, memory_bytes=int(memory_gib * GIB), **more)


def test_a_given_price_comes_first(prices: Any) -> None:
    price = price_for(machine(), price_file=prices(entry()), per_hour=3.5)
    assert (price.usd_per_hour, price.source, price.as_of) == (3.5, "--price-per-hour", "")
    assert (price.term, price.other_terms_usd_per_hour) == (None, {})


def test_the_named_instance_type_wins(prices: Any) -> None:
    path = prices(entry(), entry(instance="big", usd_per_hour=9.0, vcpus=64))
    price = price_for(machine(instance_type="big"), price_file=path)
    assert price.usd_per_hour == 9.0
    assert (price.source, price.as_of) == ("https://acme.example/prices", "2025-01-02")
    assert price.describes == "Acme big in moon-1 (64 vCPU, 16 GiB), on demand"


def test_the_cheapest_of_the_same_size(prices: Any) -> None:
    path = prices(
        entry(usd_per_hour=0.3),
        entry(usd_per_hour=0.2, instance="cheap"),
        entry(usd_per_hour=0.1, vcpus=2),
        entry(usd_per_hour=0.1, vcpus=8),
    )
    price = price_for(machine(memory_gib=15.3), price_file=path)  # 16 GiB as the system reports them
    assert price.usd_per_hour == 0.2
    assert "cheap" in price.describes


def test_other_sizes_are_scaled_per_vcpu_and_say_so(prices: Any) -> None:
    path = prices(entry(), entry(instance="fat", memory_gib=64, usd_per_hour=0.5))
    price = price_for(machine(vcpus=6, memory_gib=24), price_file=path)
    assert price.usd_per_hour == pytest.approx(0.2 * 6 / 4)
    assert "scaled per vCPU from Acme small" in price.describes
    assert "fat" in price_for(machine(vcpus=6, memory_gib=90), price_file=path).describes


def test_the_wanted_term_is_priced_and_the_others_are_kept(prices: Any) -> None:
    path = prices(
        entry(instance="a", one_year_usd_per_hour=0.15),
        entry(
            instance="b",
            usd_per_hour=0.3,
            one_year_usd_per_hour=0.12,
            spot_usd_per_hour=0.05,
            terms_as_of="2025-03-04",
            terms_source="https://acme.example/committed",
        ),
    )
    price = price_for(machine(), price_file=path, term="1-year")
    assert (price.usd_per_hour, price.term) == (0.12, "1-year")
    assert (price.as_of, price.source) == ("2025-03-04", "https://acme.example/committed")
    assert price.other_terms_usd_per_hour == {"on-demand": 0.3, "spot": 0.05}
    assert price.describes.endswith("Acme b in moon-1 (4 vCPU, 16 GiB), committed for a year")
    on_demand = price_for(machine(), price_file=path)
    assert (on_demand.usd_per_hour, on_demand.as_of) == (0.2, "2025-01-02")


def test_other_terms_are_scaled_like_the_price(prices: Any) -> None:
    path = prices(entry(gpu="L4", gpu_count=4, usd_per_hour=4.0, one_year_usd_per_hour=2.0))
    price = price_for(machine(gpu="NVIDIA L4", gpu_count=1), price_file=path)
    assert (price.usd_per_hour, price.other_terms_usd_per_hour) == (1.0, {"1-year": 0.5})


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (machine(), "a machine without a GPU"),
        (machine(gpu="NVIDIA L4", gpu_count=1), "a machine with NVIDIA L4"),
        (machine(instance_type="small"), "Acme small in moon-1"),
    ],
)
def test_a_term_without_a_price_is_not_made_up(prices: Any, wanted: Machine, what: str) -> None:
    path = prices(entry(), entry(instance="gpu", gpu="L4", gpu_count=1))
    with pytest.raises(BadInput, match=f"no spot price for {what}") as caught:
        price_for(wanted, price_file=path, term="spot")
    assert "--price-per-hour" in str(caught.value).splitlines()[1]


def test_a_machine_without_gpu_is_not_priced_by_one(prices: Any) -> None:
    path = prices(entry(usd_per_hour=0.1, gpu="L4", gpu_count=1), entry())
    assert price_for(machine(), price_file=path).usd_per_hour == 0.2
    with pytest.raises(BadInput, match="no machine without a GPU"):
        price_for(machine(), price_file=prices(entry(gpu="L4", gpu_count=1)))


def test_gpus_are_matched_by_word_and_count(prices: Any) -> None:
    path = prices(
        entry(instance="one", gpu="L4", gpu_count=1, usd_per_hour=1.0),
        entry(instance="one-large", gpu="L4", gpu_count=1, usd_per_hour=1.5),
        entry(instance="four", gpu="L4", gpu_count=4, usd_per_hour=3.0),
        entry(instance="other", gpu="L40S", gpu_count=1, usd_per_hour=0.5),
    )
    assert price_for(machine(gpu="NVIDIA L4", gpu_count=1), price_file=path).usd_per_hour == 1.0
    assert price_for(machine(gpu="NVIDIA L4", gpu_count=4), price_file=path).usd_per_hour == 3.0
    two = price_for(machine(gpu="NVIDIA L4", gpu_count=2), price_file=path)
    assert two.usd_per_hour == pytest.approx(1.5)
    assert "2 x L4, scaled by the number of GPUs from Acme four" in two.describes


def test_gpus_of_one_name_differ_in_memory(prices: Any) -> None:
    path = prices(
        entry(instance="a", gpu="A100", gpu_count=1, gpu_memory_gib=40, usd_per_hour=3.0),
        entry(instance="b", gpu="A100", gpu_count=1, gpu_memory_gib=80, usd_per_hour=5.0),
    )
    large = machine(gpu="NVIDIA A100-SXM4-80GB", gpu_count=1, gpu_memory_bytes=81920 * 2**20)
    assert price_for(large, price_file=path).usd_per_hour == 5.0


def test_an_unknown_gpu_names_the_way_out(prices: Any) -> None:
    with pytest.raises(BadInput) as caught:
        price_for(
            machine(gpu="NVIDIA GeForce RTX 4090", gpu_count=1), price_file=prices(entry(gpu="L4", gpu_count=1))
        )
    assert "RTX 4090" in str(caught.value)
    assert "--price-per-hour" in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"usd_per_hour": -1}, "instances.0.usd_per_hour"),
        ({"usd_per_hour": "cheap"}, "instances.0.usd_per_hour"),
        ({"vcpus": 0}, "instances.0.vcpus"),
        ({"as_of": "yesterday"}, "instances.0.as_of"),
        ({"price": 1}, "instances.0.price"),
        ({"gpu": "L4"}, "instances.0: Value error, gpu and gpu_count"),
    ],
)
def test_a_malformed_file_names_the_key(prices: Any, change: dict[str, int] | dict[str, str], key: str) -> None:
    path = prices(entry(**change))
    with pytest.raises(BadInput) as caught:
        read_prices(path)
    first, second = str(caught.value).splitlines()
    assert key in first
    assert str(path) in first
    assert "Correct" in second


def test_a_missing_key_an_old_schema_and_no_entries(prices: Any) -> None:
    broken = entry()
    del broken["source"]
    with pytest.raises(BadInput, match=r"instances\.0\.source: Field required"):
        read_prices(prices(broken))
    with pytest.raises(BadInput, match="schema_version"):
        read_prices(prices(entry(), schema_version=2))
    with pytest.raises(BadInput, match="instances"):
        read_prices(prices())


def test_files_that_are_no_price_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.json"):
        read_prices(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(BadInput, match="not valid: Invalid JSON"):
        read_prices(tmp_path / "text.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"bytes\.json"):
        read_prices(tmp_path / "bytes.json")


def test_the_packaged_prices_are_dated_sourced_and_unique() -> None:
    instances = read_prices().instances
    assert all(instance.source.startswith("https://") for instance in instances)
    assert len({(instance.provider, instance.instance) for instance in instances}) == len(instances)
    assert {"T4", "A10G", "L4", "L40S", "A100", "H100", "H200"} <= {instance.gpu for instance in instances}


@pytest.mark.parametrize(
    ("gpu", "memory_mib", "instance"),
    [
        ("Tesla T4", 15360, "g4dn.xlarge"),
        ("NVIDIA A10G", 23028, "g5.xlarge"),
        ("NVIDIA L4", 23034, "g2-standard-4"),
        ("NVIDIA L40S", 46068, "g6e.xlarge"),
        ("Tesla V100-SXM2-16GB", 16384, "p3.2xlarge"),
        ("NVIDIA H100 80GB HBM3", 81559, "p5.48xlarge"),
        ("NVIDIA H100 NVL", 95830, "Standard_NC40ads_H100_v5"),
        ("NVIDIA H200", 143771, "p5en.48xlarge"),
    ],
)
def test_gpus_by_the_names_that_drivers_give(gpu: str, memory_mib: int, instance: str) -> None:
    price = price_for(machine(gpu=gpu, gpu_count=1, gpu_memory_bytes=memory_mib * 2**20))
    assert instance in price.describes


def test_energy_per_million_inferences() -> None:
    # 72 W while 1000/s are answered: 1000 s for a million, 72,000 J, 0.02 kWh.
    assert energy_kwh_per_million_inferences(72.0, 1000.0) == pytest.approx(0.02)
    with pytest.raises(ValueError, match="say nothing"):
        energy_kwh_per_million_inferences(72.0, 0.0)


@pytest.mark.parametrize("rate", [0.0, -5.0, float("nan"), float("inf")])
def test_no_rate_has_no_cost(rate: float) -> None:
    with pytest.raises(ValueError, match="no cost"):
        cost_per_million_inferences_usd(1.0, rate)


@pytest.mark.parametrize(
    ("rate", "certified", "headroom", "count"),
    [
        (2000, 1000, 0.0, 2),
        (2001, 1000, 0.0, 3),
        (1, 1000, 0.0, 1),
        (3.3, 1.1, 0.0, 3),
        (2.1, 0.7, 0.0, 3),  # 3.0000000000000004
        (800, 1000, 0.2, 1),
        (801, 1000, 0.2, 2),
    ],
)
def test_replicas(rate: float, certified: float, headroom: float, count: int) -> None:
    assert replicas(rate, certified, headroom=headroom) == count


@pytest.mark.parametrize(
    ("rate", "certified", "headroom"), [(0, 1, 0), (1, 0, 0), (1, 1, 1), (1, float("nan"), 0), (1, 1, -0.5)]
)
def test_replicas_that_make_no_sense(rate: float, certified: float, headroom: float) -> None:
    with pytest.raises(ValueError, match="cannot be served"):
        replicas(rate, certified, headroom=headroom)


def test_a_gpu_whose_memory_is_not_known_fits_by_name(prices: Any) -> None:
    path = prices(entry(gpu="A100", gpu_count=1, gpu_memory_gib=40, usd_per_hour=3.0))
    assert price_for(machine(gpu="NVIDIA A100", gpu_count=1), price_file=path).usd_per_hour == 3.0
    unsaid = prices(entry(gpu="A100", gpu_count=1, usd_per_hour=4.0))
    large = machine(gpu="NVIDIA A100", gpu_count=1, gpu_memory_bytes=80 * GIB)
    assert price_for(large, price_file=unsaid).usd_per_hour == 4.0
