"""The tables of a load test, the same in the page and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.measurement.server_stats import ServerTimings
from loadgen.measurement.streams import StreamFigures
from loadgen.records.formats import (
    UNKNOWN,
    beyond_in_words,
    change_in_words,
    errors_in_words,
    figure_in_words,
    format_ms,
    format_percent,
    format_rate,
    format_seconds,
    format_size,
    observed_in_words,
    traffic_in_words,
)
from loadgen.records.record import CapacityRecord, ComparisonRecord, LoadTestRecord, MeasurementRecord, ProbeRecord
from loadgen.reports.kit import NUMBER, Cell, Table, count, number, table_of_texts
from loadgen.spec.limits import quantile_name

MAX_OF_AN_ERROR = 240  # characters


def checks(record: LoadTestRecord, *, reasons: bool = False) -> Table | None:
    """Each limit: whether this run met it, whether that is shown beyond the run, by how much, and why if wanted.

    None if there were no limits.
    """
    if not record.checks:
        return None
    seen = f"once steady (bounds at {100 * record.checks[0].confidence:g} %)"
    return table_of_texts(
        ("limit", "this run", "beyond it", seen, "over the limit", *(["why"] if reasons else [])),
        [
            (
                check.name,
                (
                    Cell(text=check.observed_answer or UNKNOWN, style=check.observed_answer or ""),
                    Cell(text=beyond_in_words(check), style=check.answer),
                    observed_in_words(check),
                    f"{check.violations:,} of {check.requests:,}" if check.requests else UNKNOWN,
                    *([Cell(text=check.reason, style="reason")] if reasons else []),
                ),
            )
            for check in record.checks
        ],
    )


def comparison(figures: Sequence[ComparisonRecord]) -> Table | None:
    """Each figure before and now, and its change; None without any."""
    rows = [
        (
            one.figure,
            (
                *(Cell(text=figure_in_words(value, one.unit), style=NUMBER) for value in (one.baseline, one.now)),
                Cell(text=change_in_words(one), style=NUMBER),
                Cell(text=one.answer, style=one.answer),
            ),
        )
        for one in figures
    ]
    return table_of_texts(("", "before", "now", "change", ""), rows) if rows else None


def latency(measured: MeasurementRecord) -> Table:
    """Latencies in ms from the time each request was due."""
    figures = {
        "min": measured.latency_min_ms,
        **{quantile_name(quantile): ms for quantile, ms in measured.latencies_ms.items()},
        "max": measured.latency_max_ms,
        "mean": measured.latency_mean_ms,
    }
    return _figures("latency ms", "whole run", figures, main="p99")


def streams(found: StreamFigures) -> Table:
    """Times of tokens by quantile, one figure per request, in ms."""
    times = {"TTFT ms": found.ttft_ms, "TPOT ms": found.tpot_ms, "longest gap ms": found.longest_gap_ms}
    rows = [(name, [number(value, format_ms) for value in figures.values()]) for name, figures in times.items()]
    return table_of_texts(("", *found.ttft_ms), rows)


def stages(measured: MeasurementRecord, server: ServerTimings) -> Table:
    """Mean ms of a request in each stage."""
    figures = {
        "queue": server.queue_ms,
        "input": server.input_ms,
        "infer": server.infer_ms,
        "output": server.output_ms,
        "network and client": measured.network_and_client_ms,
    }
    return _figures("mean ms", "of a request", figures)


def _figures(corner: str, name: str, figures: dict[str, float | None], *, main: str = "") -> Table:
    cells = [
        number(value, format_ms, style="main" if heading == main else "") for heading, value in figures.items()
    ]
    return table_of_texts((corner, *figures), [(name, cells)])


def batches(server: ServerTimings) -> Table | None:
    """The batches that the server formed, and mean ms of their stages; None if it reports none."""
    rows = tuple(
        (
            number(batch.batch_size, count),
            number(batch.executions, count),
            *(number(value, format_ms) for value in (batch.input_ms, batch.infer_ms, batch.output_ms)),
        )
        for batch in server.batches
    )
    headings = ("batch size", "executions", "input ms", "infer ms", "output ms")
    return Table(headings=headings, rows=rows) if rows else None


def probes(found: CapacityRecord) -> Table | None:
    """Each load of the search for the highest rate; None if there was none."""
    rows = tuple(
        (
            number(probe.rate_per_s, format_rate),
            Cell(text=f"{probe.seconds:.1f}", style=NUMBER),
            number(probe.requests, count),
            number(probe.violations, count),
            number(probe.latency_ms, format_ms),
            Cell(
                text=", ".join((_answer(probe), *(f"{failed:,} {kind}" for kind, failed in probe.errors.items()))),
                style=probe.answer,
            ),
        )
        for probe in found.probes
    )
    headings = ("rate/s", "seconds", "requests", "over the limit", f"{quantile_name(found.quantile)} ms", "answer")
    return Table(headings=headings, rows=rows) if rows else None


def _answer(probe: ProbeRecord) -> str:
    return f"not confirmed: {probe.answer}" if probe.confirms and probe.answer != "confirmed" else probe.answer


def phases(record: LoadTestRecord) -> Table | None:
    """What became of the requests that were due in each phase of a load that changes; None for other loads."""
    rows = [
        (
            f"{format_seconds(one.start_s)} to {format_seconds(one.end_s)}",
            (
                number(one.due_per_s, format_rate),
                number(one.good_per_s, format_rate),
                number(one.failures, count),
                number(one.p99_ms, format_ms),
                UNKNOWN if one.good_per_s is None else _kept(one.kept_after_s),
            ),
        )
        for one in record.phases
    ]
    return (
        table_of_texts(("phase", "due/s", "in time/s", "failed", "p99 ms", "limit kept"), rows) if rows else None
    )


def _kept(after_s: float | None) -> str:
    return "never" if after_s is None else f"after {after_s:.1f} s" if after_s else "always"


def traffic(record: LoadTestRecord, measured: MeasurementRecord) -> Table:
    """Requests, errors, and the times of server and client."""
    errors = Cell(text=errors_in_words(record), style="violated" if measured.failures else "")
    rows: list[tuple[str, list[str | Cell]]] = [("requests", [traffic_in_words(measured)]), ("errors", [errors])]
    if measured.error_example:
        rows.append(("first error", [measured.error_example[:MAX_OF_AN_ERROR]]))
    if (seen := measured.streams) is not None:
        cached = f" ({seen.cached_tokens:,} cached)" if seen.cached_tokens else ""
        counts = f"{seen.tokens_in:,} in{cached}, {seen.tokens_out:,} out in {seen.chunks:,} chunks"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in seen.finish_reasons.items())
        rows += [("tokens", [counts]), ("finish reasons", [reasons or "none"])]
    sizes = f"{format_size(measured.bytes_sent)} sent, {format_size(measured.bytes_received)} received"
    rows.append(("bytes", [sizes]))
    server = measured.server
    if server is not None:
        batch = "" if server.mean_batch_size is None else f"; batches of {server.mean_batch_size:.2f}"
        means = f"queue {format_ms(server.queue_ms)}, input {format_ms(server.input_ms)}, "
        means += f"infer {format_ms(server.infer_ms)}, output {format_ms(server.output_ms)} ms{batch}"
        outside = f"{format_ms(measured.network_and_client_ms)} ms in network and client, mean"
        rows += [("server", [means]), ("outside it", [outside])]
    if measured.gpu is not None and measured.gpu.utilization is not None:
        rows.append(("GPU", [f"{format_percent(measured.gpu.utilization)} busy"]))
    lag = f"send lag p50 {format_ms(measured.send_lag_p50_ms)}, p99 {format_ms(measured.send_lag_p99_ms)} ms"
    busiest = f"busiest process {format_percent(measured.client_cpu_share)} of a core"
    client = f"{lag}; {measured.client_cpu_s:.2f} s of CPU, {busiest}"
    return table_of_texts((), [*rows, ("client", [client])])


def settings(record: LoadTestRecord) -> Table:
    """The options of the load and the target, without values of headers."""
    load = record.load.model_dump(mode="json").items()
    rows = [(name.replace("_", " "), [str(value)]) for name, value in load if value not in (None, {})]
    if record.target.header_names:
        rows.append(("headers", [", ".join(record.target.header_names) + " (values are not recorded)"]))
    if record.target.certificate_checked is not None:
        rows.append(("certificate", ["checked" if record.target.certificate_checked else "NOT checked"]))
    return table_of_texts((), rows)
