"""What certification does next, decided without I/O from what is known.

`certify.py` writes down a `State`, asks `next_step`, has the step carried out, and asks again until it is `Done`:

| stage | the first of these that is true | step |
|---|---|---|
| find | something untried may be worth its seconds, and there is time for it | `Try` |
| find, compare | a rate is certified on two servers, and no higher one is worth its seconds | `Done` |
| | no rate can pass; the user asked to finish, and a rate is certified; the client is always late | `Done` |
| | a candidate has met a rate on one server, and there is time to send the default its load in between | `Load` |
| | a rate is worth a run: on a restarted server, if this one met it already | `Load` |
| watch | the machine was not seen for long enough, and there is time | `Watch` |
| | | `Done` |

The stages follow one another: `find` the best candidate, `compare` the user's own configuration and the default
with it for as long, and `watch` the machine under it, after which it is `find` again. A run that is violated or
whose server fails only changes the state: another rate, another candidate or none is worth a run then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeVar

from loadgen.statistics.confirm import MIN_RUN_S
from search.study.acquisition import PATIENCE_S
from search.study.belief import Outlook
from search.trials.context import CONFIRMATIONS
from search.trials.predicted_trial import LATE_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers by which certification decides."""

    shares: tuple[float, ...] = (0.88, 0.91, 0.935, 0.955, 0.97, 0.985)
    """Rates are tried from 88 % of what the belief covers upwards, as long as they promise more."""

    lower: float = 0.85
    lowest: float = 0.2
    """If the lowest of these does not pass, lower ones are tried, down to a fifth."""

    likely: float = 0.5
    """If no rate passes on two servers in half of the simulated tests, one server has all of the time."""

    last_resort: float = 0.7
    """If no rate is likely to pass, 70 % of the lowest that was sent is tried."""

    refuted: float = 0.985
    """After a rate was violated, 98.5 % of it are the most that is tried; after one was given up, too, if a lower
    one is certified. Before, `lower` of it: the bursts that it met are longer than the simulated ones."""

    compared: int = 2
    """The candidates whose plans are compared."""

    first_server_share: float = 0.5
    """A run that has to be repeated on another server may take half of the time."""

    least_met_s: float = 5.0
    """A run that meets a rate lasts 5 s, if there is time. At 44,000/s the test decides within 3 s, which show
    little of how a machine drifts: two such runs met 44,463/s of an engine that did not keep 43,461/s for 10 s."""

    looks_hopeless: int = 4
    """A run ends after four looks in a row at which it cannot be met in its time, even if a burst was bad luck."""

    when_stopped_s: float = 30.0
    """After the user has asked to finish, certification takes at most 30 s."""

    min_for_default_s: float = 15.0
    """The default, which is only compared with, may take as long as the winner, and 15 s in any case."""

    watch_s: float = 5.0
    watched_s: float = 90.0
    """The machine is watched for 90 s, at the end in runs of 5 s: what comes once in 30 s is seen with 95 %."""

    enough_phases: int = 3
    """From three slow phases on, it is known how often they come and how slow they are."""

    small: float = 0.9
    """Slow phases are reported if they cost more than a tenth of the capacity."""


POLICY = Policy()


class Caveat(StrEnum):
    """Why a rate is confirmed once only."""

    STOPPED = "the run was stopped before it could be confirmed again"
    NO_TIME = "there was no time to confirm it again"
    SERVER_FAILED = "the server failed while it was confirmed again"
    NOT_AGAIN = "the SLO was not met again"
    NOT_TRUSTED = "the second confirmation was unreliable: the client was too slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run showed; `met`: together with those before it at its rate on its server.

    `hopeless`: it ended as it would not have been met in its time. `late`: it measured the client.
    """

    rate_per_s: float
    server: int
    met: bool = False
    violated: bool = False
    hopeless: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A trial that can be certified, and its runs. `covered_per_s`: what it keeps as the machine was seen."""

    number: int
    covered_per_s: float
    loading_s: float
    loaded: bool = False
    runs: tuple[Run, ...] = ()

    @property
    def late_per_s(self) -> float:
        """The rate up to which the client was late twice, above all at which it was in time."""
        late = [
            run.rate_per_s
            for number, run in enumerate(self.runs)
            if run.late and all(later.late or later.rate_per_s < run.rate_per_s for later in self.runs[number:])
        ]
        return sorted(late)[1] if late[1:] else math.inf


AnyRun = TypeVar("AnyRun", bound=Run)


def refuted_per_s(runs: Iterable[Run]) -> list[float]:
    """Return the rates that were violated, the lowest first."""
    return sorted({run.rate_per_s for run in runs if run.violated})


def met_on(runs: Sequence[AnyRun], rate_per_s: float = 0.0) -> dict[int, AnyRun]:
    """Return the runs that met a rate, by server: at it or, unless that is refuted, at a higher one."""
    latest = {(run.rate_per_s, run.server): run for run in runs if not run.late}
    below_per_s = min(refuted_per_s(runs), default=math.inf)
    able = {key: run for key, run in latest.items() if run.met and rate_per_s <= key[0] < below_per_s}
    return {server: able[rate, server] for rate, server in sorted(able, reverse=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """The best certified trial. `held_per_s` is what of its rate the belief covers; 0: it was met once only.

    `met_last`: its latest run was on a server that met the rate. `lost`: its server failed since.
    """

    number: int
    held_per_s: float
    met_last: bool
    lost: bool


Stage = Literal["find", "compare", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a step depends on.

    `server` counts restarts. `paired` is the default while it waits for a second run. `least_s` is what any run
    takes because of colocated models. `trial_s` is the time without which no trial begins; `untried`: one may be
    worth its seconds. The machine is watched for `unseen_s` more, which takes `to_watch_s` at a time.
    """

    stage: Stage
    candidates: tuple[Candidate, ...] = ()
    best: Certified | None = None
    paired: Candidate | None = None
    left_s: float
    server: int = 0
    stopping: bool = False
    untrusted: bool = False
    by_rate: bool = True
    fixed_per_s: float | None = None
    least_s: float = 0.0
    untried: bool = False
    trial_s: float = 0.0
    unseen_s: float = 0.0
    to_watch_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Send a trial's load at a rate, and how the test is likely to end.

    `servers`: how many have to confirm it. `between`: it is the default's, between two runs of a candidate.
    `loading_s`: until it can begin; `reload_s`: until another server is up. `held_per_s`: the certified rate.
    """

    number: int
    rate_per_s: float
    outlook: Outlook
    servers: int = 1
    restart: bool = False
    between: bool = False
    loading_s: float = 0.0
    reload_s: float = 0.0
    held_per_s: float = 0.0

    @property
    def worth(self) -> float:
        """The expected certified rate, less for the seconds it takes."""
        expected_per_s = self.held_per_s + self.outlook.share * max(0.0, self.rate_per_s - self.held_per_s)
        return expected_per_s * math.exp(-self.needed_s / PATIENCE_S)

    @property
    def needed_s(self) -> float:
        """The seconds until the rate is certified, if it passes."""
        return self.loading_s + self.servers * self.outlook.seconds

    def most_s(self, left_s: float, policy: Policy = POLICY) -> float:
        """Return how long the run may take of the seconds that are left when it begins."""
        return (
            left_s if self.servers == 1 else max(MIN_RUN_S, policy.first_server_share * (left_s - self.reload_s))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Run the trial that is most worth it; `by_luck`: among what may only have been profiled in slow phases."""

    by_luck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Send the certified trial its load to see the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The stage is over; `caveat`: why the best trial is confirmed on one server only."""

    caveat: Caveat | None = None


Step = Load | Try | Watch | Done
Simulate = Callable[[int, float, float, float], Outlook]
"""How the test of a trial at a rate is likely to end: its number, the rate, the seconds, and the least share of
interest."""


def next_step(state: State, simulate: Simulate, policy: Policy = POLICY) -> Step:
    """Return what to do next; the module's table says when it is what."""
    if state.stage == "watch":
        return Watch() if not state.stopping and state.unseen_s > 0 and state.left_s > state.to_watch_s else Done()
    held_per_s = 0.0 if state.best is None else state.best.held_per_s
    if state.untried and not state.stopping and state.left_s >= state.trial_s:
        return Try(by_luck=not held_per_s)
    plan = _best(state, state.candidates, held_per_s, simulate, policy)
    if held_per_s and (plan is None or plan.worth <= held_per_s):
        return Done()
    if plan is None or (state.stopping and state.best is not None) or state.untrusted:
        return Done(caveat=None if state.best is None or held_per_s else _caveat(state, state.best))
    return _between(state, plan, simulate, policy) or plan


def _caveat(state: State, best: Certified) -> Caveat:
    if state.stopping:
        return Caveat.STOPPED
    if best.lost:
        return Caveat.SERVER_FAILED
    if state.untrusted:
        return Caveat.NOT_TRUSTED
    return Caveat.NO_TIME if best.met_last else Caveat.NOT_AGAIN


def _between(state: State, plan: Load, simulate: Simulate, policy: Policy) -> Load | None:
    """Return the load of the default if a candidate is to be confirmed again, and there is time for both."""
    one = next(one for one in state.candidates if one.number == plan.number)
    if state.paired is None or len(met_on(one.runs, plan.rate_per_s)) != 1 or state.paired.number == plan.number:
        return None
    other = _best(state, (state.paired,), 0.0, simulate, policy)
    if other is None or plan.needed_s + one.loading_s + other.needed_s >= state.left_s:
        return None
    return replace(other, between=True)


def _best(
    state: State, candidates: tuple[Candidate, ...], held_per_s: float, simulate: Simulate, policy: Policy
) -> Load | None:
    """Return the load that is worth most; None if none can pass. The first candidate's, if not the rate counts."""
    best: Load | None = None
    for one in candidates:
        if best is not None and (not state.by_rate or one.covered_per_s < best.worth):
            break
        plan = _Planner(state, one, held_per_s, simulate, policy, once=state.stopping).best()
        if plan is not None and (best is None or plan.worth > best.worth):
            best = plan
    return best


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the load of a candidate. `once`: no second server will confirm it."""

    state: State
    candidate: Candidate
    held_per_s: float
    simulate: Simulate
    policy: Policy
    once: bool

    def best(self) -> Load | None:
        """Return the load that is worth most; None if no rate can pass in time and is worth it."""
        plans: list[Load] = []
        state, one, policy, held_per_s = self.state, self.candidate, self.policy, self.held_per_s

        def tried(rate_per_s: float) -> bool:
            """Plan for a rate; True if it is the best so far."""
            most = max((plan.worth for plan in plans), default=held_per_s)
            plan = self._plan(rate_per_s, most)
            plans.extend(filter(None, [plan]))
            return plan is not None and plan.outlook.share > 0 and plan.worth > most

        if state.fixed_per_s is not None:
            if state.fixed_per_s not in refuted_per_s(one.runs):
                tried(state.fixed_per_s)
        else:
            most_per_s = self._most_per_s()
            begun = {
                run.rate_per_s for run in one.runs if held_per_s < run.rate_per_s <= most_per_s and not run.late
            }
            for rate_per_s in sorted(begun):
                tried(rate_per_s)
            all(map(tried, (share * most_per_s for share in policy.shares if share * most_per_s > held_per_s)))
            rate_per_s = policy.lower * policy.shares[0] * most_per_s
            # Until the best plan passes in all simulated tests.
            while rate_per_s > max(held_per_s, policy.lowest * most_per_s) and not (
                plans and max(plans, key=lambda plan: plan.worth).outlook.share == 1
            ):
                tried(rate_per_s)
                rate_per_s *= policy.lower
        best = max((plan for plan in plans if plan.outlook.share > 0), key=lambda plan: plan.worth, default=None)
        if held_per_s or state.left_s - self._loading_s < MIN_RUN_S:
            return best
        if not self.once and (best is None or best.outlook.share < policy.likely):
            # A rate that is met on one server is better than none.
            alone = replace(self, once=True).best()
            return alone if best is None or (alone is not None and alone.worth > best.worth) else best
        if best is None and plans and state.fixed_per_s is None:
            sent = [run.rate_per_s for run in one.runs if not run.late]
            rate_per_s = policy.last_resort * min([plans[0].rate_per_s, *sent])
            return replace(plans[0], rate_per_s=rate_per_s, restart=state.server in met_on(one.runs, rate_per_s))
        return best

    @property
    def _loading_s(self) -> float:
        """The seconds until it is loaded and, if it has to be confirmed again, loaded once more."""
        again = not self.state.stopping and len(met_on(self.candidate.runs)) < CONFIRMATIONS
        return (again + (not self.candidate.loaded)) * self.candidate.loading_s

    def _most_per_s(self) -> float:
        """Return the highest rate that is worth a try: the belief has to cover it, and no run to speak against it.

        If the belief does not explain the last two rates that were violated, it is wrong: the next is twice as far
        below the last as that was below the one before, but not in the lower half above a met rate.
        """
        one, policy, held = self.candidate, self.policy, self.held_per_s > 0
        given_up_per_s = min((run.rate_per_s for run in one.runs if run.hopeless), default=math.inf)
        last, before, *_ = *refuted_per_s(one.runs), math.inf, math.inf
        explained = one.covered_per_s < last or before == math.inf
        step = policy.refuted if explained else min(policy.refuted, (last / before) ** 2)
        met_per_s = max((run.rate_per_s for run in one.runs if run.met and run.rate_per_s < last), default=0.0)
        return min(
            one.covered_per_s,
            max(step * last, math.sqrt(met_per_s * last) if met_per_s else 0.0),
            (policy.refuted if held else policy.lower) * given_up_per_s,
            (policy.lower if held else LATE_STEP) * one.late_per_s,
        )

    def _plan(self, rate_per_s: float, least_worth: float) -> Load | None:
        """Return the load at a rate; None if there is too little time for it to be worth more."""
        state, one, held_per_s = self.state, self.candidate, self.held_per_s
        on = met_on(one.runs, rate_per_s)
        servers = 1 if on or self.once else CONFIRMATIONS
        worthy_s = PATIENCE_S * math.log(rate_per_s / least_worth) if least_worth > 0 else math.inf
        seconds = (min(state.left_s, worthy_s) - self._loading_s) / servers
        here = [run.rate_per_s for run in one.runs if run.server == state.server and not run.late]
        if seconds < max(MIN_RUN_S, 0.0 if rate_per_s in here else state.least_s):
            return None
        least_share = (least_worth - held_per_s) / max(1e-9, rate_per_s - held_per_s)
        outlook = self.simulate(one.number, rate_per_s, seconds, least_share)
        least_s = max(state.least_s, min(self.policy.least_met_s, seconds))
        return Load(
            number=one.number,
            rate_per_s=rate_per_s,
            outlook=replace(outlook, seconds=max(outlook.seconds, least_s)),
            servers=servers,
            restart=state.server in on,
            loading_s=self._loading_s,
            reload_s=one.loading_s,
            held_per_s=held_per_s,
        )
