"""What certification does next, decided without I/O from what is known.

`certify.py` writes down a `State`, asks `next_step`, has the step carried out, and asks again until it is `Done`:

| stage | the first of these that is true | step |
|---|---|---|
| find | something untried may be worth its seconds, and there is time for it | `Try` |
| | a rate is certified on two servers, and no higher one is worth its seconds | `Done` |
| | no rate can pass; the user asked to finish, and a rate is certified; the client is always late | `Done` |
| | a rate is worth a run: on a restarted server, if this one met it already | `Load` |
| watch | the machine was not seen for long enough, and there is time | `Watch` |
| | | `Done` |

The stages follow one another: `find` the best candidate, and `watch` the machine under it, after which it is
`find` again. What is held is sent a higher rate only for a gain that matters (`Policy.least_gain`): whoever tries
one after another until one is met gets a lucky one certified in the end.

A rate is *covered* if a candidate keeps it, simulated, at all speeds that the machine had so far; a load's rate is
88 to 98.5 % of the highest such, or lower. What one server met is *certified*, with a caveat; what a restarted
one met, too, is *held*, or as much of it as is covered now. A load is worth (held + chance x gain above it) x
e^(-seconds / `PATIENCE_S`). An overload of a trial refutes no rate here: it is of a few seconds, perhaps slow
ones, and what is covered counts it already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeVar

from loadgen.statistics.confirm import MIN_RUN_S
from search.certification.policy import POLICY, Policy
from search.study.acquisition import PATIENCE_S
from search.study.belief import Outlook
from search.trials.context import CONFIRMATIONS
from search.trials.predicted_trial import LATE_STEP


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

    `hopeless`: it ended as it would not have been met in its time. `client_late`: it measured the client.
    """

    rate_per_s: float
    server: int
    met: bool = False
    violated: bool = False
    hopeless: bool = False
    client_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A trial that can be certified, and its runs. `covered_per_s` is the highest rate that is covered."""

    number: int
    covered_per_s: float
    loading_s: float
    loaded: bool = False
    runs: tuple[Run, ...] = ()

    @property
    def sent_per_s(self) -> list[float]:
        """The rates that were sent by a client in time, ascending."""
        return sorted({run.rate_per_s for run in self.runs if not run.client_late})

    @property
    def client_late_per_s(self) -> float:
        """The rate up to which the client was late twice, above all at which it was in time."""
        late = [
            run.rate_per_s
            for at, run in enumerate(self.runs)
            if run.client_late
            and all(one.client_late or one.rate_per_s < run.rate_per_s for one in self.runs[at:])
        ]
        return sorted(late)[1] if late[1:] else math.inf


AnyRun = TypeVar("AnyRun", bound=Run)


def refuted_per_s(runs: Iterable[Run]) -> list[float]:
    """Return the rates that were violated, the lowest first."""
    return sorted({run.rate_per_s for run in runs if run.violated})


def met_on(runs: Sequence[AnyRun], rate_per_s: float = 0.0) -> dict[int, AnyRun]:
    """Return the runs that met a rate, by server: at it or, unless that is refuted, at a higher one."""
    latest = {(run.rate_per_s, run.server): run for run in runs if not run.client_late}
    below_per_s = min(refuted_per_s(runs), default=math.inf)
    able = {key: run for key, run in latest.items() if run.met and rate_per_s <= key[0] < below_per_s}
    return {server: able[rate, server] for rate, server in sorted(able, reverse=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """The best certified trial. `met_last`: its latest run's server met it. `lost`: a server failed since."""

    number: int
    held_per_s: float
    met_last: bool
    lost: bool


Stage = Literal["find", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a step depends on.

    `server` counts restarts. `least_s` is what any run
    takes because of colocated models. `trial_s` is the time without which no trial begins; infinite: none may be
    worth it. The machine is watched for `unseen_s` more, which takes `to_watch_s` at a time.
    """

    stage: Stage
    candidates: tuple[Candidate, ...] = ()
    best: Certified | None = None
    left_s: float
    server: int = 0
    stopping: bool = False
    untrusted: bool = False
    by_rate: bool = True
    fixed_per_s: float | None = None
    least_s: float = 0.0
    trial_s: float = math.inf
    unseen_s: float = 0.0
    to_watch_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Send a trial's load at a rate, and how the test is likely to end.

    `servers`: how many have to confirm it. `loading_s`: until it can begin; `reload_s`: until another server is
    up.
    """

    number: int
    rate_per_s: float
    outlook: Outlook
    servers: int = 1
    restart: bool = False
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

    def most_s(self, left_s: float) -> float:
        """Return how long the run may take of the seconds that are left when it begins."""
        return left_s if self.servers == 1 else max(MIN_RUN_S, (left_s - self.reload_s) / self.servers)


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
    best = state.best
    held_per_s = 0.0 if best is None else best.held_per_s
    if not state.stopping and state.left_s >= state.trial_s:
        return Try(by_luck=not held_per_s)
    planner = _Planner(state, simulate, policy)
    plan = planner.best(state.candidates, held_per_s)
    if held_per_s and (plan is None or plan.worth <= held_per_s):
        return Done()
    if plan is None or (state.stopping and best is not None) or state.untrusted:
        return Done(caveat=None if best is None or held_per_s else _caveat(state, best))
    return plan


def _caveat(state: State, best: Certified) -> Caveat:
    if state.stopping:
        return Caveat.STOPPED
    if best.lost:
        return Caveat.SERVER_FAILED
    if state.untrusted:
        return Caveat.NOT_TRUSTED
    return Caveat.NO_TIME if best.met_last else Caveat.NOT_AGAIN


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans loads. `once`: one server has to confirm a rate."""

    state: State
    simulate: Simulate
    policy: Policy

    def best(self, candidates: Iterable[Candidate], held_per_s: float = 0.0) -> Load | None:
        """Return the load that is worth most, the first that can pass if rates do not count; None: none can."""
        best: Load | None = None
        for one in candidates:
            if best is not None and (not self.state.by_rate or one.covered_per_s < best.worth):
                break
            plan = self._best_of(one, held_per_s, once=self.state.stopping)
            if plan is not None and (best is None or plan.worth > best.worth):
                best = plan
        return best

    def _best_of(self, one: Candidate, held_per_s: float, *, once: bool) -> Load | None:
        plans, state = self._plans(one, held_per_s, once=once), self.state
        best = max((plan for plan in plans if plan.outlook.share > 0), key=lambda plan: plan.worth, default=None)
        if held_per_s or state.left_s - self._loading_s(one) < MIN_RUN_S:
            return best
        if not once and (best is None or best.outlook.share < self.policy.likely):
            # A rate that is met on one server is better than none.
            alone = self._best_of(one, held_per_s, once=True)
            return alone if best is None or (alone is not None and alone.worth > best.worth) else best
        if best is None and plans and state.fixed_per_s is None:
            rate_per_s = self.policy.last_resort * min([plans[0].rate_per_s, *one.sent_per_s])
            return replace(plans[0], rate_per_s=rate_per_s, restart=state.server in met_on(one.runs, rate_per_s))
        return best

    def _plans(self, one: Candidate, held_per_s: float, *, once: bool) -> list[Load]:
        """Return the loads of the rates of which more may be expected than of those before them."""
        plans: list[Load] = []

        def tried(rate_per_s: float) -> bool:
            """Plan for a rate; True if it is the best so far."""
            most = max((plan.worth for plan in plans), default=held_per_s)
            plan = self._plan(one, rate_per_s, held_per_s, most, once=once)
            plans.extend(filter(None, [plan]))
            return plan is not None and plan.outlook.share > 0 and plan.worth > most

        if (fixed_per_s := self.state.fixed_per_s) is not None:
            if fixed_per_s not in refuted_per_s(one.runs):
                tried(fixed_per_s)
            return plans
        most_per_s, policy, best = self._most_per_s(one, held=held_per_s > 0), self.policy, self.state.best
        itself = best is not None and best.number == one.number
        least_per_s = held_per_s * (1 + policy.least_gain * itself)
        for rate_per_s in (rate for rate in one.sent_per_s if least_per_s < rate <= most_per_s):
            tried(rate_per_s)
        all(map(tried, (share * most_per_s for share in policy.shares if share * most_per_s > least_per_s)))
        rate_per_s = policy.lower * policy.shares[0] * most_per_s
        while rate_per_s > max(least_per_s, policy.lowest * most_per_s) and not (
            plans and max(plans, key=lambda plan: plan.worth).outlook.share == 1
        ):
            tried(rate_per_s)
            rate_per_s *= policy.lower
        return plans

    def _loading_s(self, one: Candidate) -> float:
        """Return the seconds until it is loaded and, if it has to be confirmed again, loaded once more."""
        again = not self.state.stopping and len(met_on(one.runs)) < CONFIRMATIONS
        return (again + (not one.loaded)) * one.loading_s

    def _most_per_s(self, one: Candidate, *, held: bool) -> float:
        """Return the highest rate that is worth a try: the belief has to cover it, and no run to speak against it.

        If the belief does not explain the last two rates that were violated, it is wrong: the next is twice as far
        below the last as that was below the one before, but not in the lower half above a met rate.
        """
        lower, refuted = self.policy.lower, self.policy.refuted
        given_up_per_s = min((run.rate_per_s for run in one.runs if run.hopeless), default=math.inf)
        last, before, *_ = *refuted_per_s(one.runs), math.inf, math.inf
        explained = one.covered_per_s < last or before == math.inf
        step = refuted if explained else min(refuted, (last / before) ** 2)
        met_per_s = max((run.rate_per_s for run in one.runs if run.met and run.rate_per_s < last), default=0.0)
        return min(
            one.covered_per_s,
            max(step * last, math.sqrt(met_per_s * last) if met_per_s else 0.0),
            (refuted if held else lower) * given_up_per_s,
            (lower if held else LATE_STEP) * one.client_late_per_s,
        )

    def _plan(
        self, one: Candidate, rate_per_s: float, held_per_s: float, least_worth: float, *, once: bool
    ) -> Load | None:
        """Return the load at a rate; None if there is too little time for it to be worth more."""
        state, on, loading_s = self.state, met_on(one.runs, rate_per_s), self._loading_s(one)
        servers = 1 if on or once else CONFIRMATIONS
        worthy_s = PATIENCE_S * math.log(rate_per_s / least_worth) if least_worth > 0 else math.inf
        seconds = (min(state.left_s, worthy_s) - loading_s) / servers
        here = [run.rate_per_s for run in one.runs if run.server == state.server and not run.client_late]
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
            loading_s=loading_s,
            reload_s=one.loading_s,
            held_per_s=held_per_s,
        )
