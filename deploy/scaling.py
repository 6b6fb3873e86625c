"""Compute the number of replicas, and the rate that adds one, from the certified rate and the traffic's growth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from loadgen.errors import BadInput
from loadgen.records.formats import format_rate
from search.cost.cost import replicas
from search.records.autoscale import AutoscaleRecord

RATE_WINDOW_S = 60.0
SCRAPE_INTERVAL_S = 15.0
HPA_SYNC_S = 15.0
HPA_TOLERANCE = 0.1
"""This bundle sets the window of the scaler's query and the interval of its samples. The autoscaler's period
(`--horizontal-pod-autoscaler-sync-period`) and the share of the target that it ignores
(`--horizontal-pod-autoscaler-tolerance`) are the defaults of Kubernetes: kubernetes.io/docs/reference/
command-line-tools-reference/kube-controller-manager."""

ASSUMED_PEAK = 2.0
ASSUMED_RAMP_S = 600.0
ASSUMED_START_S = 60.0
"""Values for options that were not given: the peak as a multiple of the rate, the time in which traffic grows to
it, and the time until a replica is ready if the run did not measure it."""

DOWN_WINDOW_S = 600.0
"""A replica is removed when so long a time has not needed it (`stabilizationWindowSeconds`)."""

DEFAULT_MAX_REPLICAS = 100

StartSource = Literal["measured", "given", "assumed"]
"""Source of a replica's start time: the run, without image and node; the user; `ASSUMED_START_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic to serve: its usual rate, its highest rate, and the time in which it grows to that."""

    rate_per_s: float
    peak_rate_per_s: float
    ramp_s: float
    assumed: tuple[str, ...] = ()  # options that were not given, in words

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= self.peak_rate_per_s < math.inf:
            raise BadInput(
                f"A peak of {self.peak_rate_per_s:g}/s is below the rate of {self.rate_per_s:g}/s.",
                "Give a --peak-rate that is not below --rate, both above zero.",
            )
        if not 0 < self.ramp_s < math.inf:
            raise BadInput(f"A ramp of {self.ramp_s:g} s is not possible.", "Give --ramp a duration, such as 10m.")

    @property
    def growth_per_s2(self) -> float:
        """Return the requests per second that are added per second of the ramp."""
        return (self.peak_rate_per_s - self.rate_per_s) / self.ramp_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Settings of the autoscaler, and the figures behind them. Rates are in requests per second."""

    certified_rate_per_s: float
    target_rate_per_s: float  # per replica: above it, another one is started
    min_replicas: int
    max_replicas: int
    start_s: float
    start_source: StartSource
    reaction_s: float
    traffic: Traffic
    down_window_s: float = DOWN_WINDOW_S
    judged: AutoscaleRecord | None = None  # the replay that chose target, bounds and window

    @property
    def headroom(self) -> float:
        """Return the share of the certified rate that the target leaves free."""
        return 1 - self.target_rate_per_s / self.certified_rate_per_s

    @property
    def lead(self) -> float:
        """Return the factor by which traffic grows from the usual rate while a replica starts."""
        return 1 + self.traffic.growth_per_s2 * self.reaction_s / self.traffic.rate_per_s


def most_in_flight(rate_per_s: float, limit_s: float) -> int:
    """Return how many requests in flight a replica answers within the limit, at its certified rate, and one more.

    By Little's law so many take the limit. The one more is for replicas with very few in flight, which would
    refuse requests at their certified rate.
    """
    return math.ceil(rate_per_s * limit_s) + 1


def start_of(given_s: float | None, measured_s: float | None) -> tuple[float, StartSource]:
    """Return the time in which a replica starts: the given one, else the measured or the assumed one."""
    if given_s is not None:
        return given_s, "given"
    return (measured_s, "measured") if measured_s is not None else (ASSUMED_START_S, "assumed")


def traffic_from(
    *,
    certified_rate_per_s: float,
    rate_per_s: float | None,
    peak_rate_per_s: float | None,
    ramp_s: float | None = None,
) -> Traffic:
    """Return the requested traffic; missing values are assumed, and listed in `assumed`. Raises BadInput."""
    assumed = []
    if rate_per_s is None:
        rate_per_s = certified_rate_per_s
        if peak_rate_per_s is not None:
            rate_per_s = min(rate_per_s, peak_rate_per_s)
        assumed.append(
            f"a usual rate of {format_rate(rate_per_s)}/s, as much as one replica is certified for (--rate)"
        )
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
    start_s: float,
    start_source: StartSource = "measured",
    max_replicas: int = DEFAULT_MAX_REPLICAS,
) -> Scaling:
    """Return target and bounds of the autoscaler. Raises BadInput if the peak needs over `max_replicas`.

    A new replica helps only T = `reaction_s` after the rate has grown: the
    query sees the middle of its window, a sample is up to one scrape old, the autoscaler runs once per period, and
    the replica has to start. Meanwhile the rate r grows by g T, with g the growth per second. The autoscaler has a
    tolerance e: with n replicas at the target t, it starts none before r = n t (1 + e). The n replicas, each
    certified for c, must still be enough T later:

        n t (1 + e) + g T <= n c,   so with r the usual rate   t = c / ((1 + e) (1 + g T / r))

    This is the lead-time demand of inventory control (Silver, Pyke and Thomas, Inventory and Production Management
    in Supply Chains, ch. 7: the reorder point is the demand over the lead time) with replicas in stock. e and the
    rule n = ceil(rate / t) are the autoscaler's (kubernetes.io/docs/concepts/workloads/autoscaling). There is
    always one replica more than the usual rate needs, so that the limit is met during a drain or without a node.
    """
    reaction_s = _reaction_s(start_s)
    lead = 1 + traffic.growth_per_s2 * reaction_s / traffic.rate_per_s
    target = certified_rate_per_s / ((1 + HPA_TOLERANCE) * lead)
    headroom = 1 - target / certified_rate_per_s

    def needed(rate_per_s: float) -> int:
        spare = replicas(rate_per_s, certified_rate_per_s) + 1
        return max(spare, replicas(rate_per_s, certified_rate_per_s, headroom=headroom))

    most = needed(traffic.peak_rate_per_s)
    if most > max_replicas:
        raise BadInput(
            f"{traffic.peak_rate_per_s:,.10g} requests/s need {most:,} replicas at {format_rate(target)}/s each, "
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


def judged_scaling(
    judged: AutoscaleRecord, *, certified_rate_per_s: float, measured_start_s: float | None
) -> Scaling:
    """Return the settings that a replay has chosen, for its traffic."""
    chosen = judged.chosen
    assert chosen.target_rate_per_s is not None
    assert chosen.down_window_s is not None
    known = judged.start_s == measured_start_s
    return Scaling(
        certified_rate_per_s=certified_rate_per_s,
        target_rate_per_s=chosen.target_rate_per_s,
        min_replicas=chosen.min_replicas,
        max_replicas=chosen.max_replicas,
        start_s=judged.start_s,
        start_source="measured" if known else "given",
        reaction_s=_reaction_s(judged.start_s),
        traffic=Traffic(
            rate_per_s=judged.mean_rate_per_s, peak_rate_per_s=judged.peak_rate_per_s, ramp_s=ASSUMED_RAMP_S
        ),
        down_window_s=chosen.down_window_s,
        judged=judged,
    )


def _reaction_s(start_s: float) -> float:
    return RATE_WINDOW_S / 2 + SCRAPE_INTERVAL_S + HPA_SYNC_S + start_s
