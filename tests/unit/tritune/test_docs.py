"""The snippets of docs/python.md run one after another, as a reader would run them."""

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
            exec(re.sub("|".join(changes), lambda match: changes[match[0]], snippet), names)  # noqa: S102
    assert names["run"].recommendation.exit_code == names["found"].exit_code == 0
    assert names["result"].measurement.requests > 10
    assert len(names["trials"]) == len(names["run"].trials)
    assert "2 bad_input" in capsys.readouterr().out
