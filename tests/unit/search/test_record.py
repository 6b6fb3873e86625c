"""Records: what they take from a file, and what of it is fit to be shown."""

import pytest
from pydantic import ValidationError

from search.record import Record


class Note(Record):
    text: str = ""
    count: int = 0
    words: dict[str, str] | None = None


@pytest.mark.parametrize("text", ['{"other": 1}', '{"text": "\\ud800"}', "[" * 200_000, "", "\0"])
def test_what_no_run_writes_is_refused_with_a_validation_error(text: str) -> None:
    with pytest.raises(ValidationError):
        Note.model_validate_json(text)


def test_texts_become_printable_and_are_cut() -> None:
    note = Note(text="\x1b[2J\u202ea\nb", words={"\x07": "\x9b"})
    assert note.text == "\\x1b[2J\\u202ea\nb"
    assert note.words == {"\\x07": "\\x9b"}
    assert len(Note(text="x" * 50_000).text) == 10_000
    assert Note.model_validate_json(note.model_dump_json()) == note


def test_a_changed_copy_is_checked_too() -> None:
    assert Note(text="a", count=1).changed(text="b") == Note(text="b", count=1)
    for wrong in ({"counts": 1}, {"count": "many"}):
        with pytest.raises(ValidationError):
            Note().changed(**wrong)
