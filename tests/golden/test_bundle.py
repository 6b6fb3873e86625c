"""The whole bundle of the recorded demo run, and a Deployment with a GPU. UPDATE_GOLDENS=1 rewrites, and fails."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import ON_GPU, ROOT, SOURCES, bundle, on_gpu
from prometheus import promtool

from deploy.bundle import bundle_from_recommendation

GOLDEN = Path(__file__).with_name("bundle")
GPU_FILES = (
    "kubernetes/base/deployment.yaml",
    "kserve/serving-runtime.yaml",
    "compose.yaml",
    "images/triton.Dockerfile",
    "model_repository/m/config.pbtxt",
)


ON_GPU_SOURCES = replace(SOURCES, server={"cuda-bindings": "13.5.0", "numpy": "1.26.4", "tensorrt": "10.9.0.34"})


def rendered() -> dict[str, str]:
    gpu = bundle_from_recommendation(*on_gpu(), options=ON_GPU, sources=ON_GPU_SOURCES).texts
    return {f"cpu/{path}": text for path, text in bundle().texts.items()} | {
        f"gpu/{path}": gpu[path] for path in GPU_FILES
    }


def test_every_file_of_the_bundle() -> None:
    files = rendered()
    if os.environ.get("UPDATE_GOLDENS"):
        shutil.rmtree(GOLDEN, ignore_errors=True)
        for path, text in files.items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_text(text)
        pytest.fail("tests/golden/bundle has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    golden = {
        path.relative_to(GOLDEN).as_posix(): path.read_text() for path in GOLDEN.rglob("*") if path.is_file()
    }
    assert sorted(files) == sorted(golden)
    for path, text in files.items():
        assert text == golden[path], path


def test_prometheus_takes_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", GOLDEN / "cpu" / "prometheus-rules.yaml")


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yaml", cwd=GOLDEN.parent)


def test_the_docs_show_the_tree() -> None:
    made = bundle()
    tree = "\n".join(sorted([*made.texts, *made.data, *made.copies]))
    assert f"```\n{tree}\n```" in (ROOT / "docs" / "deployment.md").read_text()
