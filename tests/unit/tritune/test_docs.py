"""Commands of the pages, snippets of docs/python.md and cells of the notebook run in order, as for a reader."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from fake_triton import fake_triton
from llm_server import MODEL, llm_server
from onnx_models import small_cnn
from own_repositories import python_model

import loadgen.cli
import optimizer.cli
import tritune

ROOT = Path(__file__).parents[3]
COMMANDS = {
    page: re.findall(r"^[\w-]*\$ (.+)$", (ROOT / page).read_text().replace("\\\n", ""), re.MULTILINE)
    for page in ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
}
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


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("page", [page for page, lines in COMMANDS.items() if lines])
def test_the_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for program in ("docker", "tritonserver"):
        Path(program).symlink_to("/bin/true")
    for name in ("labels", "pipeline", "scorer", "sentiment", "tokenizer"):
        python_model(tmp_path / "models", name)
    small_cnn(tmp_path / "m.onnx")
    subprocess.run([sys.executable, ROOT / "examples" / "small_transformer.py", "bert.onnx"], check=True)
    Path("lengths.txt").write_text("16\n128\n")
    Path("texts.json").write_text('{"data": [{"x": [1, 2, 3, 4]}]}')
    if runs := set(re.findall(r"RUN_DIR|runs/[\w-]+", " ".join(COMMANDS[page]))):
        tritune.optimize("m.onnx", p99="50ms", time_budget="30s", output="run", rate=200, instances="1")
        [shutil.copytree("run", run) for run in runs]
    parts = [part for line in COMMANDS[page] for part in re.split(r" (?:&&|\|) ", line)]
    optimize: Any = typer.main.get_command(optimizer.cli.app)
    with fake_triton("--delay-ms", "1") as server, llm_server(ttft_s=0.005, tpot_s=0.0001) as llm:
        for program, *words in filter(None, (shlex.split(part, comments=True) for part in parts)):
            name = Path(program).name
            if name == "optimize" and words[0] in ("doctor", "serve", "worker"):  # tests of `system` run them
                optimize.commands[words[0]].make_context(words[0], words[1:])
            elif name == "optimize":
                dry = [] if words[0] in optimize.commands else ["--dry-run"]
                assert optimizer.cli.run_command([*words, *dry]) in (0, 97), words
            elif name == "loadtest":
                url, model = (f"{llm.url}/v1", MODEL) if "--api" in words else (server.url, "delay")
                at = [url if "://" in word else word for word in words]
                code = loadgen.cli.run_command([*at, "--model", model, "--duration", "1s"])
                assert code not in (1, 2, 3) or "--compare" in words, words  # of a busy machine's baseline
            else:
                assert name in ("docker", "export", "jq", "locust", "make", "pip", "python", "python3", "unzip"), (
                    name
                )
                assert all((ROOT / word).is_file() for word in words if word.endswith((".py", ".Dockerfile"))), (
                    words
                )
