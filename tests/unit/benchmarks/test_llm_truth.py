"""Who is right about a server of tokens."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.llm.tools import TOOLS, Seen
from llm_truth import judged, keep


def served(good: int, bad: int) -> list[dict[str, Any]]:
    """Requests with 100 ms to the first token and 10 ms per further one."""
    whole = {
        "arrived_s": 5.0,
        "first_s": 5.1,
        "last_s": 5.41,
        "asked": 32,
        "api": "chat",
        "good": True,
        "request": {},
    }
    return [whole] * good + [{**whole, "first_s": None, "last_s": None, "good": False}] * bad


@pytest.mark.parametrize(
    ("seen", "right"),
    [
        (Seen(20, 100.0, 10.0), True),
        (Seen(21, 109.0, 9.1), True),
        (Seen(40, 100.0, 10.0), False),
        (Seen(20, 1.0, 10.0), False),
        (Seen(20, 100.0, 5.0), False),
        (Seen(20, None, 10.0), False),
        (Seen(20, 200.0, 10.0, doubted=True), False),
        (None, False),
    ],
)
def test_a_tool_is_right_if_its_count_and_its_medians_are_those_of_the_server(seen: Seen, right: bool) -> None:
    row = judged(served(20, 20), seen, ended=True, slow=False)
    assert (row["sent"], row["good"], row["ttft_ms"], row["tpot_ms"]) == (40, 20, 100.0, 10.0)
    assert row["right"] is right
    assert row["cell"].startswith("right" if right else "wrong")


def test_a_tool_that_does_not_end_is_wrong() -> None:
    cells = [judged(served(20, 20), None, ended=ended, slow=False)["cell"] for ended in (False, True)]
    assert cells[0] != cells[1]


def test_a_client_that_was_stopped_is_right_to_doubt_its_figures() -> None:
    rows = [
        judged(served(40, 0), Seen(40, 250.0, 9.0, doubted), ended=True, slow=True) for doubted in (True, False)
    ]
    assert [row["right"] for row in rows] == [True, False]


def test_a_line_replaces_that_of_the_same_tool_and_behaviour(tmp_path: Path) -> None:
    path, (first, second, *_) = tmp_path / "truth.jsonl", (tool.name for tool in TOOLS)
    for behaviour, tool, cell in [
        ("stalled", first, "a"),
        ("plain", second, "b"),
        ("plain", first, "c"),
        ("stalled", first, "d"),
    ]:
        keep(path, {"behaviour": behaviour, "tool": tool, "cell": cell})
    cells = [line.partition('"cell": ')[2] for line in path.read_text().splitlines()]
    assert cells == ['"c"}', '"b"}', '"d"}']
