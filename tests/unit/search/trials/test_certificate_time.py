"""How long a certificate takes at a rate, how the budget is divided for it, and what the user is shown first."""

import pytest

from loadgen.spec.limits import LatencyLimit
from search.records.slo import Slo
from search.trials.budget import (
    MARGIN,
    MAX_CERTIFY_SHARE,
    USUAL,
    Budget,
    affordable_confidence,
    budget_for,
    keep_time_to_certify,
    least_certificate_s,
    usual_certificate_s,
)

SLO = Slo(limits=(LatencyLimit(limit_ms=300.0),))


def budget(total_s: float) -> Budget:
    made = Budget(total_s=total_s, clock=lambda: 0.0, started=0.0)
    made.begin_search()
    return made


def test_a_certificate_takes_two_runs_and_usually_twice_the_least_time() -> None:
    least_s = least_certificate_s(70.0, SLO, 0.95)
    assert 40.0 < least_s < 50.0
    assert usual_certificate_s(70.0, SLO) == pytest.approx(USUAL * least_s)
    assert least_certificate_s(7.0, SLO, 0.95) > 1.5 * least_s
    assert least_certificate_s(70.0, SLO, 0.8) < 0.65 * least_s


def test_a_budget_is_for_preparation_search_and_certificate_of_which_certification_gets_seventy_percent() -> None:
    assert budget_for(70.0, prepared_s=9.0) == 9.0 + 100.0
    assert budget_for(70.0, prepared_s=9.0, searched_s=30.0) == 9.0 + 100.0
    assert budget_for(70.0, prepared_s=9.0, searched_s=31.0) == 9.0 + 101.0


def test_a_lower_confidence_is_certified_only_if_the_time_is_too_short_for_the_slos() -> None:
    enough_s = MARGIN * least_certificate_s(70.0, SLO, 0.95)
    assert affordable_confidence(70.0, SLO, enough_s) == 0.95
    assert affordable_confidence(70.0, SLO, 0.99 * enough_s) == 0.9
    assert affordable_confidence(70.0, SLO, 0.75 * enough_s) == 0.8
    assert affordable_confidence(70.0, SLO, 1.0) == 0.8
    easy = SLO.model_copy(update={"confidence": 0.85})
    assert affordable_confidence(70.0, easy, 1.0) == 0.8
    assert affordable_confidence(70.0, easy, enough_s) == 0.85


def test_where_a_certificate_takes_no_longer_than_usual_nothing_changes() -> None:
    roomy = budget(300.0)
    before_s = roomy.certify_s()
    assert keep_time_to_certify(roomy, 70.0, SLO) is None
    assert roomy.certify_s() == before_s


def test_a_low_rate_gets_more_of_the_budget_and_the_note_says_how_long_it_takes() -> None:
    short = budget(180.0)
    assert keep_time_to_certify(short, 70.0, SLO) == (
        "p99 at about 70/s takes some 88 s to certify; 88 s of the time budget are kept for it."
    )
    assert short.certify_s() == pytest.approx(usual_certificate_s(70.0, SLO))
    assert short.search_left_s() == pytest.approx(180.0 - short.certify_s())


@pytest.mark.parametrize(
    ("total_s", "allowed"),
    [
        (100.0, "70 s of the time budget are kept for it. That allows 95 % confidence at a lower rate or p95"),
        (60.0, "42 s of the time budget are kept for it. That allows 80 % confidence at a lower rate or p95"),
        (30.0, "21 s of the time budget are kept for it. That allows p95"),
        (5.0, "4 s of the time budget are kept for it. That is too short"),
    ],
)
def test_a_budget_that_is_too_short_is_known_before_the_search(total_s: float, allowed: str) -> None:
    short = budget(total_s)
    text = f"p99 at about 70/s takes some 88 s to certify; {allowed}; --time-budget 127s is enough for all."
    assert keep_time_to_certify(short, 70.0, SLO) == text
    assert short.certify_s() == pytest.approx(MAX_CERTIFY_SHARE * total_s)


def test_it_is_noted_once_unless_a_faster_configuration_halves_the_time() -> None:
    short = budget(200.0)
    assert keep_time_to_certify(short, 5.0, SLO) is not None
    slow_s = short.certify_s()
    assert keep_time_to_certify(short, 4.0, SLO) is None
    assert keep_time_to_certify(short, 5.0, SLO) is None
    assert keep_time_to_certify(short, 70.0, SLO) == (
        "p99 at about 70/s takes some 88 s to certify; 90 s of the time budget are kept for it."
    )
    assert short.certify_s() < slow_s
    assert keep_time_to_certify(short, 700.0, SLO) is None


def test_a_slower_best_after_a_fast_one_is_not_noted() -> None:
    roomy = budget(300.0)
    assert keep_time_to_certify(roomy, 70.0, SLO) is None
    assert keep_time_to_certify(roomy, 5.0, SLO) is None
