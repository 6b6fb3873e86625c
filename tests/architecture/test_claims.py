"""Every measured figure of the README and the docs follows from raw results, by `make claims`."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import claims  # noqa: E402 - found by the line above


def test_pages_and_raw_results_are_what_make_claims_would_write() -> None:
    assert claims.problems() == [], "run: make claims"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("<!-- claim:demo -->\n", "<!-- claim:demo -->\nForty-two. ", "README.md is stale"),
        ("## Two commands", "It serves 4,321/s.\n\n## Two commands", "README.md: 4,321/s is written by no claim"),
        (
            "## Two commands",
            "In `2026-11-20-gone/`.\n\n## Two commands",
            "README.md names 2026-11-20-gone, which is no folder",
        ),
        ("## Two commands", "It met 9 of 9.\n\n## Two commands", "README.md: 9 of 9 is written by no claim"),
    ],
)
def test_a_figure_that_no_claim_knows_is_found(
    old: str, new: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = claims.ROOT / "README.md"
    changed = tmp_path / "README.md"
    assert old in page.read_text()
    (tmp_path / "CHANGELOG.md").touch()
    changed.write_text(page.read_text().replace(old, new, 1))
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(claims, "pages", lambda: [changed])
    assert problem in claims.problems()
