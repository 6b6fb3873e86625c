import json
import zipfile
from pathlib import Path

import pytest

from optimizer.errors import ExportFailed
from optimizer.model.pt2_expressions import check_expressions, is_arithmetic


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "2*s77",
        "Max(1, s0)",
        "FloorDiv(s0 + 1, 2)",
        "s0**2 - 1.5e-3",
        "u12 >= 2",
        "Max(Integer(1), Add(Symbol('s31', positive=True, integer=True), Integer(-1)))",
    ],
)
def test_sizes(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "open(s0)",
        "__import__(s0)",
        "().__class__",
        "s0.foo",
        "exec(s1)",
        "'s0'",
        "[s0]",
        "s0; s1",
        "lambda: s0",
        "Symbol('s0').x",
        "Symbol('s0', cls=open)",
        "Symbol('exit')",
    ],
)
def test_code(text: str) -> None:
    assert not is_arithmetic(text)


def archive(folder: Path, expression: str) -> Path:
    path = folder / "m.pt2"
    with zipfile.ZipFile(path, "w") as file:
        document = {"graph": {"sizes": [{"as_expr": {"expr_str": expression, "hint": None}}]}}
        file.writestr("m/models/model.json", json.dumps(document))
    return path


def test_an_archive(tmp_path: Path) -> None:
    check_expressions(archive(tmp_path, "s0 + 1"))
    with pytest.raises(ExportFailed, match="not arithmetic on sizes"):
        check_expressions(archive(tmp_path, "open(chr(47))"))
