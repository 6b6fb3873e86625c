"""Tests of the machine's description: it is read from files, so the tests write those of other machines."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from optimizer.machine.hardware import CloudInstance, Gpu, Hardware, gpus_from_csv, hardware, machine_of

GIB = 2**30


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a machine with eight CPUs on four cores, 16 GiB, and control groups v2 without limits."""
    blocks = [
        f"processor\t: {cpu}\nmodel name\t: Fancy CPU @ 3 GHz\nphysical id\t: 0\ncore id\t\t: {cpu // 2}\n"
        for cpu in range(8)
    ]
    write(tmp_path, "proc/cpuinfo", "\n".join(blocks))
    write(tmp_path, "proc/meminfo", f"MemTotal:       {16 * 2**20} kB\nMemFree:        1 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/user/session\n")
    write(tmp_path, "sys/fs/cgroup/user/session/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/user/session/cpu.max", "max 100000\n")
    return tmp_path


def found(root: Path, *, affinity: set[Any] | range = range(8), nvidia_smi: str = "no-such-program") -> Hardware:
    return hardware(root=root, affinity=affinity, nvidia_smi=nvidia_smi)


def test_a_machine_without_limits(root: Any) -> None:
    machine = found(root)
    assert (machine.cpu, machine.logical_cores, machine.physical_cores) == ("Fancy CPU @ 3 GHz", 8, 4)
    assert machine.memory_bytes == 16 * GIB
    assert machine.gpus == ()
    assert machine.cloud is None


def test_affinity_leaves_fewer_cores(root: Any) -> None:
    machine = found(root, affinity={0, 1, 2})
    assert (machine.logical_cores, machine.physical_cores) == (3, 2)


@pytest.mark.parametrize(("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8)])
def test_a_quota_leaves_whole_cores(root: Any, quota: str, cores: int) -> None:
    write(root, "sys/fs/cgroup/user/session/cpu.max", quota)
    assert found(root).logical_cores == cores
    assert found(root).physical_cores == min(cores, 4)


def test_a_limit_further_up_counts(root: Any) -> None:
    write(root, "sys/fs/cgroup/user/memory.max", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/user/session/memory.max", f"{5 * GIB}\n")
    assert found(root).memory_bytes == 3 * GIB


def test_control_groups_of_version_1(root: Any) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(2 * GIB))  # the container sees only the top
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    machine = found(root)
    assert (machine.logical_cores, machine.memory_bytes) == (3, 2 * GIB)


def test_no_quota_in_version_1_is_minus_1(root: Any) -> None:
    write(root, "proc/self/cgroup", "3:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert found(root).logical_cores == 8


def test_an_empty_root_breaks_nothing(tmp_path: Path) -> None:
    machine = found(tmp_path)
    assert (machine.cpu, machine.logical_cores, machine.physical_cores) == ("unknown processor", 8, 8)
    assert machine.memory_bytes > 0


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}, ("AWS", "g5.xlarge")),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, ("Google Cloud", None)),
        (
            {
                "sys_vendor": "Microsoft Corporation",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
            ("Azure", None),
        ),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, None),  # any Hyper-V
        ({"sys_vendor": "Dell Inc.", "product_name": "PowerEdge R750"}, None),
    ],
)
def test_the_firmware_says_which_cloud(root: Any, files: dict[str, str], cloud: Any) -> None:
    for name, text in files.items():
        write(root, f"sys/class/dmi/id/{name}", text + "\n")
    expected = None if cloud is None else CloudInstance(provider=cloud[0], instance_type=cloud[1])
    assert found(root).cloud == expected


def fake_nvidia_smi(folder: Any, text: str, *, code: int = 0) -> str:
    program = folder / "fake-nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


TWO = "NVIDIA A10G, 23028, 550.54.15, 8.6, GPU-aaaa\nNVIDIA A10G, 23028, 550.54.15, 8.6, GPU-bbbb"


def test_gpus_as_the_driver_lists_them(root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = found(root, nvidia_smi=fake_nvidia_smi(root, TWO))
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-aaaa", "GPU-bbbb"]
    assert machine.gpus[0] == Gpu(
        name="NVIDIA A10G",
        memory_bytes=23028 * 2**20,
        driver="550.54.15",
        compute_capability="8.6",
        uuid="GPU-aaaa",
    )


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("", []),
        ("-1", []),
        ("1", ["GPU-bbbb"]),
        ("1,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("0,7,1", ["GPU-aaaa"]),
    ],
)
def test_hidden_gpus_do_not_count(
    root: Any, monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[Any]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = found(root, nvidia_smi=fake_nvidia_smi(root, TWO))
    assert [gpu.uuid for gpu in machine.gpus] == uuids


def test_what_the_driver_does_not_know_is_none() -> None:
    (gpu,) = gpus_from_csv("Orin (nvgpu), [N/A], 540.4.0, 8.7, [N/A]\n")
    assert (gpu.name, gpu.memory_bytes, gpu.uuid) == ("Orin (nvgpu)", None, None)


def test_a_driver_that_fails_means_no_gpu(root: Any) -> None:
    failing = fake_nvidia_smi(
        root, "NVIDIA-SMI has failed because it couldn't communicate with the driver.", code=9
    )
    assert found(root, nvidia_smi=failing).gpus == ()
    assert gpus_from_csv("No devices were found\n") == ()


def test_what_a_machine_is_priced_by(root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write(root, "sys/class/dmi/id/sys_vendor", "Amazon EC2")
    write(root, "sys/class/dmi/id/product_name", "g5.24xlarge")
    machine = machine_of(found(root, nvidia_smi=fake_nvidia_smi(root, TWO)))
    assert (machine.vcpus, machine.gpu, machine.gpu_count, machine.instance_type) == (
        8,
        "NVIDIA A10G",
        2,
        "g5.24xlarge",
    )


def test_this_machine() -> None:
    machine = hardware()
    assert 1 <= machine.physical_cores <= machine.logical_cores <= (os.cpu_count() or 1)
    assert "CPUExecutionProvider" in machine.providers


def test_nothing_is_written_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    hardware()
    assert capfd.readouterr().err == ""
