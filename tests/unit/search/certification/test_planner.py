"""Which step follows from what is known."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from certifications import SLO, bench, ended, tried
from pydantic import TypeAdapter

from loadgen.spec.limits import LatencyLimit
from search.certification.planner import (
    Candidate,
    Caveat,
    Certified,
    Done,
    Load,
    Run,
    Simulate,
    State,
    Step,
    Try,
    Watch,
    next_step,
)
from search.certification.policy import POLICY, Policy
from search.study.belief import Outlook

CAPACITY = 1000.0
ONE = Candidate(number=1, covered_per_s=CAPACITY, loading_s=1.0)
HELD = Certified(number=1, held_per_s=700.0, met_last=True, lost=False)
ONCE = replace(HELD, held_per_s=0.0)


def outlook(number: int, rate_per_s: float, left_s: float, least_share: float) -> Outlook:
    """Tests end as met up to 95 % of the capacity, the later the nearer to it, if there is time."""
    needed_s = 3.0 / max(0.01, 1 - rate_per_s / CAPACITY) ** 0.5
    return Outlook(
        share=float(rate_per_s <= 0.95 * CAPACITY and needed_s <= left_s), seconds=min(needed_s, left_s)
    )


def step(*candidates: Candidate, simulate: Simulate = outlook, policy: Policy = POLICY, **known: Any) -> Step:
    known = {"stage": "find", "left_s": 100.0, **known}
    return next_step(State(candidates=candidates or (ONE,), **known), simulate, policy)


def load(*candidates: Candidate, **known: Any) -> Load:
    found = step(*candidates, **known)
    assert isinstance(found, Load)
    return found


def after(*runs: Run, **changes: Any) -> Candidate:
    return replace(ONE, runs=runs, **changes)


def run(rate_per_s: float, shown: str, server: int = 0) -> Run:
    return Run(rate_per_s=rate_per_s, server=server, **{shown: True})


def test_the_first_rate_is_below_the_capacity_and_two_servers_confirm_it() -> None:
    first = load()
    assert 0.7 * CAPACITY < first.rate_per_s < CAPACITY
    assert (first.servers, first.restart) == (2, False)
    assert first.needed_s <= 100.0
    assert first.most_s(81.0) == 40.0


def test_less_time_is_for_a_lower_rate_and_too_little_for_none() -> None:
    assert load(left_s=13.0).rate_per_s < load(left_s=300.0).rate_per_s
    assert step(left_s=1.5) == Done()
    assert step(replace(ONE, loading_s=299.0), left_s=300.0) == Done()


def test_a_rate_that_was_refuted_is_not_planned_again() -> None:
    assert load(after(run(800.0, "violated"))).rate_per_s < 800.0


def test_after_two_refuted_rates_the_next_is_twice_as_far_below_but_not_far_below_a_rate_that_was_met() -> None:
    refuted = after(run(1000.0, "violated"), run(800.0, "violated"))
    assert load(refuted).rate_per_s <= 800.0 * 0.8**2
    begun = after(run(700.0, "met"), run(700.0, "met", 1), *refuted.runs)
    assert 650.0 < load(begun, best=replace(HELD, held_per_s=650.0)).rate_per_s <= 750.0


def test_rates_that_slow_phases_explain_do_not_lower_the_next_below_what_is_covered() -> None:
    explained = after(run(1050.0, "violated"), run(770.0, "violated"), covered_per_s=700.0)
    assert 0.8 * 700.0 < load(explained).rate_per_s <= 700.0


def test_below_a_rate_at_which_a_run_was_hopeless_or_the_client_late_the_next_is_clearly_lower() -> None:
    assert load(after(run(800.0, "hopeless"))).rate_per_s <= POLICY.lower * 800.0
    late = run(800.0, "client_late")
    assert load(after(late)).rate_per_s > 800.0
    assert load(after(late, late)).rate_per_s <= 400.0
    assert load(after(late, late, run(850.0, "met"), late)).rate_per_s > 800.0


def test_with_a_certified_rate_only_a_higher_one_that_is_worth_its_seconds_is_planned() -> None:
    assert load(best=HELD).worth > HELD.held_per_s
    assert step(best=replace(HELD, held_per_s=0.95 * CAPACITY)) == Done()


def test_the_rate_of_the_objective_is_the_only_one() -> None:
    asked: dict[str, Any] = {"by_rate": False, "fixed_per_s": 500.0}
    assert load(**asked).rate_per_s == 500.0
    assert step(after(run(500.0, "violated")), **asked) == Done()
    assert load(after(run(500.0, "violated")), replace(ONE, number=2), **asked).number == 2


def test_the_candidate_that_is_worth_more_is_loaded_the_second_only_if_it_may_be_better() -> None:
    dear, cheap = replace(ONE, loading_s=40.0), replace(ONE, number=2, covered_per_s=990.0)
    assert load(dear, cheap).number == 2
    assert load(ONE, replace(cheap, covered_per_s=500.0)).number == 1


def test_if_no_rate_is_likely_to_pass_a_far_lower_one_is_tried() -> None:
    hopeless = load(simulate=lambda *asked: Outlook(share=0.0, seconds=5.0))
    assert hopeless.rate_per_s < 0.65 * CAPACITY


def test_a_load_is_worth_more_the_likelier_and_the_sooner_it_passes() -> None:
    def worth(share: float, seconds: float, **changes: Any) -> float:
        return Load(number=1, rate_per_s=900.0, outlook=Outlook(share=share, seconds=seconds), **changes).worth

    assert worth(0.9, 10.0) > worth(0.5, 10.0) > worth(0.5, 20.0)
    assert worth(0.9, 10.0) > worth(0.9, 10.0, servers=2) > worth(0.9, 10.0, servers=2, loading_s=9)
    assert worth(0.0, 0.0, held_per_s=500.0) == 500.0


@pytest.mark.parametrize(
    ("known", "caveat"),
    [
        ({"stopping": True}, Caveat.STOPPED),
        ({"untrusted": True}, Caveat.NOT_TRUSTED),
        ({"left_s": 0.5}, Caveat.NO_TIME),
        ({"left_s": 0.5, "best": replace(ONCE, met_last=False)}, Caveat.NOT_AGAIN),
        ({"left_s": 0.5, "best": replace(ONCE, lost=True)}, Caveat.SERVER_FAILED),
    ],
)
def test_what_is_confirmed_on_one_server_says_why(known: dict[str, Any], caveat: Caveat) -> None:
    assert step(**{"best": ONCE, **known}) == Done(caveat=caveat)
    assert step(**{**known, "best": replace(HELD, held_per_s=0.95 * CAPACITY)}) == Done()


def test_what_is_untried_is_tried_first_if_there_is_time() -> None:
    assert step(trial_s=10.0) == Try(by_luck=True)
    assert step(trial_s=10.0, best=HELD) == Try(by_luck=False)
    assert isinstance(step(trial_s=101.0), Load)
    assert isinstance(step(trial_s=10.0, stopping=True), Load)


def test_the_machine_is_watched_until_it_was_seen_for_long_enough() -> None:
    known: dict[str, Any] = {"stage": "watch", "to_watch_s": 5.0}
    assert step(**known, unseen_s=1.0) == Watch()
    for change in ({"unseen_s": 0.0}, {"stopping": True}, {"left_s": 5.0}):
        assert step(**{"unseen_s": 1.0, **known, **change}) == Done()


def test_another_policy_decides_otherwise() -> None:
    assert load(policy=Policy(shares=(0.5,))).rate_per_s == 0.5 * CAPACITY


def test_the_steps_of_a_search_follow_again_from_their_states_as_json(tmp_path: Path) -> None:
    """A rate is met on two servers, and the machine is watched."""
    taken: list[tuple[str, dict[tuple[float, ...], Outlook], Step]] = []

    def decide(state: State, simulate: Simulate, policy: Policy) -> Step:
        asked: dict[tuple[float, ...], Outlook] = {}

        def noting(*what: float) -> Outlook:
            asked[what] = simulate(*what)  # type: ignore[arg-type]
            return asked[what]

        found = next_step(state, noting, policy)
        taken.append((json.dumps(asdict(state)), asked, found))
        return found

    policy = Policy(shares=(0.8,), watched_s=20.0)
    slo = SLO.model_copy(update={"limits": (LatencyLimit(limit_ms=50.0, quantile=0.9),)})
    ended(tmp_path, bench(), tried(tmp_path, 16, 1), slo=slo, total_s=60.0, policy=policy, decide=decide)
    assert {type(found) for _, _, found in taken} >= {Load, Watch, Done}
    for text, asked, found in taken:
        state = TypeAdapter(State).validate_python(json.loads(text))
        assert next_step(state, lambda *what, asked=asked: asked[what], policy) == found
