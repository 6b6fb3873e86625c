"""The sentences of a report, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean

from deploy.smoke import PORTS, SHORTEST_RUN_S, run_length_s, traffic_options
from loadgen.exit_codes import CODES
from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_dollars, format_percent, format_rate, format_seconds
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from search.answer.recommend import gain_over
from search.labels import baseline_words, memory_text, rate_text
from search.records.recommendation import BETTER, RecommendationRecord
from search.records.run_files import from_here, shown_directory
from search.records.slo import Slo
from search.records.trial import TrialRecord
from search.simulator.surrogate import FAR_BELOW
from search.trials.objective import OBJECTIVES, Objective


def headline(found: RecommendationRecord) -> str:
    """Return the answer in a few words, and whether it is provisional."""
    return f"{'Provisional: ' if found.provisional else ''}{rate_and_limits(found)}"


def rate_and_limits(found: RecommendationRecord) -> str:
    """Return the rate that was met, its limits and its traffic in a few words."""
    certificate = found.winner.certificate
    assert certificate is not None
    traffic = f", for {found.workload.text}" if found.workload.text else ""
    ignored = certificate.slow_phases is not None and certificate.slow_phases.ignored
    speed = ", at the machine's usual speed" if ignored else ""
    return f"{format_rate(certificate.rate_per_s)} requests/s with {limits_text(found.slo)}{traffic}{speed}"


def lead(found: RecommendationRecord, *, brief: bool = False) -> Iterator[str]:
    """Yield the sentences under the headline: the protocol, the objective against Triton's default, the replicas.

    If `brief`, without rows of a batch and without another configuration of the user's.
    """
    through = found.let_through
    if through is not None and through.better is not None:
        names = {"http": "HTTP", "grpc": "gRPC"}
        both = sorted((geometric_mean(rates), names[protocol]) for protocol, rates in through.usable.items())
        (less, worse), (most, better) = ((f"about {float(f'{per_s:.2g}'):,.0f}/s", name) for per_s, name in both)
        loses = through.usable["http"] != through.http and worse == "HTTP"
        above = ", above which Triton may lose answers" if loses else ""
        yield f"Over {better}, which lets {most} through; over {worse} {less}{above}."
    yield from _with_fewer_bytes(found)
    mine, other, unit = OBJECTIVES.get(found.objective.name, Objective).figures(found)
    baseline, default = found.baseline, baseline_words(found.winner.config)
    if baseline is None:
        yield f"{mine}{unit}."
    elif baseline.number == found.winner.number:
        yield f"{mine}{unit}, with {default}, the best that was found."
    elif other is None:
        yield f"{mine}{unit}; {default} was not certified ({rate_text(baseline)})."
    elif found.gain is None:
        yield f"{mine}{unit} instead of {other} with {default}."
    else:
        yield f"{mine}{unit} instead of about {other} with {default}; {_gain_text(found.winner, baseline, 'its')}."
    if not brief or (found.start is not None and found.start.number == found.winner.number):
        yield from _against_start(found)
    rows = in_rows(found)
    if rows is not None and not brief:
        yield f"{rows}."
    cost = found.cost
    if cost.replicas is not None and cost.total_usd_per_hour is not None:
        replicas = f"{cost.replicas} replica{'s' if cost.replicas > 1 else ''}"
        hourly = format_dollars(cost.total_usd_per_hour)
        yield f"{format_rate(cost.rate_to_serve_per_s)} requests/s take {replicas}: {hourly} an hour."


def _gain_text(winner: TrialRecord, other: TrialRecord, whose: str) -> str:
    """Return how many times the capacity of another configuration, which is called `whose`, by their estimates."""
    gain = gain_over(winner, other)
    assert gain is not None
    low, ratio, high = gain
    between = "" if low == high else f" ({low:.2g} to {high:.2g})"
    return f"about {ratio:.2g} times {whose} capacity{between}"


def _against_start(found: RecommendationRecord) -> Iterator[str]:
    """Yield how the recommendation compares with the configuration of --start-from."""
    start, certificate = found.start, found.winner.certificate
    if start is None or certificate is None:
        return
    if start.number == found.winner.number:
        yield "That is your own config.pbtxt: nothing better was found."
    elif found.objective.rate_per_s is None and start.rate_at_limit_per_s:
        gain = _gain_text(found.winner, start, "your config.pbtxt's")
        yield f"{gain[0].upper()}{gain[1:]}."
    elif start.certificate is None and start.rate_at_limit_per_s:
        yield f"Your config.pbtxt in its trial: {rate_text(start)}."
    elif start.certificate is None:
        yield f"Your config.pbtxt was certified for no rate: {start.state}, {start.reason.splitlines()[0]}."


def in_rows(found: RecommendationRecord) -> str | None:
    """Return rate and cost in rows and in requests; None if a request has one row."""
    fixed, certificate = found.model.fixed_rows, found.winner.certificate
    rows = fixed * found.workload.rows_per_request
    if rows == 1 or certificate is None:
        return None
    usd = found.cost.cost_per_million_inferences_usd / fixed
    rate = f"{format_rate(rows * certificate.rate_per_s)} rows/s, {rows} a request"
    text = f"{rate}: {format_dollars(usd)} per million rows, {format_dollars(rows * usd)} per million requests"
    return text if fixed == 1 else f"{text}, if the leading {fixed} of the model's file are rows"


def slow_phases_text(found: RecommendationRecord) -> str | None:
    """Return how slow the machine was and what that costs, or that this is ignored; None if it costs little."""
    certificate = found.winner.certificate
    seen = None if certificate is None else certificate.slow_phases
    if certificate is None or seen is None:
        return None
    was = (
        f"the machine was slow for {format_percent(seen.share)} of {format_seconds(round(seen.seen_s))} of load "
        f"(executions took {seen.slowdown:.2g} times as long)"
    )
    if seen.ignored:
        return f"Holds only at the machine's usual speed: {was}, which --ignore-slow-phases leaves out."
    usd = found.cost.cost_per_million_inferences_usd
    usual_usd = usd * certificate.rate_per_s / seen.usual_per_s
    return (
        f"{was[0].upper()}{was[1:]}. At its usual speed this configuration carries at most about "
        f"{format_rate(seen.usual_per_s)}/s, at {format_dollars(usual_usd)} instead of {format_dollars(usd)} per "
        "million; --ignore-slow-phases certifies a rate for it."
    )


def caveats(found: RecommendationRecord) -> Iterator[str]:
    """Yield what the certificate does not cover, and the CPU contention with its effect."""
    certificate = found.winner.certificate
    if certificate is not None and found.provisional:
        times = "twice" if certificate.confirmed_again else "once"
        yield f"Provisional (exit code {CODES['provisional']}): the limit was met {times}, not certified."
    if found.status not in ("certified", "provisional") and found.status_reason:
        yield found.status_reason
    slow = slow_phases_text(found)
    if slow is not None:
        yield slow
    if certificate is not None and certificate.caveat is not None:
        yield f"Caveat: {certificate.caveat}."
    if certificate is not None and certificate.unseen_every_s is not None:
        seconds = format_seconds(max(1, round(certificate.unseen_every_s)))
        yield (
            f"The machine was watched too briefly: slow phases rarer than one in {seconds} may break this rate."
        )
    seen = None if certificate is None else certificate.contention
    contentions = (
        (seen, "while this rate was certified: it may be too low for this machine"),
        (found.contention, "in all: on a quiet machine another configuration may be better"),
    )
    for contention, effect in contentions:
        mark = mark_of(contention)
        if mark is not None:
            yield f"{mark[0].upper()}{mark[1:]} {effect}."
            return


def _with_fewer_bytes(found: RecommendationRecord) -> Iterator[str]:
    """Yield what the front end lets through of smaller bodies, if theirs bound the rate and not the engine."""
    through, engine_per_s = found.let_through, found.standalone_per_s
    if through is None or engine_per_s is None:
        return
    now_per_s = max(geometric_mean(rates) for rates in through.usable.values())
    more = {text: rate for text, rate in through.with_input_types.items() if rate > BETTER * now_per_s}
    if more and engine_per_s > BETTER * now_per_s:
        each = ", ".join(f"{text} about {float(f'{rate:.2g}'):,.0f}/s" for text, rate in more.items())
        yield f"The bytes of requests bound the rate: --input-type would let more through, {each}."


def remarks(found: RecommendationRecord) -> Iterator[str]:
    """Yield why this configuration, what its rate is of the engine's own, how its answers compare, and advice."""
    yield from filter(None, (found.reason, share_of_engine(found)))
    if found.winner.answers is not None and found.winner.config.batching_sizes:
        yield f"{found.winner.answers.text}."
    yield from filter(None, [found.advice])


def share_of_engine(found: RecommendationRecord) -> str | None:
    """Return the certified rate as a share of the engine's own; None if it was not measured."""
    certificate = found.winner.certificate
    if certificate is None or found.standalone_per_s is None or found.objective.rate_per_s is not None:
        return None
    share = certificate.rate_per_s / found.standalone_per_s
    only, per_cent = ("", f"{100 * share:.0f}") if share >= FAR_BELOW else ("only ", f"{100 * share:.2g}")
    return (
        f"It is {only}{per_cent} % of the {format_rate(found.standalone_per_s)}/s that its engine does standalone."
    )


def limits_text(slo: Slo) -> str:
    """Return such as `p99 within 50 ms`, the other limits, and the memory limit."""
    return slo.text if slo.max_memory_bytes is None else f"{slo.text} in {memory_text(slo.max_memory_bytes)}"


def limit_options(limits: Iterable[LatencyLimit]) -> str:
    """Return such as `--p99 50ms --p50 10ms`, as both commands take them."""
    return " ".join(limit.option.replace("=", " ") for limit in limits)


def rate_option(rate_per_s: float) -> str:
    """Return such as `--rate 3893`."""
    return f"--rate {format_rate(rate_per_s).replace(',', '')}"


def resume_command(directory: Path, advice: str = "") -> str:
    """Return the command that goes on with a run, with the time budget that its advice names, if it does."""
    budget = re.search(r"--time-budget \d\w*", advice)
    return " ".join(filter(None, (f"optimize --resume {shown_directory(directory)}", budget and budget[0])))


def serve_command(found: RecommendationRecord, directory: Path) -> str:
    """Return the command that serves the recommendation on Triton's usual port, by the kind of server that was
    measured; where that was another machine's, the one that renders its deployment bundle.
    """
    workload, server = found.workload, found.runtime.server
    if server == "remote":
        return f"optimize bundle {shown_directory(directory)}"
    parts = [f"optimize serve {shown_directory(directory)} --port {PORTS['http']}"]
    parts += [f"--grpc-port {PORTS['grpc']}"] if workload.protocol == "grpc" else []
    parts += [f"--server {server}"] if server != "embedded" else []
    parts += [f"--shared-memory {workload.shared_memory}"] if workload.shared_memory != "none" else []
    return " ".join(parts)


def loadtest_command(
    found: RecommendationRecord, directory: Path, config: OptimizeConfig | None, *, url: str | None = None
) -> str:
    """Return the load test of the certified rate under all limits, with the run's traffic, at `url`.

    Without one it is at Triton's usual port here. `config` is the run's, if it was kept.
    """
    certificate, workload = found.winner.certificate, found.workload
    assert certificate is not None
    url = url or f"{workload.protocol}://127.0.0.1:{PORTS[workload.protocol]}"
    folder = from_here(directory)
    given = None if config is None else config.input_data  # a folder, or too large for a copy
    data = given if workload.input_data is None else folder / workload.input_data
    options = traffic_options(
        workload, trace=str(folder / (workload.trace or "")), input_data=None if data is None else str(data)
    )
    shapes = {} if config is None or data is not None else config.shapes
    sizes = (f"--shape={name}:{','.join(map(str, shape))}" for name, shape in shapes.items())
    long_s = run_length_s(certificate.seconds)
    return " ".join(
        [
            f"loadtest {url} --model {shlex.quote(found.model.name)} {rate_option(certificate.rate_per_s)}",
            limit_options(found.slo.limits),
            *([f"--duration {long_s}s"] if long_s > SHORTEST_RUN_S else []),
            *map(shlex.quote, (*sizes, *options)),
        ]
    )
