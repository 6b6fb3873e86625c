"""How long a certificate takes at a rate, how the budget is divided for it, and what the user is shown first."""

import pytest

from loadgen.spec.limits import LatencyLimit
from search.records.slo import Slo
from search.trials.budget import (
    MARGIN,
    USUAL,
    Budget,
    affordable_confidence,
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


@pytest.mark.parametrize("total_s", [180.0, 100.0, 30.0, 5.0])
def test_a_low_rate_gets_more_of_the_budget_and_a_note_says_so(total_s: float) -> None:
    usual, short = budget(total_s).certify_s(), budget(total_s)
    note = keep_time_to_certify(short, 70.0, SLO)
    assert note is not None
    assert f"{short.certify_s():.0f} s of the time budget are kept for it" in note
    assert usual < short.certify_s() <= usual_certificate_s(70.0, SLO)
    assert short.search_left_s() == pytest.approx(total_s - short.certify_s())
    assert ("--time-budget" in note) is (short.certify_s() < usual_certificate_s(70.0, SLO))


def test_a_slower_best_after_a_fast_one_is_not_noted() -> None:
    roomy = budget(300.0)
    assert keep_time_to_certify(roomy, 70.0, SLO) is None
    assert keep_time_to_certify(roomy, 5.0, SLO) is None
