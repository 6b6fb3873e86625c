"""Compute the figures of a log, and the reasons not to trust them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.addresses import Histogram, address_remarks, uses_of
from loadgen.measurement.gpu import GpuUse
from loadgen.measurement.other_runs import and_others
from loadgen.measurement.request_log import ClientUse, Measurement, RequestLog, errors_by_kind, percentiles_ns
from loadgen.measurement.send_lag import most_send_lag_ms, server_is_overloaded
from loadgen.measurement.server_stats import ServerTimings
from loadgen.measurement.streams import stream_figures
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.status import CLIENT_LIMIT, TIMED_OUT, outcome_name
from loadgen.wire.in_front import in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The result of one load process, without its rows of the table. `wall_s` and `cpu_s` cover the loop only."""

    rows: int
    overloaded: bool
    wall_s: float
    cpu_s: float
    bytes_sent: int
    bytes_received: int
    connections_opened: int
    error_example: str | None
    addresses: dict[str, Histogram] = field(default_factory=dict)
    in_front: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # other runs that had load processes on its machine, before the load or after it
    connections_closed: int = 0
    resent: int = 0
    cold: str = ""
    unsent_share: float = 0.0  # of large requests in flight, those that the other side had not completely taken


COUNTED = ("bytes_sent", "bytes_received", "connections_opened", "connections_closed", "resent")
"""What the connections of a process count, under these names from there to the figures of the run."""

MAX_CPU_SHARE = 0.8
_NS_PER_MS = 1e6
_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_FIGURES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms", "mean_ms")
_LAG_QUANTILES = (0.5, 0.99)
_UNSENT_SHARE = 0.5
_CLOSED_FEW, _CLOSED_SHARE = 3, 0.1
_CHECKS = 2
"""We send at most this many requests outside the load; the server may count them with it."""


def _client_use(results: Sequence[ShardResult]) -> ClientUse:
    return ClientUse(
        cpu_share=max(result.cpu_s / result.wall_s if result.wall_s else 0.0 for result in results),
        cpu_s=sum(result.cpu_s for result in results),
        **{name: sum(getattr(result, name) for result in results) for name in COUNTED},
        slow_link=_slow_link(results),
        beside=tuple(dict.fromkeys(run for result in results for run in result.beside)),
    )


def _slow_link(results: Sequence[ShardResult]) -> str:
    """Return a sentence for users if most requests in flight were still on their way to the server, else ''."""
    share, rows = max(result.unsent_share for result in results), sum(result.rows for result in results)
    if share < _UNSENT_SHARE or not rows:
        return ""
    size_mb = sum(result.bytes_sent for result in results) / rows / 1e6
    per_s = sum(result.bytes_sent / result.wall_s / 1e6 for result in results if result.wall_s)
    return (
        f"the network, or a server that reads slowly, and not the model: {share:.0%} of the requests in flight, "
        f"of {size_mb:.3g} MB each, were not completely sent, at {per_s:.3g} MB/s"
    )


def _connection_remarks(requests: int, client: ClientUse) -> tuple[str, ...]:
    """Return advice for users if the server ends connections often, or refused calls."""
    found = []
    few = max(_CLOSED_FEW, _CLOSED_SHARE * requests)
    if client.connections_closed >= few and client.connections_opened:  # else none that was missed
        found.append(
            f"the server closed {client.connections_closed:,} connections in {requests:,} requests, and "
            f"{client.connections_opened:,} were opened meanwhile, which costs time: turn keep-alive on there, or "
            "raise its idle time-out"
        )
    if client.resent:
        found.append(
            f"{client.resent:,} requests were sent again, as the server said that it had not processed them "
            "(GOAWAY or REFUSED_STREAM); their latency counts from when they were due"
        )
    return tuple(found)


def measurement_of(
    log: RequestLog,
    plan: LoadPlan | ClosedLoopPlan,
    results: Sequence[ShardResult],
    *,
    limit_ms: float | None = None,
    server: ServerTimings | None = None,
    gpu: GpuUse | None = None,
    remarks: tuple[str, ...] = (),
    stopped: bool = False,
) -> Measurement:
    """Return all figures of a run, with the `results` of the processes, at least one, that sent it.

    The rates of one that `stopped` before its end count up to the last send.
    """
    client, addresses = _client_use(results), uses_of(result.addresses for result in results)
    in_front = sum((Counter(result.in_front) for result in results), Counter[str]())
    example = next((result.error_example for result in results if result.error_example), None)
    rows = sum(result.rows for result in results)
    n, timeout_ns = len(log), round(plan.timeout_s * 1e9)
    latency: dict[str, Any] = dict(zip(_FIGURES, _in_ms(log.latency_charged_ns(timeout_ns)), strict=True))
    lag = _lag_ms(log, plan)
    service = _in_ms(log.service_ns, (0.5, 0.99))
    last_sent_s = float(log.sent_ns.max()) / 1e9 if n else 0.0
    errors = errors_by_kind(log)
    duration_s = last_sent_s if stopped else max(plan.duration_s, last_sent_s)
    streams = None if log.streams is None else stream_figures(log.scheduled_ns, log.failed, log.streams)
    most_ms = plan.most_send_lag_ms or most_send_lag_ms(limit_ms)
    if server_is_overloaded(service[0], lag[1], limit_ms):
        most_ms = math.inf
    return Measurement(
        n=n,
        **latency,
        service_p99_ms=service[1],
        send_lag_p50_ms=lag[0],
        send_lag_p99_ms=lag[1],
        planned_rate_per_s=plan.mean_rate_per_s if isinstance(plan, LoadPlan) else None,
        achieved_rate_per_s=n / duration_s if duration_s > 0 else math.nan,
        duration_s=duration_s,
        errors=errors,
        error_example=example or _lost_text(n, errors, server),
        client=client,
        server=server,
        gpu=gpu,
        problems=tuple(_problems(n, lag[1], most_ms, client, errors)),
        remarks=(
            *remarks,
            *address_remarks(addresses),
            *_connection_remarks(rows, client),
            *(() if streams is None else streams.remarks),
        ),
        addresses=addresses,
        in_front=(*in_words(in_front), *by_the_cache(server), *(() if streams is None else streams.in_front)),
        streams=streams,
    )


def by_the_cache(server: ServerTimings | None) -> tuple[str, ...]:
    """Return a sentence for users if Triton's response cache answered; empty if it did not."""
    if server is None or not server.cache_hits:
        return ()
    share = min(1.0, server.cache_hits / server.requests)
    return (f"Triton's response cache answered {share:.0%} of the requests: give more samples (--input-data)",)


def lost_answers(n: int, errors: Mapping[str, int], server: ServerTimings | None) -> int:
    """Count those of n requests that timed out although the server counts them as answered.

    0 if other clients used the server meanwhile: its count then includes their requests.
    """
    timed_out = errors.get(outcome_name(TIMED_OUT), 0)
    if server is None or not timed_out or server.requests > n + _CHECKS:
        return 0
    found = min(timed_out, server.requests - (n - sum(errors.values())))
    return found if found > _CHECKS else 0


def _lost_text(n: int, errors: dict[str, int], server: ServerTimings | None) -> str | None:
    """Return a sentence about lost responses: Triton drops those that do not fit into a socket (docs/adr/0009)."""
    count = lost_answers(n, errors, server)
    if not count:
        return None
    return (
        f"the server counts {count} of them as answered: it lost the responses. Triton's HTTP front end does so "
        "if over 270 wait in one thread: use gRPC, or raise net.core.wmem_default"
    )


def _problems(
    n: int, lag_p99_ms: float, most_lag_ms: float, client: ClientUse, errors: dict[str, int]
) -> list[str]:
    if n == 0:
        return ["no request was due in the time of the plan: raise the rate or the duration"]
    found = []
    busy = client.cpu_share > MAX_CPU_SHARE
    if not lag_p99_ms <= most_lag_ms:
        cause = "the load process was busy" if busy else "the load process did not get a processor in time"
        found.append(
            f"requests left late: p99 of the send lag is {lag_p99_ms:.2f} ms, over {most_lag_ms:.2f} ms; "
            f"{cause}{and_others(client.beside)}"
        )
    if busy:
        found.append(
            f"a load process used {client.cpu_share:.0%} of a core, over {MAX_CPU_SHARE:.0%}: "
            "lower the rate or use more processes"
        )
    out_of = errors.get(outcome_name(CLIENT_LIMIT), 0)
    if out_of:
        found.append(
            f"{out_of} requests found no free file or port on this machine: raise ulimit -n, or lower the rate"
        )
    return found


def _in_ms(times_ns: NDArray[np.int64], quantiles: tuple[float, ...] = _QUANTILES) -> list[float]:
    """Return the quantiles, then the maximum and the mean, in ms; NaN if there are no times. Reorders them."""
    if len(times_ns) == 0:
        return [math.nan] * (len(quantiles) + 2)
    figures = (*percentiles_ns(times_ns, quantiles), float(times_ns.max()), float(times_ns.mean()))
    return [time / _NS_PER_MS for time in figures]


def _lag_ms(log: RequestLog, plan: LoadPlan | ClosedLoopPlan) -> list[float]:
    """Return p50 and p99 of the send lag, without the requests that a cap held back: their lag is intended."""
    if not isinstance(plan, LoadPlan) or plan.max_in_flight is None:
        return _in_ms(log.send_lag_ns, _LAG_QUANTILES)[:2]
    # The others that were in flight when each request was due.
    in_flight = np.searchsorted(np.sort(log.sent_ns), log.scheduled_ns)
    in_flight -= np.searchsorted(np.sort(log.done_ns), log.scheduled_ns)
    return _in_ms(log.send_lag_ns[in_flight < plan.max_in_flight], _LAG_QUANTILES)[:2]
