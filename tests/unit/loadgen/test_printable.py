"""Unit: text of strangers is shown without anything that steers a terminal."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.printable import printable, printable_json

ANY_TEXT = st.text(st.characters())  # lone surrogates among them


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("resnet50 · 3 × ok", "resnet50 · 3 × ok"),
        ("\x1b[2J\x1b[H KEPT", r"\x1b[2J\x1b[H KEPT"),
        ("\x9b31m", r"\x9b31m"),
        ("a\x07\x08\x7f\x00", r"a\x07\x08\x7f\x00"),
        ("user\u202etxt.exe\u2066\u2069\u200e\u061c", r"user\u202etxt.exe\u2066\u2069\u200e\u061c"),
        ("in\u200bvisible\ufeff\u2060\u200d", r"in\u200bvisible\ufeff\u2060\u200d"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("file \udce9", r"file \udce9"),
        ("one\r\ntwo\tthree\u2028four\u2029five\x85six\xa0seven", "one  two three four five six seven"),
    ],
)
def test_what_is_not_printable_is_an_escape_and_a_break_is_a_space(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_stay_where_lines_are_wanted() -> None:
    assert printable("one\ntwo\r\n\x1b", lines=True) == "one\ntwo \n\\x1b"


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    shown = printable("x" * 10_000, most=100)

    assert len(shown) == 100
    assert shown.endswith("... (10,000 characters)")


@given(ANY_TEXT, st.integers(0, 60), st.booleans())
def test_the_result_is_printable_no_longer_than_allowed_and_stays_as_it_is(
    text: str, most: int, lines: bool
) -> None:
    shown = printable(text, most=most, lines=lines)

    assert len(shown) <= most
    assert all(
        unicodedata.category(char)[0] not in "CZ" or char == " " or (lines and char == "\n") for char in shown
    )
    assert printable(shown, most=most, lines=lines) == shown


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_means_the_same_and_is_printable(value: Any) -> None:
    document = json.dumps(value, ensure_ascii=False, indent=2)

    shown = printable_json(document)

    assert json.loads(shown) == value
    assert all(char.isprintable() or char == "\n" for char in shown)
