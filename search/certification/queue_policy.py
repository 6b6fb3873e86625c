"""Measure what the queue policy of the user's own configuration costs: the same load with it and without."""

from __future__ import annotations

from dataclasses import replace

from loadgen.statistics.capacity_fit import evaluate_probe
from model_repo.spec import Engine
from search.records.recommendation import QueuePolicyRecord
from search.records.trial import LoadRunRecord
from search.trials import events
from search.trials.bench import BenchFailed
from search.trials.capacity_trial import MAX_RUN_S, MIN_RUN_S
from search.trials.context import TrialContext, load_run_of
from search.trials.trial import Trial

TIMES = 2
"""Both are measured twice, in turn: two figures each show by how much they differ anyway."""

SHARE_OF_BUDGET = 0.1
"""All of it takes at most 10 % of the time budget, or is left out."""

SHARE_OF_CAPACITY = 0.5
"""Triton holds requests back until the next one comes, which is soon at the capacity, and later in daily use."""

SEED_OF_RUN = 49_979_687
"""Added to the seed of the run: other arrivals than those of trials, the same with the policy and without."""


def cost_of_policy(context: TrialContext, own: Trial | None, without: Engine) -> QueuePolicyRecord | None:
    """Return load runs on the user's configuration and, in turn, on that with the engine `without` its policy.

    None, with a note, if it has no capacity, the time is too short, `context.stop` is true or the server fails.
    """
    runs: list[LoadRunRecord] = []
    times = 2 * TIMES
    rate_per_s, budget = 0.0, context.budget
    until_s = budget.elapsed_s() + SHARE_OF_BUDGET * min(budget.total_s, budget.left_s() / (1 - SHARE_OF_BUDGET))
    if own is not None and own.rate_at_limit_per_s:
        rate_per_s = SHARE_OF_CAPACITY * own.rate_at_limit_per_s
    seconds, loading_s = MAX_RUN_S, 0.0 if own is None else own.loading_s
    try:
        while own is not None and rate_per_s and len(runs) < times and not context.stop():
            seconds = min(seconds, (until_s - budget.elapsed_s()) / (times - len(runs)) - loading_s)
            if seconds < MIN_RUN_S:
                break
            seed, began_s = context.seed + SEED_OF_RUN * (1 + len(runs) // 2), budget.elapsed_s()
            context.bench.load(replace(own.served, engine=without) if len(runs) % 2 else own.served)
            loading_s = max(loading_s, budget.elapsed_s() - began_s)
            probe = context.bench.measure(rate_per_s, seconds, seed, lambda _: context.stop())
            seen = evaluate_probe(probe, rate_per_s, context.slo.tested)
            runs.append(load_run_of(seen, probe, context.slo.tested, seed=seed))
        why = "the time was too short" if rate_per_s or own is None else "it met the limit at no rate"
    except BenchFailed as failure:
        why = failure.reason.splitlines()[0]
    if context.stop():
        return None
    if len(runs) < times:
        text = f"Your configuration was not measured without its queue policy: {why}."
        context.on_event(events.Note(text=text, warning=True))
        return None
    record = QueuePolicyRecord(
        quantile=context.slo.first.quantile,
        rate_per_s=rate_per_s,
        with_it=tuple(runs[::2]),
        without=tuple(runs[1::2]),
    )
    context.on_event(events.Note(text=record.text, warning=True))
    return record
