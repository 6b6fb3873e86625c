"""Which rate of a trial is planned next."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certifications import EXECUTION_S, PER_S, SLO, belief, bench, tried
from unsteady_machine import Speed, UnsteadyBench

from loadgen.statistics.confirm import Attempt
from search.certification.plans import ConfirmationRun, Evidence, Plan, Planner
from search.study.belief import Belief, Outlook
from search.trials.trial import Trial


@pytest.fixture
def one(tmp_path: Path) -> Trial:
    return tried(tmp_path, 16, 1)


@pytest.fixture
def known(tmp_path: Path, one: Trial) -> Belief:
    return belief(tmp_path, bench(), one)


def sent(known: Belief, one: Trial, rate_per_s: float, evidence: Evidence | None = None) -> Evidence:
    """Return the evidence after a run of 20 s at this rate on server 0."""
    evidence = evidence or Evidence(limits=SLO.limits)
    known.bench.load(one.served)
    log = known.bench.measure(rate_per_s, 20.0, 5).log
    (verdict,) = evidence.verdicts(rate_per_s, 0, log)
    attempt = Attempt(rate_per_s=rate_per_s, load_s=20.0, verdict=verdict, overloaded=False, problems=())
    run = ConfirmationRun(rate_per_s=rate_per_s, log=log, seconds=20.0, server=0, contention=None)
    evidence.add(run, attempt)
    return evidence


def best(known: Belief, one: Trial, evidence: Evidence | None = None, **options: Any) -> Plan | None:
    planner = Planner(belief=known, server=options.pop("server", 0), fixed_per_s=options.pop("fixed_per_s", None))
    return planner.best(one, evidence or Evidence(limits=SLO.limits), **{"left_s": 100.0, **options})


def test_the_first_rate_is_below_the_capacity(known: Belief, one: Trial) -> None:
    plan = best(known, one)
    assert 0.7 * PER_S[16] < plan.rate_per_s < PER_S[16]
    assert plan.servers == 2
    assert plan.needed_s <= 100.0


def test_less_time_is_for_a_lower_rate_and_too_little_for_none(known: Belief, one: Trial) -> None:
    plenty, little = best(known, one, left_s=300.0), best(known, one, left_s=11.0)
    assert little.rate_per_s <= plenty.rate_per_s
    assert best(known, one, left_s=1.5) is None
    assert best(known, one, left_s=300.0, loading_s=299.0) is None


def test_a_rate_that_one_server_met_is_preferred(known: Belief, one: Trial) -> None:
    begun = 0.85 * PER_S[16]
    plan = best(known, one, sent(known, one, begun), left_s=8.0, server=1)
    assert (plan.rate_per_s <= begun, plan.servers) == (True, 1)


def test_a_rate_that_was_refuted_is_not_planned_again(known: Belief, one: Trial) -> None:
    evidence = sent(known, one, 1.2 * PER_S[16])
    evidence.refuted_per_s = 1000.0
    plan = best(known, one, evidence)
    assert plan.rate_per_s < 1000.0


def test_after_two_refuted_rates_the_next_is_twice_as_far_below_but_not_far_below_a_rate_that_was_met(
    known: Belief, one: Trial
) -> None:
    plan = best(known, one, Evidence(limits=SLO.limits, refuted_per_s=800.0, refuted_before_per_s=1000.0))
    assert plan.rate_per_s <= 800.0 * 0.8**2
    begun = sent(known, one, 700.0)
    begun.refuted_per_s, begun.refuted_before_per_s = 800.0, 1000.0
    plan = best(known, one, begun, held_per_s=700.0)
    assert 700.0 < plan.rate_per_s <= 750.0


def test_rates_that_slow_phases_explain_do_not_lower_the_next_below_what_is_covered(
    tmp_path: Path, one: Trial
) -> None:
    speed = Speed(np.array([1.0] * 8 + [0.5] * 3 + [1.0] * 9), 1.0)
    known = belief(tmp_path, UnsteadyBench(service_s=lambda config, size: EXECUTION_S, speed=speed), one)
    known.bench.load(one.served)
    known.bench.measure(600.0, 20.0, 1)
    covered_per_s = known.highest_covered(one)
    assert covered_per_s < 0.7 * PER_S[16]
    evidence = Evidence(limits=SLO.limits)
    evidence.refuted_per_s, evidence.refuted_before_per_s = 1.1 * covered_per_s, 1.5 * covered_per_s
    plan = best(known, one, evidence)
    assert 0.7 * covered_per_s < plan.rate_per_s <= covered_per_s


def test_with_a_certified_rate_only_a_higher_one_that_is_worth_its_seconds_is_planned(
    known: Belief, one: Trial
) -> None:
    plan = best(known, one, held_per_s=0.7 * PER_S[16])
    assert plan.worth > 0.7 * PER_S[16]
    assert best(known, one, held_per_s=PER_S[16] * 1.1) is None


def test_the_rate_of_the_objective_is_the_only_one(known: Belief, one: Trial) -> None:
    plan = best(known, one, fixed_per_s=500.0)
    assert (plan.rate_per_s, plan.outlook.share) == (500.0, 1.0)
    assert best(known, one, fixed_per_s=2 * PER_S[16]) is None
    evidence = Evidence(limits=SLO.limits, refuted_per_s=500.0)
    assert best(known, one, evidence, fixed_per_s=500.0) is None


def test_a_plan_is_worth_more_the_likelier_and_the_sooner_it_passes(one: Trial) -> None:
    def plan(share: float, seconds: float, **changes: Any) -> Plan:
        return Plan(trial=one, rate_per_s=900.0, outlook=Outlook(share=share, seconds=seconds), **changes)

    assert plan(0.9, 10.0).worth > plan(0.5, 10.0).worth > plan(0.5, 20.0).worth
    assert plan(0.9, 10.0).worth > plan(0.9, 10.0, servers=2).worth > plan(0.9, 10.0, servers=2, loading_s=9).worth
    assert plan(0.0, 0.0, held_per_s=500.0).worth == 500.0
