"""Fields of a config.pbtxt change in its text: all else stays byte for byte, and protobuf reads the change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repo.repository.config_pbtxt import parse_config_pbtxt
from model_repo.repository.pbtxt_text import bodies, fields, with_bodies, with_field, without_field

gaps = st.lists(
    st.sampled_from([" ", "\t", "\n", "\r\n", "# a { comment: [\n", '#"\n', "  # max_batch_size: 3\n"]), max_size=3
).map("".join)
some_gap = gaps.map(lambda gap: gap or " ")
strings = st.sampled_from(['"x"', "'it is'", r'"a \"{ quoted }\" [one]"', '"# no comment"', '"two" "parts"', '""'])
scalars = st.sampled_from(["1", "-7", "0x1F", "1.5e3", "true", "KIND_CPU", "- 3"]) | strings
messages = st.recursive(
    st.just("{}"),
    lambda inner: st.builds(
        "{{{}a:{}{}b{}{}}}".format, gaps, some_gap, scalars.map(lambda one: one + " "), some_gap, inner
    ),
    max_leaves=4,
)
unknown = st.builds("{}{}:{}{}".format, st.sampled_from(["future", "x9"]), gaps, gaps, scalars) | st.builds(
    "{}{}{}".format, st.sampled_from(["future", "[a.b/c.D]"]), gaps, messages
)
lists = st.lists(scalars | messages, max_size=3).map(lambda parts: f"many: [ {', '.join(parts)} ]")
known = st.sampled_from(
    [
        'backend: "python"',
        'parameters { key: "a" value { string_value: "max_batch_size: 1" } }',
        "parameters: { key: 'b', value: < string_value: \"}\" > }",
        'instance_group [ { name: "g" count: 2 }, { kind: KIND_GPU } ]',
        "instance_group { count: 1 }",
        'input [ { name: "x" dims: [ 1, -1 ] } ]',
    ]
)
others = st.lists(st.tuples(some_gap, unknown | lists | known, st.sampled_from(["", ",", ";"])), max_size=6)


def text_of(parts: list[tuple[str, str, str]]) -> str:
    return "".join(f"{gap}{field}{separator}" for gap, field, separator in parts) + "\n"


def message(text: str) -> Any:
    """What protobuf reads of the fields that it knows; it merges what is written twice."""
    read = (text[field.start : field.end] for field in fields(text) if field.name in KNOWN)
    return parse_config_pbtxt("\n".join(read), allow_unknown_fields=True)


KNOWN = ("parameters", "instance_group", "input", "max_batch_size")


@given(before=others, gap=some_gap, after=others, value=st.integers(0, 99))
def test_a_field_is_replaced_in_its_place_alone(before: Any, gap: str, after: Any, value: int) -> None:
    head, tail = text_of(before) + gap, some_separator(after)
    text = f"{head}max_batch_size{gap}:{gap}4{tail}"
    changed = with_field(text, "max_batch_size", str(value))
    assert changed == f"{head}max_batch_size: {value}{tail}"
    expected = message(text)
    expected.max_batch_size = value
    assert message(changed) == expected


def some_separator(after: list[tuple[str, str, str]]) -> str:
    return "," + text_of(after)


@given(parts=others, value=st.integers(0, 99))
def test_a_missing_field_comes_last(parts: Any, value: int) -> None:
    text = text_of(parts)
    changed = with_field(text, "max_batch_size", str(value))
    assert changed.startswith(text)
    assert changed.removeprefix(text).strip() == f"max_batch_size: {value}"
    assert message(changed).max_batch_size == value


@given(parts=others)
def test_every_field_is_found_with_all_of_its_characters(parts: Any) -> None:
    text = text_of(parts)
    assert [text[one.start : one.end] for one in fields(text)] == [field for _, field, _ in parts]


@given(parts=others, count=st.integers(1, 9))
def test_counts_of_groups_change_inside_their_brackets(parts: Any, count: int) -> None:
    text = text_of(parts)
    groups = bodies(text, "instance_group")
    same = with_bodies(text, "instance_group", groups)
    assert same == text
    new = [with_field(body, "count", str(count), inside=True) for body in groups]
    changed = with_bodies(text, "instance_group", new)
    expected = message(text)
    for group in expected.instance_group:
        group.count = count
    assert message(changed) == expected
    assert bodies(changed, "instance_group") == new


@given(parts=others, keep=st.lists(st.booleans(), min_size=12, max_size=12))
def test_elements_that_are_taken_out_leave_a_text_that_parses(parts: Any, keep: list[bool]) -> None:
    text = text_of(parts)
    groups = bodies(text, "instance_group")
    chosen = [body if kept else None for body, kept in zip(groups, keep, strict=False)]
    changed = with_bodies(text, "instance_group", [*chosen, *groups[len(chosen) :]])
    left = [group for group, body in zip(message(text).instance_group, chosen, strict=False) if body is not None]
    assert list(message(changed).instance_group) == left + list(message(text).instance_group)[len(chosen) :]
    assert message(changed).parameters == message(text).parameters


@given(parts=others)
def test_a_field_that_is_taken_out_leaves_the_others(parts: Any) -> None:
    text = text_of(parts)
    left = [field for _, field, _ in parts if not field.startswith("parameters")]
    changed = without_field(text, "parameters")
    assert [changed[one.start : one.end] for one in fields(changed)] == left
    assert changed.count("#") == text.count("#")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb {\n", 2), ("a: 1\n}", 2), ("\n\na", 3), ("a: 'x\n", 1), ("a: [ { ]", 1), ("a: ü", 1), ("{}", 1)],
)
def test_what_is_no_message_is_named_by_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line} "):
        fields(text)
