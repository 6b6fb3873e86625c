"""A log becomes figures, and the reasons not to trust them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, Required, TypedDict, Unpack

import numpy as np

from loadgen.lateness import most_send_lag_ms, servers_fault
from loadgen.measurement import ClientUse, Measurement, errors_by_kind
from loadgen.outcomes import CLIENT_LIMIT, TIMED_OUT, outcome_name
from loadgen.plan import ClosedLoopPlan, LoadPlan
from loadgen.times import Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loadgen.gpu import GpuUse
    from loadgen.measurement import PercentilesFrom, RequestLog
    from loadgen.server_stats import ServerTimings
    from loadgen.share import ShareResult
    from loadgen.tally import Tally

MOST_CPU_SHARE = 0.8
_NS_PER_MS = 1e6
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_CHECKS = 2
"""Requests of ours beside the load, which a server may have counted with it."""


class Distribution(Protocol):
    """Times in ns, kept one by one or counted."""

    def __len__(self) -> int: ...

    def percentiles_ns(self, quantiles: Iterable[float]) -> list[int]:
        """Nearest-rank percentiles."""

    @property
    def greatest_ns(self) -> int:
        """The greatest."""

    @property
    def mean_ns(self) -> float:
        """Their mean."""


class Circumstances(TypedDict, total=False):
    """What is known of a run beside its requests. `stopped`: it ended before its plan did."""

    client: Required[ClientUse]
    limit_ms: float | None
    server: ServerTimings | None
    gpu: GpuUse | None
    remarks: tuple[str, ...]
    error_example: str | None
    stopped: bool


def circumstances_of(
    results: Sequence[ShareResult],
    *,
    limit_ms: float | None,
    server: ServerTimings | None,
    gpu: GpuUse | None,
    stopped: bool,
    remarks: tuple[str, ...] = (),
) -> Circumstances:
    """What the processes that sent a load, at least one, know of it."""
    client = ClientUse(
        cpu_share=max(result.cpu_s / result.wall_s if result.wall_s else 0.0 for result in results),
        cpu_s=sum(result.cpu_s for result in results),
        bytes_sent=sum(result.bytes_sent for result in results),
        bytes_received=sum(result.bytes_received for result in results),
        connections_opened=sum(result.connections_opened for result in results),
    )
    return {
        "client": client,
        "limit_ms": limit_ms,
        "server": server,
        "gpu": gpu,
        "remarks": remarks,
        "error_example": next((result.error_example for result in results if result.error_example), None),
        "stopped": stopped,
    }


def measurement_of(
    log: RequestLog, plan: LoadPlan | ClosedLoopPlan, **circumstances: Unpack[Circumstances]
) -> Measurement:
    """All figures of a run. One that was stopped has its rates up to the last send."""
    timeout_ns = round(plan.timeout_s * 1e9)
    return _measurement(
        plan,
        n=len(log),
        latency=_in_ms(log.latency_charged(timeout_ns)),
        lag=_in_ms(_own_lag(log, plan), (0.5, 0.99)),
        service=_in_ms(Times(len(log), lambda rows: log.part(rows).service_ns), (0.5, 0.99)),
        last_sent_s=float(log.sent_ns.max()) / 1e9 if len(log) else 0.0,
        errors=errors_by_kind(log),
        percentiles_from="every request",
        **circumstances,
    )


def measurement_of_tally(
    tally: Tally, plan: LoadPlan | ClosedLoopPlan, **circumstances: Unpack[Circumstances]
) -> Measurement:
    """The same of a run of which only a tally was kept."""
    return _measurement(
        plan,
        n=len(tally),
        latency=_in_ms(tally.latency),
        lag=_in_ms(tally.send_lag, (0.5, 0.99)),
        service=_in_ms(tally.service, (0.5, 0.99)),
        last_sent_s=tally.last_sent_ns / 1e9,
        errors=tally.errors,
        percentiles_from="histogram",
        **circumstances,
    )


def _measurement(
    plan: LoadPlan | ClosedLoopPlan,
    *,
    n: int,
    latency: list[float],
    lag: list[float],
    service: list[float],
    last_sent_s: float,
    errors: dict[str, int],
    percentiles_from: PercentilesFrom,
    **circumstances: Unpack[Circumstances],
) -> Measurement:
    duration_s = last_sent_s if circumstances.get("stopped") else max(plan.duration_s, last_sent_s)
    client = circumstances["client"]
    limit_ms = circumstances.get("limit_ms")
    most_ms = plan.most_send_lag_ms or most_send_lag_ms(limit_ms)
    if servers_fault(service[0], lag[1], limit_ms):
        most_ms = math.inf
    return Measurement(
        n=n,
        p50_ms=latency[0],
        p90_ms=latency[1],
        p95_ms=latency[2],
        p99_ms=latency[3],
        p999_ms=latency[4],
        max_ms=latency[5],
        mean_ms=latency[6],
        service_p99_ms=service[1],
        send_lag_p50_ms=lag[0],
        send_lag_p99_ms=lag[1],
        planned_rate_per_s=plan.rate_per_s if isinstance(plan, LoadPlan) else None,
        achieved_rate_per_s=n / duration_s if duration_s > 0 else math.nan,
        duration_s=duration_s,
        errors=errors,
        error_example=circumstances.get("error_example") or _lost_text(n, errors, circumstances.get("server")),
        client=client,
        server=circumstances.get("server"),
        gpu=circumstances.get("gpu"),
        problems=tuple(_problems(n, lag[1], most_ms, client, errors)),
        remarks=circumstances.get("remarks", ()),
        percentiles_from=percentiles_from,
    )


def lost_answers(n: int, errors: dict[str, int], server: ServerTimings | None) -> int:
    """How many of n requests got no answer in time although the server counts them as answered.

    0 where others used the server meanwhile: then its count says nothing of these.
    """
    timed_out = errors.get(outcome_name(TIMED_OUT), 0)
    if server is None or not timed_out or server.requests > n + _CHECKS:
        return 0
    found = min(timed_out, server.requests - (n - sum(errors.values())))
    return found if found > _CHECKS else 0


def _lost_text(n: int, errors: dict[str, int], server: ServerTimings | None) -> str | None:
    """See docs/adr/0009: what does not fit into the socket through which a thread gets its answers is dropped."""
    count = lost_answers(n, errors, server)
    if not count:
        return None
    return (
        f"{count} of them the server counts as answered: it lost the answers. Triton's HTTP front end does where "
        "over 270 wait in one thread: use gRPC, or raise net.core.wmem_default"
    )


def _problems(
    n: int, lag_p99_ms: float, most_lag_ms: float, client: ClientUse, errors: dict[str, int]
) -> list[str]:
    if n == 0:
        return ["no request was due in the time of the plan: raise the rate or the duration"]
    found = []
    busy = client.cpu_share > MOST_CPU_SHARE
    if not lag_p99_ms <= most_lag_ms:
        cause = "the load process was busy" if busy else "something else kept the processor from the load process"
        found.append(
            f"requests left late: p99 of the send lag is {lag_p99_ms:.2f} ms, over {most_lag_ms:.2f} ms; {cause}"
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


def _in_ms(times: Distribution, quantiles: tuple[float, ...] = _QUANTILES) -> list[float]:
    """The quantiles, then the maximum and the mean, in ms; NaN where there are no times."""
    if len(times) == 0:
        return [math.nan] * (len(quantiles) + 2)
    return [time / _NS_PER_MS for time in (*times.percentiles_ns(quantiles), times.greatest_ns, times.mean_ns)]


def _own_lag(log: RequestLog, plan: LoadPlan | ClosedLoopPlan) -> Times:
    """The send lag of the requests that no cap held back: that of the others was asked for."""
    if not isinstance(plan, LoadPlan) or plan.max_in_flight is None:
        return Times(len(log), lambda rows: log.part(rows).send_lag_ns)
    ended = np.sort(log.done_ns)
    left = np.sort(log.sent_ns)
    in_flight = np.searchsorted(left, log.scheduled_ns, side="left") - np.searchsorted(ended, log.scheduled_ns)
    own = log.send_lag_ns[in_flight < plan.max_in_flight]
    return Times(len(own), lambda rows: own[rows])
