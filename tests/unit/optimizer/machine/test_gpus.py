"""Tests of the GPUs that a process gets, and of those left for workers."""

from collections.abc import Callable
from typing import Any

import pytest

from loadgen.errors import BadInput
from optimizer.machine import hardware as hardware_module
from optimizer.machine.hardware import VISIBLE, Gpu, Hardware, gpus_for, hardware_label, matching, wanted


def gpu(name: str, uuid: str | None) -> Gpu:
    return Gpu(name=name, memory_bytes=None, driver=None, compute_capability=None, uuid=uuid)


L4S = (gpu("NVIDIA L4", "GPU-a"), gpu("NVIDIA L4", "GPU-b"))
T4 = gpu("Tesla T4", "GPU-c")


def machine(*gpus: Any) -> Hardware:
    return Hardware(
        cpu="a CPU",
        logical_cores=2,
        physical_cores=2,
        memory_bytes=2**33,
        gpus=gpus,
        providers=(),
        cloud=None,
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the GPUs of this machine."""

    def has(*gpus: Any) -> None:
        monkeypatch.setattr(hardware_module, "hardware", lambda: machine(*gpus))

    return has


@pytest.mark.parametrize(
    ("name", "workers", "mine", "others"),
    [
        (None, "1", None, ()),
        (None, "auto", "GPU-a", ("GPU-b",)),
        ("l4", "auto", "GPU-a", ("GPU-b",)),
        ("l4", "1", "GPU-a,GPU-b", ()),
        ("T4", "auto", "GPU-c", ()),
        (None, "2", "GPU-a", ("GPU-b",)),
    ],
)
def test_each_worker_gets_one_gpu_of_the_same_kind(
    here: Any, name: str | None, workers: str, mine: str | None, others: tuple[()] | tuple[str]
) -> None:
    here(*L4S, T4)
    assert gpus_for(name, workers) == ({} if mine is None else {VISIBLE: mine}, others)


def test_a_machine_without_gpus_is_one_worker(here: Any) -> None:
    here()
    assert gpus_for(None, "auto") == ({}, ())


@pytest.mark.parametrize("name", ["A100", "NVIDIA L4 Super"])
def test_a_gpu_that_is_not_here(name: str | None) -> None:
    with pytest.raises(BadInput, match="Tesla T4"):
        matching((*L4S, T4), name)


def test_a_name_of_several_kinds() -> None:
    with pytest.raises(BadInput, match="several kinds"):
        matching((*L4S, T4), "4")


@pytest.mark.parametrize("workers", ["0", "-1", "many", "3"])
def test_a_number_of_workers_that_cannot_be(workers: str) -> None:
    with pytest.raises(BadInput, match=f"--workers {workers}"):
        wanted(workers, 2)


def test_results_are_comparable_on_the_same_gpus_or_cores() -> None:
    assert hardware_label(machine()) == "a CPU, 2 cores"
    assert hardware_label(machine(*L4S)) == "2 x NVIDIA L4"
    assert hardware_label(machine(T4)) == "Tesla T4"
