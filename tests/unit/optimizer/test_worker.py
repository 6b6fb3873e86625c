"""What `optimize worker` answers where it cannot measure: two lines, and no password in them."""

from importlib.metadata import version

import pytest
from shared_studies import SLO, close_all, coordinator

from optimizer.cli import run_command
from optimizer.gpu_choice import hardware_label
from optimizer.hardware import hardware
from search.tasks import OrderRecord


def refused(capsys, *arguments):
    code = run_command(["worker", *map(str, arguments)])
    lines = capsys.readouterr().err.splitlines()[-2:]  # below what it did before
    assert lines[0].startswith("error: ")
    return code, *lines


@pytest.fixture
def published(tmp_path):
    """A study whose coordinator wants something measured; the order may be changed."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"

    def publish(**changes):
        _, crew = coordinator(tmp_path / "run", url)
        order = {
            "tritune_version": version("tritune"),
            "run": "there",
            "hardware": hardware_label(hardware()),
            "model_sha256": "0" * 64,
            "slo": SLO,
            "seed": 1,
            "settings": {"model": str(tmp_path / "none.onnx"), "limit_ms": SLO.limit_ms},
        }
        crew.publish(OrderRecord(**{**order, **changes}))
        return ["--storage", url, "--study", "shared", "--output", tmp_path / "worker"]

    yield publish
    close_all()


def test_no_storage(capsys, monkeypatch):
    monkeypatch.delenv("TRITUNE_STORAGE", raising=False)
    code, what, fix = refused(capsys, "--study", "s")
    assert code == 2
    assert "storage" in what
    assert "TRITUNE_STORAGE" in fix


def test_a_password_among_the_arguments(capsys):
    _, what, _ = refused(capsys, "--study", "s", "--storage", "postgresql://me:s3cret@h/d")
    assert "s3cret" not in what


def test_a_study_that_does_not_come(capsys, tmp_path):
    storage = f"sqlite:///{tmp_path / 'none.db'}"
    code, what, _ = refused(
        capsys, "--study", "s", "--storage", storage, "--idle", "0.001s", "--output", tmp_path / "w"
    )
    assert code == 2
    assert "no study s" in what


def test_other_hardware_measures_nothing(capsys, published):
    code, what, fix = refused(capsys, *published(hardware="NVIDIA H100"))
    assert code == 2
    assert "NVIDIA H100" in what
    assert hardware_label(hardware()) in what
    assert "--gpu" in fix


def test_another_version_measures_nothing(capsys, published):
    _, what, fix = refused(capsys, *published(tritune_version="9.9"))
    assert "9.9" in what
    assert "tritune==9.9" in fix


def test_a_remote_server_is_not_shared(capsys, published):
    _, what, fix = refused(capsys, *published(settings={"server": "remote"}))
    assert "remote server" in what
    assert "--server embedded" in fix


def test_a_model_that_is_not_here(capsys, published):
    _, what, _ = refused(capsys, *published())
    assert "none.onnx" in what
