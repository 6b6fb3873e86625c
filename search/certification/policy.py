"""The numbers by which certification decides; the planner says what for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers by which certification decides."""

    shares: tuple[float, ...] = (0.88, 0.91, 0.935, 0.955, 0.97, 0.985)
    """Rates are tried from 88 % of what the belief covers upwards, as long as they promise more."""

    lower: float = 0.85
    lowest: float = 0.2
    """If the best of these does not surely pass, lower ones are tried, down to a fifth. One ladder of fewer rungs,
    each 0.7 times as far below, left a search of 80 s at low rates without its second confirmation."""

    last_resort: float = 0.7
    """If no rate is likely to pass, 70 % of the lowest that was sent is tried."""

    likely: float = 0.5
    """If no rate passes on two servers in half of the simulated tests, one server has all of the time."""

    refuted: float = 0.985
    """After a rate was violated, 98.5 % of it are the most that is tried; after one was given up, too, if a lower
    one is certified. Before, `lower` of it: the bursts that it met are longer than the simulated ones."""

    compared: int = 2
    """The candidates whose plans are compared."""

    least_met_s: float = 5.0
    """A run that meets a rate lasts 5 s, if there is time. At 44,000/s the test decides within 3 s, which show
    little of how a machine drifts: two such runs met 44,463/s of an engine that did not keep 43,461/s for 10 s."""

    when_stopped_s: float = 30.0
    """After the user has asked to finish, certification takes at most 30 s."""

    least_gain: float = 0.1
    """What is certified on two servers is sent a higher rate if that is a tenth higher."""

    watch_s: float = 5.0
    watched_s: float = 90.0
    """The machine is watched for 90 s, at the end in runs of 5 s: what comes once in 30 s is seen with 95 %."""

    enough_phases: int = 3
    """From three slow phases on, it is known how often they come and how slow they are."""

    small: float = 0.9
    """Slow phases are reported if they cost more than a tenth of the capacity."""


POLICY = Policy()
