"""Execution times of the members of an ensemble, from closed loops on the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from search.simulator.pooling import execution_s, never_falling, pooled
from search.simulator.server import NO_NOISE
from search.simulator.service_times import (
    ClosedLoop,
    NotMeasured,
    ServiceCurve,
    answered_per_s,
    lone_latency_s,
)


def member_curves(
    loops: Sequence[ClosedLoop],
    counts: Mapping[str, int],
    way_s: Callable[[Mapping[str, float]], float],
) -> dict[str, ServiceCurve]:
    """Return the curve of each member of an ensemble, by its name, from runs of which the first is of one user.

    `counts` are their instances. Those of all together are the key: nobody knows how many are busy, and the times
    are those of the crowd. `way_s` returns the seconds along the longest way from those of each member. All have
    the overhead of the whole. Raises NotMeasured.
    """
    for name in counts:
        seen = loops[0].members.get(name, ())
        # Several load processes warm the server up at once, which makes a few batches.
        if sum(row.executions for row in seen if row.batch_size > 1) > 0.5 * sum(row.executions for row in seen):
            raise NotMeasured(f"a request brings {name} several rows")
    lone_s = {name: max(map(execution_s, loops[0].members.get(name, ())), default=0.0) for name in counts}
    overhead_s = max(0.0, lone_latency_s(loops[0]) - way_s(lone_s))
    curves, let_through_per_s = {}, max(answered_per_s(loop.log) for loop in loops[1:]) or math.inf
    for name in counts:
        rows = pooled([row for loop in loops[1:] for row in loop.members.get(name, ())], ())
        if not rows or not lone_s[name] > 0:
            raise NotMeasured(f"the server has no table of the batch sizes that {name} executes")
        sizes, executions, seconds = (np.array(column) for column in zip(*rows, strict=True))
        knots, means = never_falling(sizes, executions, seconds)
        curves[name] = ServiceCurve(
            busy=sum(counts.values()),
            sizes=knots,
            seconds=means,
            handover_s=None,
            fit_error=0.0,
            overhead_s=overhead_s,
            noise=NO_NOISE,
            let_through_per_s=let_through_per_s,
        )
    return curves
