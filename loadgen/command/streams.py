"""Turn the options on streams of tokens into an order: the requests, the limits, and the time that they need."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from loadgen.errors import BadInput
from loadgen.options.declare import option_fields
from loadgen.options.load_test import LoadTestOptions
from loadgen.records.formats import duration_option, format_rate, format_seconds
from loadgen.spec.limits import Limits, StreamLimit, all_of, settled_limits
from loadgen.spec.load_test import STATIONARY, Note
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Streamed
from loadgen.statistics.checks import shortest_run_s

_ONLY_STREAMS = ("prompts", "prompt_tokens", "output_tokens", "allow_short", "stream_limits", "attainment")
_ONLY_TRITON = (
    "limits", "max_error_ratio", "concurrency", "trace", "model_version", "input_data", "shapes", "batch_size",
    "shared_memory", "ask_output", "format", "master",
)  # fmt: skip
_TIMEOUT_S, _TIMEOUT_WITHOUT_LIMITS_S, _TIMES_LONGEST = 10.0, 60.0, 4
"""After an overload a run waits for its time-out. A reply that takes four times as long as one within all limits
is over them."""
_LAG_SHARE = 0.05
_SETTLES_OF_A_SEARCH = 40
"""Each load settles for three times as long as a reply takes: six loads, and as long for the confirmation."""


def streamed_from(options: LoadTestOptions) -> Streamed | None:
    """Return the requests for streams; None without --api. Raises BadInput for options that do not go together."""
    usual = {one.name: one.default for one in fields(options)}
    given = {name for name in usual if getattr(options, name) not in (usual[name], None, (), {})}
    if options.api is None:
        for name in _ONLY_STREAMS:
            if name in given:
                raise BadInput(
                    f"{_flag(options, name)} is about streams of tokens, and Triton's API has none.",
                    "Add --api openai-chat or --api openai-completions.",
                )
        return None
    for name in _ONLY_TRITON:
        if name in given:
            raise BadInput(
                f"{_flag(options, name)} cannot be combined with --api {options.api}.",
                "Leave it out. Limits on streams are --ttft-p95, --tpot-p95, --e2e-p95 and --attainment.",
            )
    _check_complete(options)
    assert options.output_tokens is not None
    return Streamed(
        api=options.api,
        output_tokens=options.output_tokens,
        prompt_tokens=options.prompt_tokens,
        allow_short=options.allow_short,
    )


def _check_complete(options: LoadTestOptions) -> None:
    if not (options.url or "").startswith("http"):
        raise BadInput(f"--api {options.api} goes over HTTP.", "Give an address such as http://HOST:8000/v1")
    if (options.prompts is None) == (options.prompt_tokens is None):
        both = "Both --prompts and --prompt-tokens were given." if options.prompts else "No prompts were given."
        raise BadInput(both, "Give one of --prompts FILE and --prompt-tokens N.")
    if options.output_tokens is None:
        raise BadInput("How many tokens to ask for was not given.", "Add --output-tokens N, such as 128.")
    if options.attainment is not None and not options.attainment > 0:
        raise BadInput("--attainment 0% is always so.", "Give a share of the requests, such as 95%.")
    if not options.stream_limits and (options.attainment is not None or options.find_max):
        what = "--find-max" if options.find_max else "--attainment"
        raise BadInput(f"{what} needs limits.", "Add --ttft-p95 500ms --tpot-p95 40ms, or --e2e-p95 20s.")


def streams_load(
    options: LoadTestOptions,
    streamed: Streamed,
    plan: LoadPlan | ClosedLoopPlan,
    limits: Limits,
    notes: list[Note],
) -> tuple[LoadPlan, Limits, float]:
    """Return plan, limits and seconds of warm-up of a load of streams; notes its time. Raises BadInput."""
    assert isinstance(plan, LoadPlan)
    if plan.arrivals.kind not in STATIONARY:
        raise BadInput(
            f"--arrivals {options.arrivals} changes the load, and with --api it goes on until all is measured.",
            "Use --arrivals poisson, constant or gamma:cv=2.",
        )
    found = settled_limits(options.stream_limits, streamed.output_tokens)
    if options.stream_limits and not found:
        raise BadInput(
            "A limit on the first token, or per token, alone does not tell when a reply ends, and load is steady.",
            f"Add --{'tpot' if options.stream_limits[0].measure == 'ttft' else 'ttft'}-p95 or --e2e-p95.",
        )
    if options.attainment is not None:
        found = (*found, all_of(found, options.attainment))
    settle_s = found[0].steady_after_ms / 1e3 if found else 0.0
    if options.find_max:
        found = (_searched(found, options, notes),)
        if options.duration_s is None:
            plan = replace(plan, duration_s=max(plan.duration_s, _SETTLES_OF_A_SEARCH * settle_s))
    longest_s = max([settle_s, *(limit.limit_s for limit in found)])
    default_s = max(_TIMEOUT_S, _TIMES_LONGEST * longest_s) if found else _TIMEOUT_WITHOUT_LIMITS_S
    given_up_s = timeout_s(options, longest_s, default_s=default_s)
    lag_ms = (_LAG_SHARE * limit.limit_ms for limit in options.stream_limits if limit.measure != "tpot")
    plan = replace(
        plan,
        timeout_s=given_up_s,
        tail_s=given_up_s,
        most_send_lag_ms=options.most_send_lag_ms or max(1.0, min(lag_ms, default=0.0)),
    )
    if found and not options.find_max:
        needed_s, slowest = max(
            ((shortest_run_s(limit, plan.rate_per_s, limits.confidence), limit) for limit in found),
            key=lambda one: one[0],
        )
        if options.duration_s is None:
            plan = replace(plan, duration_s=float(math.ceil(needed_s)))
        notes.append(_time_note(plan, needed_s, slowest))
    warmup_s = max(1.0, settle_s) if options.warmup_s is None else options.warmup_s
    return plan, replace(limits, latency=found), warmup_s


def _searched(limits: tuple[StreamLimit, ...], options: LoadTestOptions, notes: list[Note]) -> StreamLimit:
    """Return the one limit that --find-max is about. Raises BadInput."""
    if options.attainment is None and len(limits) > 1:
        raise BadInput(
            "--find-max searches for one limit, and several are given.",
            "Add --attainment 95%, which is about all of them together.",
        )
    if len(limits) > 2:
        text = "--find-max is about --attainment; the percentiles of the limits are not tested for themselves."
        notes.append(Note(text=text))
    return all_of(limits, limits[0].quantile) if options.attainment is None else limits[-1]


def timeout_s(options: LoadTestOptions, longest_s: float, *, default_s: float) -> float:
    """Return the time-out: above all limits, as requests that are given up before say nothing about them."""
    if options.timeout_s is not None and options.timeout_s <= longest_s:
        raise BadInput(
            f"--timeout {options.timeout_s:g}s gives requests up before the limit of {longest_s:g} s.",
            "Use a longer --timeout, or leave it out.",
        )
    return options.timeout_s or default_s


def _time_note(plan: LoadPlan, needed_s: float, slowest: StreamLimit) -> Note:
    sends = f"this run sends {format_seconds(plan.duration_s)}, then until all of it has ended"
    text = (
        f"{slowest.text} at {format_rate(plan.rate_per_s)}/s takes about {format_seconds(needed_s)} of load to be "
        f"met, and longer if some requests are late; {sends}"
    )
    if plan.duration_s >= needed_s:
        return Note(text=f"{text}.")
    return Note(text=f"{text}, which is too short: use --duration {duration_option(needed_s)}.", loud=True)


def _flag(options: LoadTestOptions, name: str) -> str:
    """Return the option of a field; of limits the first that was given."""
    value = getattr(options, name)
    if name in ("limits", "stream_limits"):
        return str(value[0].option.partition("=")[0])
    return next(one.flag for one in option_fields(LoadTestOptions).values() if one.field == name)
