"""Tests of workers: those of this machine, and `optimize worker`, which is ordered to run no code and no image."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from pydantic import TypeAdapter
from shared_studies import SLO, close_all, coordinator

from loadgen.files import checksum
from loadgen.spec.limits import LatencyLimit
from optimizer.accuracy.thresholds import AccuracyRule
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import hardware, hardware_label
from optimizer.model.graph_inputs import InputType
from optimizer.run import workers
from optimizer.run.workers import (
    HARDWARE,
    TRITUNE,
    WORKER_LOG_FILE,
    WorkerJob,
    measuring_fields,
    same_of,
    with_kept_trace,
    worker_arguments,
    worker_config,
    workers_on,
)
from optimizer.run.workload_inputs import TRACE_FILE

SAYS_WHAT_IT_GOT = """
import os, sys, time
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRITUNE_STORAGE"], *sys.argv[1:], flush=True)
time.sleep(600)
"""


def test_each_gpu_gets_a_process_that_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-c", SAYS_WHAT_IT_GOT))
    logs = [tmp_path / f"gpu-{number}" / WORKER_LOG_FILE for number in (1, 2)]
    url = "postgresql://me:s3cret@db/optuna"
    with workers_on(["GPU-b", "GPU-c"], storage=url, arguments=["--study", "s"], folder=tmp_path) as started:
        while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
            assert all(process.poll() is None for process in started)
        lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in started]
    assert all(process.poll() is not None for process in started)
    said = [log.read_text().split() for log in logs]
    assert [words[0] for words in said] == ["GPU-b", "GPU-c"]
    assert {words[1] for words in said} == {url}
    assert [words[words.index("--output") + 1] for words in said] == [str(log.parent) for log in logs]
    assert all("s3cret" not in line for line in lines)


def test_a_worker_gets_the_files_of_the_search_and_what_is_not_the_default(tmp_path: Path) -> None:
    plain = OptimizeConfig(output=tmp_path, model=Path("/m.onnx"), limits=(LatencyLimit(limit_ms=50),))
    assert worker_arguments(plain, study="s") == ["--model", "/m.onnx", "--study", "s"]
    more = replace(
        plain,
        input_data=Path("/in.npz"),
        calibration_data=Path("/c.npz"),
        trace=Path("/recorded.csv"),
        server="docker",
        docker_image="an/image",
        cache_dir=Path("/cache"),
        gpu="L4",
    )
    words = worker_arguments(with_kept_trace(more), study="s")
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given == {
        "--study": "s",
        "--model": "/m.onnx",
        "--input-data": "/in.npz",
        "--calibration-data": "/c.npz",
        "--trace": str(tmp_path / TRACE_FILE),
        "--server": "docker",
        "--docker-image": "an/image",
        "--cache-dir": "/cache",
    }


def test_a_worker_passes_on_all_that_belongs_to_no_single_process(tmp_path: Path) -> None:
    config = OptimizeConfig(
        output=tmp_path, model="a:b", limits=(LatencyLimit(limit_ms=50),), gpu="L4", workers="2"
    )
    words = worker_arguments(config, study="s", idle_s=90.0)
    assert words == ["--model", "a:b", "--study", "s", "--idle", "90s"]


pytestmark = pytest.mark.slow


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[Any, ...]:
    code = run_command(["worker", *map(str, arguments)])
    lines = capsys.readouterr().err.splitlines()[-2:]  # after its progress lines
    assert lines[0].startswith("error: ")
    return code, *lines


def plain(folder: Path, **options: Any) -> OptimizeConfig:
    return OptimizeConfig(limits=SLO.limits, model=folder / "theirs.onnx", output=folder, **options)


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that publishes a study with the job of a search, changed as the test asks."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"

    def publish(config: OptimizeConfig | None = None, **changes: str) -> list[Any]:
        config = config or plain(tmp_path)
        same = {**same_of(config, hardware()), **changes}
        job = {"run": "", "model_sha256": "0" * 64, "same": same, "config": measuring_fields(config)}
        _, pool = coordinator(tmp_path / "run", url)
        pool.publish(job)
        return [
            *("--storage", url, "--study", "shared"),
            *("--output", tmp_path / "worker", "--model", tmp_path / "none.onnx"),
        ]

    yield publish
    close_all()


def test_no_storage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITUNE_STORAGE", raising=False)
    code, what, fix = refused(capsys, "--study", "s")
    assert code == 2
    assert "storage" in what
    assert "TRITUNE_STORAGE" in fix


def test_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, what, fix = refused(capsys, "--study", "s", "--storage", f"sqlite:///{tmp_path / 'none.db'}")
    assert code == 2
    assert "No model" in what
    assert "--model" in fix


def test_a_study_that_does_not_come(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'none.db'}"
    given = ("--study", "s", "--storage", storage, "--idle", "0.001s", "--output", tmp_path / "w", "--model", "m")
    code, what, _ = refused(capsys, *given)
    assert code == 2
    assert "no study s" in what


@pytest.mark.parametrize(
    ("same", "theirs", "given", "named"),
    [
        ({HARDWARE: "NVIDIA H100"}, {}, (), ("NVIDIA H100", hardware_label(hardware()), "--gpu")),
        ({TRITUNE: "9.9"}, {}, (), ("9.9", "version")),
        ({}, {}, (), ("none.onnx",)),
        ({}, {}, ("--model", "m.onnx"), ("its checksum differs",)),
        ({}, {"server": "remote"}, (), ("--server of this worker",)),
        ({}, {"server": "docker", "docker_image": "an/image"}, (), ("--server of this worker",)),
        (
            {},
            {"server": "docker"},
            ("--server", "docker", "--docker-image", "another/image"),
            ("--docker-image of this worker",),
        ),
    ],
    ids=str,
)
def test_a_worker_that_would_measure_something_else_measures_nothing(
    same: dict[str, str],
    theirs: dict[str, Any],
    given: tuple[str, ...],
    named: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    published: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    small_cnn(Path("m.onnx"))
    code, *lines = refused(capsys, *published(plain(tmp_path, **theirs), **same), *given)
    assert code == 2
    assert [word for word in named if word not in " ".join(lines)] == []
    assert "an/image" not in " ".join(lines)


@pytest.mark.parametrize("name", ["input-data", "calibration-data", "trace"])
def test_files_are_the_workers_own_and_the_searchs(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path, name: str
) -> None:
    theirs, mine = tmp_path / "theirs.txt", tmp_path / "mine.txt"
    theirs.write_text("0.1\n0.2\n")
    mine.write_text("0.1\n0.3\n")
    config = plain(tmp_path, **{name.replace("-", "_"): theirs})
    here: tuple[str | Path, ...] = (f"--{name}", mine)
    for wanted, given in ((config, ()), (config, here), (plain(tmp_path), here)):
        _, what, _ = refused(capsys, *published(wanted), *given)
        assert f"--{name} of this worker does not fit" in what
    mine.write_text(theirs.read_text())
    _, what, _ = refused(capsys, *published(config), f"--{name}", mine)
    assert "none.onnx" in what  # what is not here comes next


def test_a_worker_takes_how_to_measure_and_nothing_else(tmp_path: Path) -> None:
    """Whatever else a job names: no code, image or file of it reaches the worker's configuration."""
    theirs = OptimizeConfig(
        model=tmp_path / "theirs.onnx",
        limits=(LatencyLimit(limit_ms=7.0, quantile=0.9), LatencyLimit(limit_ms=3.0, quantile=0.5)),
        confidence=0.9,
        max_memory_bytes=10**9,
        shapes={"x": (3,)},
        output=tmp_path / "theirs",
        server="docker",
        server_port=8000,
        docker_image="their/image",
        objective="latency",
        pareto=True,
        arrivals="gamma:cv=2",
        client_batch=4,
        protocol="grpc",
        shared_memory="system",
        price_per_hour_usd=1.0,
        price_file=tmp_path / "prices",
        price_term="spot",
        rate_to_serve_per_s=5.0,
        peak_rate_per_s=6.0,
        time_budget_s=1.0,
        most_send_lag_ms=2.0,
        gpu="L4",
        workers="auto",
        cache_dir=tmp_path / "cache",
        precisions=("fp16",),
        calibration_method="entropy",
        accuracy=AccuracyRule(level="off"),
        io_precision="fp16",
        input_types={"x": InputType(datatype="uint8", scale=0.5)},
        seed=11,
    )
    own = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=1.0),), model=tmp_path / "mine.onnx", output=tmp_path / "mine"
    )
    everything = TypeAdapter(OptimizeConfig).dump_python(theirs, mode="json")
    job = WorkerJob(run="", model_sha256="", same={}, config=everything)
    config = worker_config(job, own)
    taken = {one.name for one in fields(own) if getattr(config, one.name) != getattr(own, one.name)}
    assert taken == {
        *("limits", "confidence", "max_memory_bytes", "objective", "rate_to_serve_per_s"),
        *("shapes", "arrivals", "client_batch", "protocol", "shared_memory", "most_send_lag_ms"),
        *("precisions", "calibration_method", "io_precision", "input_types", "seed"),
    }
    assert all(getattr(config, name) == getattr(theirs, name) for name in taken)


def test_a_folders_checksum_is_that_of_its_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, "ab"), (two, "ba")):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
    assert checksum(one) == checksum(two)
    (two / "a").write_text("b")
    assert checksum(one) != checksum(two)


@pytest.mark.parametrize("name", ["precious", "run.json", "server/precious", "model/precious"])
def test_a_directory_that_is_not_the_workers_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "worker" / name
    precious.parent.mkdir(parents=True, exist_ok=True)
    precious.write_text("precious")
    code, what, _ = refused(capsys, *published())
    assert code == 2
    assert "holds something else" in what
    assert [path for path in (tmp_path / "worker").rglob("*") if path.is_file()] == [precious]


def test_a_workers_directory_is_taken_up_again_for_its_study_alone(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path
) -> None:
    for _ in range(2):
        _, what, _ = refused(capsys, *published())
        assert "none.onnx" in what
    _, what, _ = refused(capsys, *published(), "--study", "another")
    assert "holds something else" in what
