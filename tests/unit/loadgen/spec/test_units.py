import pytest

from loadgen.errors import BadInput
from loadgen.spec.units import duration_ms, memory_bytes, shapes_from_texts, share_from_text


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("50ms", 50), ("0.2s", 200), ("1.5 s", 1500), ("250us", 0.25), ("10m", 600_000), ("1e2ms", 100), ("+5ms", 5)],
)
def test_durations_are_read_with_their_unit(text: str, expected_ms: float) -> None:
    assert duration_ms(text, option="--p99", default_unit="ms") == pytest.approx(expected_ms)


def test_what_a_number_without_a_unit_was_taken_for_is_noted_in_that_unit() -> None:
    notes: list[str] = []
    assert duration_ms("1.5", option="--warmup", default_unit="s", note=notes.append) == 1500
    assert duration_ms("2s", option="--warmup", default_unit="s", note=notes.append) == 2000
    assert duration_ms("50", option="--p99", default_unit="ms", note=notes.append) == 50
    assert notes == ["--warmup 1.5 has no unit: taken as 1.5 s.", "--p99 50 has no unit: taken as 50 ms."]


@pytest.mark.parametrize("text", ["0", "-5ms", "50 parsecs", "fast", "", "nan", "inf", "1e999ms", "ms", "5 m s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        duration_ms(text, option="--p99", default_unit="ms")
    assert "--p99" in caught.value.what
    assert "--p99 50ms" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ids:128", ("ids", (128,))), ("image:3,224,224", ("image", (3, 224, 224))), ("a:b:2x3", ("a:b", (2, 3)))],
)
def test_a_shape_is_a_name_and_its_sizes(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert shapes_from_texts([text]) == dict([expected])


@pytest.mark.parametrize("text", ["ids", "ids:", ":3", "ids:0", "ids:-1", "ids:1,,2", "ids:²", "ids:1.5"])
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--shape"):
        shapes_from_texts([text])


@pytest.mark.parametrize(("text", "expected"), [("0.1%", 0.001), ("0%", 0.0), ("5 %", 0.05)])
def test_a_percentage_is_a_share(text: str, expected: float) -> None:
    assert share_from_text(text, option="--max-errors") == pytest.approx(expected)


@pytest.mark.parametrize("text", ["0.1", "-1%", "100%", "many", ""])
def test_a_bare_number_is_no_percentage_because_it_could_mean_two_things(text: str) -> None:
    with pytest.raises(BadInput, match="--max-errors"):
        share_from_text(text, option="--max-errors")


@pytest.mark.parametrize(
    ("text", "expected"), [("8GiB", 8 * 2**30), ("512 MiB", 2**29), ("1.5gb", 1_500_000_000), ("100KB", 100_000)]
)
def test_memory_is_read_with_its_unit(text: str, expected: int) -> None:
    assert memory_bytes(text, option="--max-memory") == expected


@pytest.mark.parametrize("text", ["8", "lots", "-1GiB", "0GiB", "8GiBs", "8Gi B"])
def test_memory_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--max-memory"):
        memory_bytes(text, option="--max-memory")
