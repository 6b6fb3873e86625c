"""The snippets of docs/python.md, and the cells of the notebook, run in order, as a reader would run them."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_triton import fake_triton
from onnx_models import small_cnn

ROOT = Path(__file__).parents[3]
SNIPPETS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL
)


def here(code: str, changes: dict[str, str]) -> str:
    """The code with an address, a model and a duration of the test's."""
    return re.sub("|".join(changes), lambda match: changes[match[0]], code)


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_the_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    small_cnn(tmp_path / "m.onnx")
    names: dict[str, Any] = {}
    with fake_triton("--delay-ms", "1") as server:
        changes = {"http://localhost:8000": server.url, 'model="m"': 'model="delay"', '"10s"': '"300ms"'}
        for snippet in SNIPPETS:
            exec(here(snippet, changes), names)  # noqa: S102
    assert names["run"].recommendation.exit_code == names["found"].exit_code == 0
    assert names["result"].measurement.requests > 10
    assert len(names["trials"]) == len(names["run"].trials)
    assert "2 bad_input" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_the_cells_of_the_notebook_run_within_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((ROOT / "examples" / "first_answer.ipynb").read_text())
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names: dict[str, Any] = {}

    async def run_cells(changes: dict[str, str]) -> None:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(here("".join(cell["source"]), changes), names)  # noqa: S102

    with fake_triton("--delay-ms", "1") as server:
        changes = {"http://localhost:8000": server.url, '"small_cnn"': '"delay"', '"10s"': '"300ms"'}
        asyncio.run(run_cells(changes))
        asyncio.run(run_cells(changes))  # as a reader runs it again
    assert names["run"].recommendation == names["found"]
    assert names["result"].measurement.requests > 5
    assert (tmp_path / "runs" / "notebook" / "run" / "report.html").is_file()
    assert all(not cell.get("outputs") for cell in notebook["cells"])  # of one machine, and soon old
