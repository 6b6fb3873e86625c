"""Records: what they take from a file, and what of it is fit to be shown."""

from typing import Any

import pytest
from pydantic import ValidationError

from loadgen.measurement.cpu_contention import CpuContention
from search.record import FolderName, ModelName, Record, Sha256, Version


class Note(Record):
    text: str = ""
    share: float = 0.0
    count: int = 0
    parts: tuple[float, ...] = ()
    words: dict[str, str] | None = None
    contention: CpuContention | None = None


class Names(Record):
    model: ModelName = "m"
    folder: FolderName = "model_repository"
    sha256: Sha256 = "0" * 64
    version: Version = "0.1.0"


@pytest.mark.parametrize(
    "text",
    [
        '{"share": NaN}', '{"share": Infinity}', '{"share": 1e999}', '{"share": 1e16}',
        '{"count": 9223372036854775808}', '{"parts": [1, -Infinity]}', '{"text": "\\ud800"}', '{"other": 1}',
        '{"contention": {"watched_s": 1e16}}', '{"contention": {"watched_s": NaN}}',
        '{"contention": {"seconds": 1}}',
        "[" * 200_000, '{"words":' * 200_000, "", "\0",
    ],
)  # fmt: skip
def test_what_no_run_writes_is_refused_with_a_validation_error(text: str | bytes | bytearray) -> None:
    with pytest.raises(ValidationError):
        Note.model_validate_json(text)


def test_texts_become_printable_and_are_cut() -> None:
    note = Note(text="\x1b[2J\u202ea\nb", words={"\x07": "\x9b"})
    assert note.text == "\\x1b[2J\\u202ea\nb"
    assert note.words == {"\\x07": "\\x9b"}
    assert len(Note(text="x" * 50_000).text) == 10_000
    assert Note.model_validate_json(note.model_dump_json()) == note


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("model", name) for name in ("", ".", "..", "../m", "/m", "a/b", "a b", "a\nb", "-x", "x" * 256)),
        *(("folder", name) for name in ("..", "/etc", "a/../..", "a\0b")),
        *(("sha256", text) for text in ("0", "0" * 63 + "\n", "G" * 64)),
        *(("version", text) for text in ("1\n2", "1 2", "$(id)", "")),
    ],
)
def test_a_name_is_nothing_but_a_name(field: Any, value: Any) -> None:
    with pytest.raises(ValidationError):
        Names(**{field: value})


def test_a_changed_copy_is_checked_too() -> None:
    assert Note(text="a", count=1).changed(text="b") == Note(text="b", count=1)
    for wrong in ({"counts": 1}, {"count": "many"}):
        with pytest.raises(ValidationError):
            Note().changed(**wrong)
