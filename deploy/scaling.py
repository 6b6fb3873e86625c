"""How many replicas, and at which load another one is added: from the certified rate and the traffic's growth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from deploy.errors import BundleRefused
from search.cost import replicas

RATE_WINDOW_S = 60.0
SCRAPE_INTERVAL_S = 15.0
HPA_SYNC_S = 15.0
HPA_TOLERANCE = 0.1
"""The window of the scaler's query and the interval of its samples, as this bundle sets them; how often the
autoscaler looks (`--horizontal-pod-autoscaler-sync-period`) and what it overlooks
(`--horizontal-pod-autoscaler-tolerance`), as Kubernetes does by default: kubernetes.io/docs/reference/
command-line-tools-reference/kube-controller-manager."""

ASSUMED_PEAK = 2.0
ASSUMED_RAMP_S = 600.0
ASSUMED_START_S = 60.0
"""What stands in for what nobody said: the peak as a multiple of the rate, how long the traffic takes to grow to
it, and how long a replica takes to start where the run did not measure it."""

DEFAULT_MAX_REPLICAS = 100

StartSource = Literal["measured", "given", "assumed"]
"""Who says how long a replica takes to start: the run, without image and node; the user; nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic to serve: its usual rate, its highest, and how long it takes to grow from one to the other."""

    rate_per_s: float
    peak_rate_per_s: float
    ramp_s: float
    assumed: tuple[str, ...] = ()  # what nobody said, in words

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= self.peak_rate_per_s < math.inf:
            raise BundleRefused(
                f"A peak of {self.peak_rate_per_s:g}/s is below the rate of {self.rate_per_s:g}/s.",
                "Give a --peak-rate that is not below --rate, both above zero.",
            )
        if not 0 < self.ramp_s < math.inf:
            raise BundleRefused(
                f"A ramp of {self.ramp_s:g} s is not possible.", "Give --ramp a duration, such as 10m."
            )

    @property
    def growth_per_s2(self) -> float:
        """Requests per second that are added in a second of the ramp."""
        return (self.peak_rate_per_s - self.rate_per_s) / self.ramp_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What the autoscaler is told, and the figures it was derived from. Rates are in requests per second."""

    certified_rate_per_s: float
    target_rate_per_s: float  # per replica: above it another one is started
    min_replicas: int
    max_replicas: int
    start_s: float
    start_source: StartSource
    reaction_s: float
    traffic: Traffic

    @property
    def headroom(self) -> float:
        """The share of the certified rate that the target leaves free."""
        return 1 - self.target_rate_per_s / self.certified_rate_per_s

    @property
    def lead(self) -> float:
        """What the traffic grows to, as a multiple of the usual rate, while a replica is on its way."""
        return 1 + self.traffic.growth_per_s2 * self.reaction_s / self.traffic.rate_per_s


def traffic_from(
    *,
    certified_rate_per_s: float,
    rate_per_s: float | None,
    peak_rate_per_s: float | None,
    ramp_s: float | None = None,
) -> Traffic:
    """The traffic that was asked for, with what nobody said filled in and named. Raises BundleRefused."""
    assumed = []
    if rate_per_s is None:
        rate_per_s = certified_rate_per_s
        if peak_rate_per_s is not None:
            rate_per_s = min(rate_per_s, peak_rate_per_s)
        assumed.append(f"a usual rate of {rate_per_s:,.4g}/s, as much as one replica is certified for (--rate)")
    if peak_rate_per_s is None:
        peak_rate_per_s = ASSUMED_PEAK * rate_per_s
        assumed.append(f"a peak of {ASSUMED_PEAK:g} times that (--peak-rate)")
    if ramp_s is None:
        ramp_s = ASSUMED_RAMP_S
        assumed.append(f"that traffic takes {ASSUMED_RAMP_S / 60:g} minutes to grow to its peak (--ramp)")
    return Traffic(rate_per_s=rate_per_s, peak_rate_per_s=peak_rate_per_s, ramp_s=ramp_s, assumed=tuple(assumed))


def scaling_for(
    traffic: Traffic,
    *,
    certified_rate_per_s: float,
    start_s: float | None,
    start_source: StartSource = "measured",
    max_replicas: int = DEFAULT_MAX_REPLICAS,
) -> Scaling:
    """Target and bounds of the autoscaler. `start_s` None: not known. Raises BundleRefused over `max_replicas`.

    A replica that is asked for helps only `reaction_s` later: the query sees the middle of its window, a sample is
    up to one scrape old, the autoscaler looks once in its period, and the replica has to start. Meanwhile the rate
    r grows by g times that. With n replicas each at the target t and a tolerance e of the autoscaler, nothing is
    started before r = n t (1 + e), and n c must still be enough `reaction_s` later:

        n t (1 + e) + g T <= n c,   so with r the usual rate   t = c / ((1 + e) (1 + g T / r))

    which is lead-time demand of inventory control (Silver, Pyke and Thomas, Inventory and Production Management in
    Supply Chains, ch. 7: the reorder point is the demand over the lead time) with replicas in stock; e and the
    rule n = ceil(rate / t) are the autoscaler's (kubernetes.io/docs/concepts/workloads/autoscaling).
    There is always one replica more than the usual rate needs, so that a drain or a lost node keeps the limit.
    """
    if start_s is None:
        start_s, start_source = ASSUMED_START_S, "assumed"
    reaction_s = RATE_WINDOW_S / 2 + SCRAPE_INTERVAL_S + HPA_SYNC_S + start_s
    lead = 1 + traffic.growth_per_s2 * reaction_s / traffic.rate_per_s
    target = certified_rate_per_s / ((1 + HPA_TOLERANCE) * lead)
    headroom = 1 - target / certified_rate_per_s

    def needed(rate_per_s: float) -> int:
        spare = replicas(rate_per_s, certified_rate_per_s) + 1
        return max(spare, replicas(rate_per_s, certified_rate_per_s, headroom=headroom))

    most = needed(traffic.peak_rate_per_s)
    if most > max_replicas:
        raise BundleRefused(
            f"{traffic.peak_rate_per_s:,.10g} requests/s need {most:,} replicas at {target:,.4g}/s each, "
            f"more than the limit of {max_replicas:,}.",
            "Raise --max-replicas, or give a lower --peak-rate.",
        )
    return Scaling(
        certified_rate_per_s=certified_rate_per_s,
        target_rate_per_s=target,
        min_replicas=needed(traffic.rate_per_s),
        max_replicas=most,
        start_s=start_s,
        start_source=start_source,
        reaction_s=reaction_s,
        traffic=traffic,
    )
