"""Tests of `optimize worker` if it cannot measure: two error lines, without passwords.

Anyone with access to the database can change the worker's orders: they name no code, images or files.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from shared_studies import SLO, close_all, coordinator
from sqlalchemy import text

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import hardware, hardware_label
from optimizer.run.worker_settings import WorkerSettings, check_same, checksum, settings_of, worker_config
from optimizer.run_file import slo_of
from search.study.tasks import ORDER, WorkerJob

pytestmark = pytest.mark.slow

PLAIN = {"precisions": ["fp32"]}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[Any, ...]:
    code = run_command(["worker", *map(str, arguments)])
    lines = capsys.readouterr().err.splitlines()[-2:]  # after its progress lines
    assert lines[0].startswith("error: ")
    return code, *lines


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that publishes a study with a measurement order, changed or replaced as the test asks."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"

    def publish(anything: None = None, **changes: Any) -> list[Any]:
        store, pool = coordinator(tmp_path / "run", url)
        order: dict[str, Any] = {
            "tritune_version": version("tritune"),
            "run": "there",
            "hardware": hardware_label(hardware()),
            "model_sha256": "0" * 64,
            "slo": SLO.model_dump(mode="json"),
            "seed": 1,
            "settings": PLAIN,
        }
        pool.publish(WorkerJob(**order))
        store.study.set_user_attr(ORDER, anything if anything is not None else {**order, **changes})
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


def test_a_password_among_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    _, what, _ = refused(capsys, "--study", "s", "--storage", "postgresql://me:s3cret@h/d")
    assert "s3cret" not in what


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


def test_other_hardware_measures_nothing(capsys: pytest.CaptureFixture[str], published: Any) -> None:
    code, what, fix = refused(capsys, *published(hardware="NVIDIA H100"))
    assert code == 2
    assert "NVIDIA H100" in what
    assert hardware_label(hardware()) in what
    assert "--gpu" in fix


def test_another_version_measures_nothing(capsys: pytest.CaptureFixture[str], published: Any) -> None:
    _, what, fix = refused(capsys, *published(tritune_version="9.9"))
    assert "9.9" in what
    assert "tritune==9.9" in fix


def test_a_remote_server_is_not_shared(capsys: pytest.CaptureFixture[str], published: Any) -> None:
    _, what, fix = refused(capsys, *published(settings={**PLAIN, "server": "remote"}))
    assert "remote server" in what
    assert "--server embedded" in fix


def test_a_model_that_is_not_here(capsys: pytest.CaptureFixture[str], published: Any) -> None:
    _, what, _ = refused(capsys, *published())
    assert "none.onnx" in what


def test_another_model_than_the_searchs(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path
) -> None:
    model = small_cnn(tmp_path / "m.onnx")
    _, what, _ = refused(capsys, *published(), "--model", model)
    assert "its checksum differs" in what


def test_a_server_of_another_kind(capsys: pytest.CaptureFixture[str], published: Any) -> None:
    code, what, fix = refused(
        capsys, *published(settings={**PLAIN, "server": "docker", "docker_image": "an/image"})
    )
    assert code == 2
    assert "docker" in what
    assert "an/image" not in what + fix
    given = ("--server", "docker", "--docker-image", "another/image")
    _, what, fix = refused(
        capsys, *published(settings={**PLAIN, "server": "docker", "docker_image": "a/b"}), *given
    )
    assert "another/image" in what
    assert "--docker-image" in fix


@pytest.mark.parametrize("name", ["input-data", "calibration-data", "trace"])
def test_files_are_the_workers_own_and_the_searchs(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("0.1\n0.2\n")
    wanted = {**PLAIN, f"{name.replace('-', '_')}_sha256": "1" * 64}
    _, what, fix = refused(capsys, *published(settings=wanted))
    assert f"was given --{name}" in what
    assert "Add" in fix
    _, what, _ = refused(capsys, *published(settings=wanted), f"--{name}", mine)
    assert "checksum differs" in what
    _, what, _ = refused(capsys, *published(), f"--{name}", mine)
    assert f"was given no --{name}" in what


DEEP = json.loads("[" * 300 + "]" * 300)
BAD_ORDERS = {
    "a factory of a model": {"settings": {**PLAIN, "model": "os:getcwd"}},
    "a file of a model": {"settings": {**PLAIN, "model": "/etc/passwd"}},
    "a price file": {"settings": {**PLAIN, "price_file": "/etc/passwd"}},
    "a trace by name": {"settings": {**PLAIN, "trace": "/etc/passwd"}},
    "a cache": {"settings": {**PLAIN, "cache_dir": "/tmp/theirs"}},
    "an output": {"settings": {**PLAIN, "output": "/tmp/theirs"}},
    "a kind of server": {"settings": {**PLAIN, "server": "mine"}},
    "an option in the image": {"settings": {**PLAIN, "server": "docker", "docker_image": "a\n--privileged"}},
    "no precision": {"settings": {}},
    "unknown precisions": {"settings": {"precisions": ["fp64"]}},
    "arrivals of a file": {"settings": {**PLAIN, "arrivals": "trace:/etc/passwd"}},
    "arrivals without an end": {"settings": {**PLAIN, "arrivals": "gamma:cv=nan"}},
    "huge shapes": {"settings": {**PLAIN, "shapes": {"x": [10**6, 10**6]}}},
    "negative shapes": {"settings": {**PLAIN, "shapes": {"x": [-1]}}},
    "many shapes": {"settings": {**PLAIN, "shapes": {str(number): [1] for number in range(1000)}}},
    "huge batches": {"settings": {**PLAIN, "client_batch": 10**9}},
    "lag without an end": {"settings": {**PLAIN, "most_send_lag_ms": float("inf")}},
    "settings nested deeply": {"settings": DEEP},
    "a limit without an end": {"slo": {"limits": [{"limit_ms": float("inf")}]}},
    "no limit": {"slo": {"limits": [{"limit_ms": float("nan")}]}},
    "a thousand limits": {"slo": {"limits": [{"limit_ms": 50.0, "quantile": 0.5}] * 1000}},
    "a rate to measure at": {"objective": {"name": "latency", "rate_per_s": 1e300}},
    "a negative rate": {"objective": {"name": "latency", "rate_per_s": -1}},
    "a seed": {"seed": -1},
    "a huge seed": {"seed": 10**30},
    "a version that is an option": {"tritune_version": "1 --index-url http://theirs"},
    "escapes in the hardware": {"hardware": "\x1b[2J\x1b[31mKEPT"},
    "escapes in the run": {"run": "\u202ereversed"},
    "a checksum": {"model_sha256": "../../etc"},
    "more than there is": {"more": 1},
}


@pytest.mark.parametrize("changes", BAD_ORDERS.values(), ids=BAD_ORDERS)
def test_an_order_that_no_search_gives_is_refused(
    capsys: pytest.CaptureFixture[str], published: Any, changes: object
) -> None:
    code, what, fix = refused(capsys, *published(**changes))  # type: ignore[arg-type]
    assert code == 2
    assert "shared" in what
    assert (what + fix).isprintable()


@pytest.mark.parametrize("order", [[], 0, "order", {}, DEEP, True, {"settings": None}], ids=repr)
def test_an_order_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], published: Any, order: list[Any] | int | str | dict[Any, Any]
) -> None:
    code, what, _ = refused(capsys, *published(anything=order))
    assert code == 2
    assert "shared" in what


@pytest.mark.parametrize("garbled", ["{", "[" * 200_000, "nan!", ""])
def test_a_study_that_optuna_cannot_read_is_refused(
    capsys: pytest.CaptureFixture[str], published: Any, tmp_path: Path, garbled: str
) -> None:
    arguments = published()
    store, _ = coordinator(tmp_path / "other", arguments[1])
    with store.storage.direct.engine.begin() as connection:
        connection.execute(text("UPDATE study_user_attributes SET value_json = :garbled"), {"garbled": garbled})
    code, what, _ = refused(capsys, *arguments)
    assert code == 2
    assert "cannot read" in what


def test_a_worker_takes_how_to_measure_and_nothing_else(tmp_path: Path) -> None:
    """Each field of the configuration comes from the order or the worker, and each field of the order arrives."""
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
        arrivals="gamma: cv=2",
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
        accuracy={"level": "off"},  # type: ignore[arg-type]
        io_precision="fp16",
        seed=11,
    )
    own = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=1.0),), model=tmp_path / "mine.onnx", output=tmp_path / "mine"
    )
    order = WorkerJob(
        tritune_version="1",
        run="there",
        hardware="h",
        model_sha256="0" * 64,
        slo=slo_of(theirs),
        objective={"name": "latency", "rate_per_s": 5.0},  # type: ignore[arg-type]
        seed=theirs.seed,
        settings=settings_of(theirs, ["fp16"]).model_dump(mode="json"),
    )
    config = worker_config(order, WorkerSettings.model_validate(order.settings), own)
    taken = {one.name for one in fields(own) if getattr(config, one.name) != getattr(own, one.name)}
    assert taken == {
        *("limits", "confidence", "max_memory_bytes", "objective", "rate_to_serve_per_s"),
        *("shapes", "arrivals", "client_batch", "protocol", "shared_memory", "most_send_lag_ms"),
        *("precisions", "calibration_method", "io_precision", "seed"),
    }
    assert {name for name in taken if getattr(config, name) != getattr(theirs, name)} == {"arrivals"}
    assert config.arrivals == "gamma:cv=2"


def test_the_same_files_and_servers_are_taken(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    data.write_bytes(b"x")
    own = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=1.0),),
        model=tmp_path / "m.onnx",
        output=tmp_path,
        input_data=data,
        server="docker",
    )
    settings = settings_of(own, ["fp32"])
    check_same(settings, own, "s")
    data.write_bytes(b"y")
    with pytest.raises(BadInput, match="checksum differs"):
        check_same(settings, own, "s")


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
    (tmp_path / "worker" / "model").symlink_to("/etc")
    _, what, _ = refused(capsys, *published())
    assert "is a link" in what
