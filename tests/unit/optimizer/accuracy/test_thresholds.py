from typing import Any

import pytest

from loadgen.errors import BadInput
from optimizer.accuracy.thresholds import Thresholds, accuracy_rule
from optimizer.precision.names import PRECISIONS


def test_strict_is_what_the_table_says() -> None:
    rule = accuracy_rule("strict")
    assert rule.thresholds("fp16") == Thresholds(sqnr_db=40, cosine=0.9999, top1=0.995)
    assert rule.thresholds("int8") == Thresholds(sqnr_db=22, cosine=0.997, top1=0.99)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_standard_asks_for_no_more_than_strict(precision: Any) -> None:
    strict, standard = (accuracy_rule(level).thresholds(precision) for level in ("strict", "standard"))
    for name in ("sqnr_db", "cosine", "top1"):
        assert (getattr(standard, name) or 0) <= (getattr(strict, name) or 0)


def test_off_asks_for_nothing() -> None:
    assert accuracy_rule("off").thresholds("int8") == Thresholds()


def test_changes() -> None:
    rule = accuracy_rule("standard, sqnr_db=28, max_error=0.5")
    assert rule.thresholds("fp16") == Thresholds(sqnr_db=28, cosine=0.999, top1=0.99, max_error=0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lax", "'lax' is not a level"),
        ("strict,sqnr=3", "'sqnr=3' changes no threshold"),
        ("strict,cosine=much", "'cosine=much'"),
        ("strict,cosine=nan", "'cosine=nan'"),
        ("sqnr_db=3", "is not a level"),
    ],
)
def test_bad_rules(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        accuracy_rule(text)
