"""Claims are computed from rows, and a page that lacks the figures of new raw results is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from claims import changed_raw, stale_pages
from lib.claims.declared import claims_of
from lib.claims.figures import figure_text
from lib.claims.pages import with_claims
from lib.claims.rows import ClaimFailed, rows_of

ROWS = [
    {"kind": "cnn", "rate": 90.0, "capacity": 100.0, "met": True, "at": {"p99_ms": [1.5]}},
    {"kind": "cnn", "rate": 110.0, "capacity": 100.0, "met": False},
    {"kind": "cpu", "rate": None, "capacity": 50.0, "met": True},
]
CLAIM = """
[machine]
vm = "two cores"

[claim.audits]
says = "{met} of {n} met it."
machine = "vm"
date = 2026-11-23
raw = ["a.jsonl"]
n = { take = "count" }
misses = { take = "count", where = { met = false } }
missed = "all {misses} late"
values.met = { take = "count", where = { met = true } }
table.by = ["kind"]
table.columns = [{ head = "kind", of = "kind" }, { head = "rate", of = "rate", take = "max", as = "rate" }]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "audits.toml").write_text(CLAIM)
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return tmp_path


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"take": "count"}, "3"),
        ({"of": "rate", "take": "count"}, "2"),
        ({"of": "rate / capacity", "take": "mean", "as": "percent"}, "100.0 %"),
        ({"of": "rate / capacity", "take": "max", "as": "hundredths"}, "1.10"),
        ({"take": "count", "where": {"rate / capacity": "> 1"}}, "1"),
        ({"take": "count", "where": {"rate": "unknown"}}, "1"),
        ({"take": "count", "where": {"kind": ["cnn", "gpu"]}}, "2"),
        ({"of": "at.p99_ms.0", "as": "ms"}, "1.50 ms"),
        ({"of": "rate", "where": {"kind": "cpu"}, "as": "rate"}, "-"),
        # Clopper-Pearson, one-sided: 1 of 3 is false; P(at most 1 of 3 | p) = 0.05 at p = 0.8646.
        ({"of": "met", "take": "bound", "as": "percent"}, "86.5 %"),
        ({"of": "rate / capacity <= 1", "take": "bound", "as": "percent"}, "97.5 %"),
        (1500, "1,500"),
    ],
)
def test_a_figure_follows_from_rows(declared: Any, text: str) -> None:
    assert figure_text(declared, ROWS) == text


def test_rows_come_from_each_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,ms\nx,1.5\n")
    (tmp_path / "b.json").write_text(json.dumps({"inner": {"list": [{"ms": 2}]}}))
    assert rows_of(tmp_path / "a.csv", None) == ({"file": "a", "name": "x", "ms": 1.5},)
    assert rows_of(tmp_path / "b.json", "inner.list") == ({"file": "b", "ms": 2},)
    with pytest.raises(ClaimFailed, match=r"gone\.json"):
        rows_of(tmp_path / "gone.json", None)


def test_a_claim_has_its_misses_and_its_table(folder: Path) -> None:
    claim = claims_of(folder)["audits"]
    assert claim.line == ("2 of 3 met it.", "vm", "2026-11-23", "3", "1: all 1 late")
    assert claim.table == "| kind | rate |\n| --- | --- |\n| cnn | 110/s |\n| cpu | - |"


def test_markers_are_filled_and_filled_again(folder: Path) -> None:
    claims = claims_of(folder)
    page = "So <!-- claim:audits.misses --><!-- /claim -->.\n\n<!-- claim:audits -->\nold\n<!-- /claim -->\n"
    filled = with_claims(page + "<!-- table:audits --><!-- /table -->\n", claims)
    assert "So <!-- claim:audits.misses -->1: all 1 late<!-- /claim -->." in filled
    assert "<!-- claim:audits -->\n2 of 3 met it.\n<!-- /claim -->" in filled
    assert "| cnn | 110/s |" in filled
    assert with_claims(filled, claims) == filled
    assert "| vm | two cores |" in with_claims("<!-- table:machines --><!-- /table -->", claims)


def test_a_page_is_stale_only_if_raw_results_of_its_claims_changed(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *author, *command], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str, text: str) -> None:
        path = tmp_path / "docs" / "benchmarks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git("add", ".")
        git("commit", "--message", name)

    git("init")
    (tmp_path / "README.md").write_text("<!-- claim:audits.met -->7<!-- /claim -->")
    commit("README.md", "")
    commit("claims/audits.toml", CLAIM)
    commit("a.jsonl", "".join(f"{json.dumps(row)}\n" for row in ROWS))
    claims = claims_of(tmp_path / "docs" / "benchmarks")
    assert changed_raw(tmp_path) == {"a.jsonl"}
    assert list(stale_pages(tmp_path, claims, {"a.jsonl"})) == ["README.md"]
    assert list(stale_pages(tmp_path, claims, {"b.jsonl"})) == []
    commit("other.txt", "")
    assert "a.jsonl" not in changed_raw(tmp_path)
    (tmp_path / "docs" / "benchmarks" / "a.jsonl").write_text("{}")
    assert "a.jsonl" in changed_raw(tmp_path)
