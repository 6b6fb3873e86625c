"""A log becomes figures, and the reasons not to trust them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from loadgen.measurement import ClientUse, Measurement, RequestLog, errors_by_kind, percentiles_ns
from loadgen.outcomes import CLIENT_LIMIT, outcome_name
from loadgen.plan import ClosedLoopPlan, LoadPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadgen.gpu import GpuUse
    from loadgen.server_stats import ServerTimings

MOST_CPU_SHARE = 0.8
_NS_PER_MS = 1e6
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def measurement_of(
    log: RequestLog,
    plan: LoadPlan | ClosedLoopPlan,
    *,
    client: ClientUse,
    limit_ms: float | None = None,
    server: ServerTimings | None = None,
    gpu: GpuUse | None = None,
    error_example: str | None = None,
    stopped: bool = False,
) -> Measurement:
    """All figures of a run. `stopped`: it ended before its plan did, so rates count up to the last send."""
    n = len(log)
    timeout_ns = round(plan.timeout_s * 1e9)
    latency = _in_ms(log.latency_charged_ns(timeout_ns))
    lag = _in_ms(_own_lag_ns(log, plan), (0.5, 0.99))
    service_p99_ms = _in_ms(log.service_ns, (0.99,))[0]
    last_sent_s = float(log.sent_ns.max()) / 1e9 if n else 0.0
    duration_s = last_sent_s if stopped else max(plan.duration_s, last_sent_s)
    errors = errors_by_kind(log)
    return Measurement(
        n=n,
        p50_ms=latency[0],
        p90_ms=latency[1],
        p95_ms=latency[2],
        p99_ms=latency[3],
        p999_ms=latency[4],
        max_ms=latency[5],
        mean_ms=latency[6],
        service_p99_ms=service_p99_ms,
        send_lag_p50_ms=lag[0],
        send_lag_p99_ms=lag[1],
        planned_rate_per_s=plan.rate_per_s if isinstance(plan, LoadPlan) else None,
        achieved_rate_per_s=n / duration_s if duration_s > 0 else math.nan,
        duration_s=duration_s,
        errors=errors,
        error_example=error_example,
        client=client,
        server=server,
        gpu=gpu,
        problems=tuple(_problems(n, lag[1], limit_ms, client, errors)),
    )


def most_send_lag_ms(limit_ms: float | None) -> float:
    """The send lag p99 over which the client was measured, not the server: 1 ms or 5 % of the limit."""
    return max(1.0, 0.05 * (limit_ms or 0.0))


def _problems(
    n: int, lag_p99_ms: float, limit_ms: float | None, client: ClientUse, errors: dict[str, int]
) -> list[str]:
    if n == 0:
        return ["no request was due in the time of the plan: raise the rate or the duration"]
    found = []
    most_ms = most_send_lag_ms(limit_ms)
    busy = client.cpu_share > MOST_CPU_SHARE
    if not lag_p99_ms <= most_ms:
        cause = "the load process was busy" if busy else "something else kept the processor from the load process"
        found.append(
            f"requests left late: p99 of the send lag is {lag_p99_ms:.2f} ms, over {most_ms:.2f} ms; {cause}"
        )
    if busy:
        found.append(
            f"a load process used {client.cpu_share:.0%} of a core, over {MOST_CPU_SHARE:.0%}: "
            "lower the rate or use more processes"
        )
    out_of = errors.get(outcome_name(CLIENT_LIMIT), 0)
    if out_of:
        found.append(
            f"{out_of} requests found no free file or port on this machine: raise ulimit -n, or lower the rate"
        )
    return found


def _in_ms(times_ns: NDArray[np.int64], quantiles: tuple[float, ...] = _QUANTILES) -> list[float]:
    """The quantiles, then the maximum and the mean, in ms; NaN where there are no times."""
    if len(times_ns) == 0:
        return [math.nan] * (len(quantiles) + 2)
    highest, mean = float(times_ns.max()), float(times_ns.mean())
    return [time / _NS_PER_MS for time in (*percentiles_ns(times_ns, quantiles), highest, mean)]


def _own_lag_ns(log: RequestLog, plan: LoadPlan | ClosedLoopPlan) -> NDArray[np.int64]:
    """The send lag of the requests that no cap held back: that of the others was asked for."""
    lag = log.send_lag_ns
    if not isinstance(plan, LoadPlan) or plan.max_in_flight is None:
        return lag
    ended = np.sort(log.done_ns)
    left = np.sort(log.sent_ns)
    in_flight = np.searchsorted(left, log.scheduled_ns, side="left") - np.searchsorted(ended, log.scheduled_ns)
    return lag[in_flight < plan.max_in_flight]
