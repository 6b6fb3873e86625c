"""A load run is only called what it decided."""

import pytest

from search.records.trial import LoadRunRecord


@pytest.mark.parametrize(
    ("answer", "met", "late", "overloaded", "word"),
    [
        ("violated", False, 400, False, "violated"),
        ("met", True, 0, False, "met"),
        ("inconclusive", True, 20, False, "looks met"),
        ("inconclusive", False, 90, False, "looks violated"),
        ("inconclusive", False, 0, False, "inconclusive"),
        (None, False, 0, False, "inconclusive"),
        (None, False, None, False, "looks violated"),
        ("inconclusive", False, 0, True, "overloaded"),
    ],
)
def test_zero_of_many_late_requests_are_no_violation(
    answer: str | None, met: bool, late: int | None, overloaded: bool, word: str
) -> None:
    run = LoadRunRecord.model_validate(
        {
            "rate_per_s": 700.0,
            "latency_ms": 31.0,
            "met": met,
            "trusted": True,
            "answer": answer,
            "requests": 6089,
            "violations": late,
            "overloaded": overloaded,
        }
    )
    assert run.word == word
