"""Kubernetes' rule for the number of replicas, as the autoscalers of a bundle follow it; KEDA only sets it up.

The algorithm: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from deploy.scaling import DOWN_WINDOW_S, HPA_TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePolicy:
    """How far the number of replicas may change within a period: by so many pods, or by a share of them."""

    period_s: float
    pods: int = 0
    share: float = 0.0


UP_AT_ONCE = (ChangePolicy(share=1.0, period_s=15.0), ChangePolicy(pods=4, period_s=15.0))
DOWN_BY_ONE = (ChangePolicy(pods=1, period_s=60.0),)
"""The policies of a bundle. Kubernetes' default for scaling down is all at once, 100 % within 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """The settings of an autoscaler. The metric is the requests/s of all replicas, its target that of one."""

    target_per_s: float
    min_replicas: int
    max_replicas: int
    up: tuple[ChangePolicy, ...] = UP_AT_ONCE
    down: tuple[ChangePolicy, ...] = DOWN_BY_ONE
    up_window_s: float = 0.0
    down_window_s: float = DOWN_WINDOW_S
    tolerance: float = HPA_TOLERANCE


@dataclass(slots=True, kw_only=True)
class Autoscaler:
    """The replicas that an autoscaler asks for, one sync after the other."""

    behavior: Behavior
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)  # recommendations and their times
    _changes: deque[tuple[float, int]] = field(default_factory=deque)  # replicas that were added or removed

    def replicas(self, now_s: float, current: int, metric_per_s: float) -> int:
        """Return the number of replicas from now on; `current` of them exist, ready or not."""
        rule, wanted = self.behavior, current
        if abs(metric_per_s / (rule.target_per_s * current) - 1) > rule.tolerance:
            wanted = math.ceil(metric_per_s / rule.target_per_s)
        allowed = self._within_rates(now_s, current, self._stabilized(now_s, current, wanted))
        answer = min(max(allowed, rule.min_replicas), rule.max_replicas)
        if answer != current:
            self._changes.append((now_s, answer - current))
        return answer

    def _stabilized(self, now_s: float, current: int, wanted: int) -> int:
        """Return the closest number to the current one that was recommended within the window of its direction."""
        rule = self.behavior
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - max(rule.up_window_s, rule.down_window_s):
            self._wanted.popleft()
        up = min(one for at_s, one in self._wanted if at_s >= now_s - rule.up_window_s)
        down = max(one for at_s, one in self._wanted if at_s >= now_s - rule.down_window_s)
        return min(max(current, up), down)

    def _within_rates(self, now_s: float, current: int, wanted: int) -> int:
        """Return the number that the policy of the larger change allows."""
        rule = self.behavior
        policies = rule.up if wanted > current else rule.down
        limits = []
        for policy in policies:
            changed = sum(change for at_s, change in self._changes if at_s > now_s - policy.period_s)
            at_start = current - changed
            step = policy.pods or policy.share * at_start
            limits.append(math.ceil(at_start + step) if wanted > current else math.floor(at_start - step))
        kept_s = max(policy.period_s for policy in (*rule.up, *rule.down))
        while self._changes and self._changes[0][0] <= now_s - kept_s:
            self._changes.popleft()
        if wanted > current:
            return min(wanted, max(current, *limits))
        return max(wanted, min(current, *limits))
