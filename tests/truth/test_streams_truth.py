"""Verdicts on streams of tokens whose laws are known, in virtual time: whether limits hold is plain arithmetic."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from simulated_streams import SimulatedStreams
from virtual_load_test import carried_out, order_of

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.streams import STREAM_DTYPE
from loadgen.records.record import LoadTestRecord
from loadgen.spec.limits import StreamLimit
from loadgen.spec.plan import LoadPlan
from loadgen.statistics.slo_test import certify

ORDER = {
    "url": "http://127.0.0.1:9/v1", "model": "m", "api": "openai-chat", "prompt_tokens": 8, "output_tokens": 41,
    "ttft_p95": "300ms", "tpot_p95": "12ms",
}  # fmt: skip


def found(generator: SimulatedStreams, **changes: object) -> LoadTestRecord:
    return carried_out(order_of(**{**ORDER, **changes}), generator)


def good_share(rate_per_s: float) -> float:
    """The long-run share of first tokens in time, of half a million requests."""
    log = SimulatedStreams()._log(LoadPlan(rate_per_s=rate_per_s, duration_s=500_000 / rate_per_s, seed=77))
    assert log.streams is not None
    return float(np.mean(log.streams["first_ns"] - log.scheduled_ns <= 300e6))


@cache
def capacity_per_s(share: float) -> float:
    """The rate at which this share of the first tokens is in time; below what 16 slots serve, which is 32/s."""
    low, high = 1.0, SimulatedStreams().capacity_per_s
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if good_share(middle) >= share else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", [{}, {"ttft_p95": None, "ttft_p50": "300ms", "attainment": "90%"}])
def test_nine_tenths_of_the_capacity_are_certified_and_eleven_are_refused(
    seed: int, limits: dict[str, object]
) -> None:
    capacity = capacity_per_s(0.9 if limits else 0.95)
    below, above = (
        found(SimulatedStreams(), rate=times * capacity, seed=seed, duration="600s", **limits)
        for times in (0.9, 1.1)
    )
    assert (below.outcome, below.exit_code) == ("met", 0)
    assert (above.outcome, above.exit_code) == ("violated", 99)


@pytest.mark.parametrize(("tpot", "outcome"), [("10ms", "met"), ("9.9ms", "violated")])
def test_a_time_per_token_exactly_at_its_limit_is_in_time(tpot: str, outcome: str) -> None:
    assert found(SimulatedStreams(), rate=8.0, tpot_p95=tpot).outcome == outcome


@pytest.mark.parametrize(("tpot", "outcome"), [("10ms", "met"), ("9.9ms", "violated")])
def test_events_of_several_tokens_do_not_change_the_time_per_token(tpot: str, outcome: str) -> None:
    record = found(SimulatedStreams(first_tokens=20), rate=8.0, tpot_p95=tpot, duration="60s")
    assert record.outcome == outcome
    assert record.measurement is not None
    assert record.measurement.streams is not None
    assert record.measurement.streams.several_per_event == record.measurement.requests


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"tpot_p95": "13ms"}, "met"),  # 500 ms for 40 tokens after the first are 12.5 at most
        ({"tpot_p95": "12ms"}, "inconclusive"),
        ({"tpot_p95": "12ms", "fail_fast": True}, "inconclusive"),
        ({"tpot_p95": "12ms", "attainment": "90%"}, "inconclusive"),
        (
            {"tpot_p95": "5ms", "attainment": "90%", "find_max": True, "rate": None, "duration": "600s"},
            "inconclusive",
        ),
        ({"tpot_p95": "12ms", "ttft_p95": "450ms"}, "violated"),
    ],
)
def test_tokens_that_come_at_once_violate_no_limit_per_token(limits: dict[str, object], outcome: str) -> None:
    usual = {"rate": 8.0, "duration": "60s", "ttft_p95": "600ms"}
    record = found(SimulatedStreams(first_tokens=41), **{**usual, **limits})
    assert record.outcome == outcome
    assert all(check.needed_s is None for check in record.checks)
    assert record.measurement is not None
    assert record.measurement.streams is not None
    assert record.measurement.streams.at_once == record.measurement.requests
    assert record.measurement.streams.in_front[0] in record.reasons


def test_replies_without_an_end_are_over_every_limit() -> None:
    record = found(SimulatedStreams(cut_off=0.1), rate=16.0, duration="200s", e2e_p50="2s")
    assert {check.kind: check.answer for check in record.checks} == {
        "latency": "met",  # of which half may be late
        "ttft": "violated",
        "tpot": "violated",
    }


def test_a_long_wait_for_the_first_token_is_no_overload_if_no_limit_is_about_it() -> None:
    slow = SimulatedStreams(slots=160, ttft_ms=2000.0)
    record = found(slow, rate=16.0, duration="600s", ttft_p95=None, e2e_p90="4s")
    assert (record.outcome, [check.answer for check in record.checks]) == ("met", ["met", "met"])


def test_without_a_duration_the_load_is_as_long_as_the_limits_need() -> None:
    assert found(SimulatedStreams(), rate=4.0).outcome == "met"
    short = found(SimulatedStreams(), rate=4.0, duration="20s")
    assert (short.outcome, short.exit_code) == ("inconclusive", 96)
    assert all(check.needed_s > 20.0 for check in short.checks)


def test_cached_prompts_are_named_in_the_verdict() -> None:
    record = found(SimulatedStreams(cached=5), rate=8.0)
    assert record.measurement is not None
    assert record.measurement.streams is not None
    assert record.measurement.streams.cached_tokens == 5 * record.measurement.requests
    assert record.measurement.streams.in_front[0] in record.reasons
    assert not any("cache" in reason for reason in found(SimulatedStreams(), rate=8.0).reasons)


@pytest.mark.parametrize(
    ("counted", "changes", "outcome"),
    [
        ({"prompt": 2051}, {"prompt_tokens": 8000}, "inconclusive"),  # the server's window
        ({"prompt": 24000}, {"prompt_tokens": 8000}, "inconclusive"),
        ({"prompt": 24000}, {"prompt_tokens": 8000, "find_max": True, "attainment": "90%"}, "inconclusive"),
        ({"prompt": 2051}, {"prompt_tokens": 8000, "tpot_p95": "9ms"}, "violated"),
        ({"prompt": 8300}, {"prompt_tokens": 8000}, "met"),
        ({"prompt": 70}, {"prompt_tokens": 8}, "met"),  # with the template of a chat
        ({"prompt": -1}, {"prompt_tokens": 8000}, "met"),
        ({"tokens": 3}, {"allow_short": True}, "inconclusive"),
        ({"tokens": 3}, {"allow_short": True, "prompts": Path(__file__), "prompt_tokens": None}, "met"),
    ],
)
def test_tokens_are_said_beside_those_asked_for_and_other_loads_meet_nothing(
    counted: dict[str, int], changes: dict[str, object], outcome: str
) -> None:
    record = found(SimulatedStreams(**counted), rate=8.0, duration="600s", **changes)  # type: ignore[arg-type]
    assert record.outcome == outcome
    (seen,) = counted.values()
    asked = record.load.output_tokens if "tokens" in counted else record.load.prompt_tokens
    if seen > 0:
        assert any(f"{seen:,}" in reason and f"{asked:,}" in reason for reason in record.reasons)


@pytest.mark.parametrize(
    "limits", [{"attainment": "90%"}, {"ttft_p95": None, "tpot_p95": None, "e2e_p90": "700ms"}]
)
def test_the_highest_rate_keeps_its_share_and_is_not_far_below_what_could(limits: dict[str, object]) -> None:
    """A reply in 700 ms has its first token in 300 ms, so both limits are the same."""
    record = found(SimulatedStreams(), find_max=True, duration="1200s", **limits)
    assert (record.outcome, record.exit_code) == ("met", 0)
    assert record.capacity is not None
    rate = record.capacity.certified_rate_per_s
    assert rate is not None
    assert good_share(rate) >= 0.9
    assert good_share(1.15 * rate) < 0.9


def test_most_short_searches_have_time_to_confirm_their_rate() -> None:
    limits = {"ttft_p95": None, "tpot_p95": None, "ttft_p90": "500ms", "tpot_p90": "40ms", "attainment": "90%"}
    met = [
        found(
            SimulatedStreams(tokens=32), find_max=True, duration="150s", output_tokens=32, seed=seed, **limits
        ).outcome
        == "met"
        for seed in range(100, 124)
    ]
    assert np.mean(met) > 0.6


def with_pauses(seed: int, late: float, *, rate_per_s: float = 20.0, reply_s: float = 2.5) -> RequestLog:
    """120 s of replies, of which `late` are late per token: all that are under way in one of the pauses."""
    rng = np.random.default_rng(seed)
    due_s = np.sort(rng.uniform(0, 120, rng.poisson(120 * rate_per_s)))
    per_s = -np.log(1 - late) / reply_s
    pauses_s = np.sort(rng.uniform(-10, 130, rng.poisson(140 * per_s)))
    paused = np.searchsorted(pauses_s, due_s + reply_s) > np.searchsorted(pauses_s, due_s)
    streams = np.zeros(len(due_s), STREAM_DTYPE)
    due_ns = (due_s * 1e9).astype(np.int64)
    streams["tokens_out"], streams["first_ns"] = 64, due_ns + 100_000_000
    streams["last_ns"] = streams["first_ns"] + np.where(paused, 60, 8) * 63_000_000
    ended_ns = due_ns + round(reply_s * 1e9)
    return RequestLog(
        scheduled_ns=due_ns,
        sent_ns=due_ns,
        done_ns=ended_ns,
        outcome=np.zeros(len(due_ns), np.uint8),
        streams=streams,
    )


def first_answer(log: RequestLog, limit: StreamLimit) -> str:
    """The answer at the first of the looks every 5 s that has one."""
    looks = (log.rows(0, int(np.searchsorted(log.scheduled_ns, end_s * 1e9))) for end_s in range(10, 121, 5))
    answers = (certify(look, limit).answer for look in looks)
    return next((answer for answer in answers if answer != "inconclusive"), "inconclusive")


def test_pauses_that_all_streams_under_way_share_certify_no_limit_that_is_violated() -> None:
    limit = StreamLimit(limit_ms=40.0, quantile=0.95, measure="tpot", settle_ms=5000.0)
    answers = [first_answer(with_pauses(seed, 0.06), limit) for seed in range(60)]
    assert answers.count("met") <= 6  # 5 % of 60 are 3
