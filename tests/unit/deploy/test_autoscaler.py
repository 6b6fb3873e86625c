"""Against the examples on Kubernetes' page on horizontal pod autoscaling."""

from itertools import pairwise
from typing import Any

import pytest

from deploy.autoscaler import Autoscaler, Behavior, ChangePolicy

AT_ONCE = (ChangePolicy(share=1.0, period_s=15.0),)


def behavior(**changes: Any) -> Behavior:
    free: dict[str, Any] = {"target_per_s": 100.0, "min_replicas": 1, "max_replicas": 1000, "down_window_s": 0.0}
    return Behavior(**{**free, "up": (ChangePolicy(pods=1000, period_s=15.0),), "down": AT_ONCE, **changes})


def over_time(rule: Behavior, current: int, metrics: list[float], every_s: float = 15.0) -> list[int]:
    scaler, counts = Autoscaler(behavior=rule), []
    for sync, metric in enumerate(metrics):
        current = scaler.replicas(sync * every_s, current, metric)
        counts.append(current)
    return counts


@pytest.mark.parametrize(
    ("current", "each", "wanted"),
    [
        (4, 200.0, 8),  # "if the current metric value is 200m, and the desired value is 100m, it is doubled"
        (4, 50.0, 2),  # "if the current value is instead 50m, the number is halved"
        (4, 109.0, 4),  # the tolerance of 10 %
        (4, 91.0, 4),
        (4, 111.0, 5),
    ],
)
def test_the_ratio_of_metric_and_target(current: int, each: float, wanted: int) -> None:
    assert over_time(behavior(), current, [current * each]) == [wanted]


def test_ten_percent_a_minute_but_four_pods_at_least() -> None:
    """From 80 to 10: "8 replicas will be reduced"; of 72, "10 % is 7.2 but the number is rounded up to 8"."""
    down = (ChangePolicy(pods=4, period_s=60.0), ChangePolicy(share=0.1, period_s=60.0))
    counts = over_time(behavior(down=down), 80, [1000.0] * 12, every_s=60.0)
    assert counts[:3] == [72, 64, 57]
    smaller = [before - after for before, after in pairwise(counts) if before <= 40]
    assert smaller == [4] * len(smaller)
    assert len(smaller) > 1


def test_a_limit_holds_for_its_whole_period() -> None:
    down = (ChangePolicy(pods=1, period_s=60.0),)
    assert over_time(behavior(down=down), 5, [100.0] * 9) == [4, 4, 4, 4, 3, 3, 3, 3, 2]


def test_the_default_of_scaling_up_doubles_or_adds_four() -> None:
    up = (ChangePolicy(share=1.0, period_s=15.0), ChangePolicy(pods=4, period_s=15.0))
    assert over_time(behavior(up=up), 1, [10_000.0] * 5) == [5, 10, 20, 40, 80]


def test_the_highest_recommendation_of_the_window_counts() -> None:
    metrics = [500.0, 300.0, 100.0, 100.0, 100.0]
    assert over_time(behavior(down_window_s=30.0), 5, metrics) == [5, 5, 5, 3, 1]


def test_a_window_for_scaling_up_waits_for_the_lowest() -> None:
    assert over_time(behavior(up_window_s=30.0), 1, [100.0, 500.0, 500.0, 500.0]) == [1, 1, 1, 5]


def test_bounds() -> None:
    assert over_time(behavior(max_replicas=6), 4, [5_000.0, 5_000.0]) == [6, 6]
    assert over_time(behavior(min_replicas=3), 4, [0.0, 0.0]) == [3, 3]
