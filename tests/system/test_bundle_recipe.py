"""The images' recipes without Docker: what they install serves the model, and the bundle's checks decide on it."""

from pathlib import Path

import pytest
from live_bundles import written_bundle
from served_recipes import served_by_its_recipes

pytestmark = [pytest.mark.system, pytest.mark.measure, pytest.mark.timeout(900)]


def test_the_recipes_serve_and_check_the_model(tmp_path: Path) -> None:
    """One test for all of it, because the installations are what takes the time."""
    with served_by_its_recipes(written_bundle(tmp_path), tmp_path) as served:
        for package in ("onnxruntime", "numba", "optuna"):
            assert not list(served.client.prefix.glob(f"lib/python3*/site-packages/{package}*")), package
        code, said = served.readme_check()
        assert code == 0, said
        code, said = served.smoke()
        assert code == 0, said
        options = [option for option in served.smoke_options if not option.startswith(("--p90", "--duration"))]
        code, said = served.load_test([*options, "--p90=0.01ms", "--duration=15s"])
        assert code == 99, said
