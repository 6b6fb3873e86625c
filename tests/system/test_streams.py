"""Real load on an endpoint that misbehaves as asked: what the load test counts is what the server knows it did."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llm_server import BEHAVIOURS, FAILING, RunningServer, llm_server

from loadgen.errors import TargetRefused
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import LoadPlan, Payload, Streamed
from loadgen.spec.target import Target

pytestmark = pytest.mark.system

TTFT_S, TPOT_S, TOKENS = 0.05, 0.005, 16
FAILURES = {
    "error-at-0": "error in the stream",
    "error-at-5": "error in the stream",
    "half-503": "http 503",
    "stop-at-3": "fewer tokens than asked for",
    "stalled": "connection closed",
}


@pytest.fixture(scope="module")
def generator() -> Iterator[LoadGenerator]:
    with LoadGenerator(2) as running:
        yield running


def load(generator: LoadGenerator, server: RunningServer) -> LoadRun:
    return generator.run(
        Target(url=f"{server.url}/v1", model_name="fake"),
        LoadPlan(rate_per_s=40.0, duration_s=1.0, seed=3, tail_s=5.0, most_send_lag_ms=1e4),
        payload=Payload(streamed=Streamed(api="openai-chat", output_tokens=TOKENS, prompt_tokens=8)),
    )


def check_times(log: RequestLog, first_token_s: float) -> None:
    """Check that no good reply is faster than the server's laws; clocks agree to a millisecond."""
    good, streams = ~log.failed, log.streams[~log.failed]
    due_s, first_s, last_s, done_s = (
        times / 1e9
        for times in (log.scheduled_ns[good], streams["first_ns"], streams["last_ns"], log.done_ns[good])
    )
    assert len(due_s) > 5
    assert (first_s - due_s > first_token_s - 0.001).all()
    assert (last_s - due_s > TTFT_S + TPOT_S * (TOKENS - 1) - 0.001).all()
    assert (done_s > last_s - 0.001).all()


@pytest.mark.parametrize("behaviour", sorted(BEHAVIOURS.keys() - {"slow-client"}))
def test_every_behaviour_is_counted_as_what_it_is(behaviour: str, generator: LoadGenerator) -> None:
    with llm_server(behaviour, ttft_s=TTFT_S, tpot_s=TPOT_S, stall_s=0.2) as server:
        run = load(generator, server)
        truth = server.truth()
    log, seen = run.log, run.measurement
    assert seen.problems == ()
    if behaviour in FAILING:  # every second one at the server, which counts other requests as well
        assert seen.errors.keys() == {FAILURES[behaviour]}
        assert 0.4 * seen.n < np.count_nonzero(log.failed) < 0.6 * seen.n
    else:
        assert seen.errors == {}
        assert all(one["good"] for one in truth)
    assert set(log.streams["tokens_out"][~log.failed].tolist()) == {TOKENS}
    assert set(log.streams["finish"][~log.failed].tolist()) == {b"length"}
    # An empty frame comes at once, and is no token.
    check_times(log, TTFT_S + (TPOT_S * (TOKENS - 1) if behaviour == "one-write" else 0.0))


@pytest.mark.parametrize("laws", [{}, {"tokens_per_frame": 4}, {"hidden_tokens": 12}])
def test_tokens_count_from_the_end_of_the_first_event(laws: dict[str, int], generator: LoadGenerator) -> None:
    with llm_server(ttft_s=TTFT_S, tpot_s=0.02, **laws) as server:
        log = load(generator, server).log
    assert not log.failed.any()
    assert log.streams is not None
    first, later = log.streams["tokens_first"], log.streams["tokens_later"]
    assert set((first + later).tolist()) == {TOKENS - laws.get("hidden_tokens", 0)}
    assert first.min() == laws.get("tokens_per_frame", 1)  # more if the server was stopped for a moment


def test_a_reply_ends_when_it_is_done(generator: LoadGenerator) -> None:
    with llm_server(ttft_s=TTFT_S, tpot_s=TPOT_S, after_done_s=0.5) as server:
        log = load(generator, server).log
    assert log.streams is not None
    assert not log.failed.any()
    assert np.min(log.done_ns - log.streams["last_ns"]) < 0.5e9


def test_an_endpoint_that_does_not_stream_is_refused_before_the_load(generator: LoadGenerator) -> None:
    with llm_server(streams=0) as server:
        with pytest.raises(TargetRefused, match="application/json"):
            load(generator, server)
        assert len(server.truth()) <= 2  # a first request of each process


def test_the_command_counts_tokens_and_chunks_and_keeps_up_the_load(tmp_path: Path) -> None:
    program = "import sys; from loadgen.cli import run_command; sys.exit(run_command(sys.argv[1:]))"
    with llm_server(ttft_s=0.01, tpot_s=0.001, cached_tokens=3, tokens_per_frame=4) as server:
        words = (
            f"{server.url}/v1 --api openai-completions --model fake --warmup 0s --prompt-tokens 8 --rate 30 "
            f"--output-tokens {TOKENS} --e2e-p50 5s --duration 2s --max-send-lag 10s --json --keep-log {tmp_path}"
        )
        ended = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, check=False)
        truth = server.truth()
    assert ended.returncode == 96, ended.stderr  # 2 s decide nothing about a limit of 5 s
    assert {one["asked"] for one in truth} == {TOKENS}
    assert all(one["request"]["stream_options"] == {"include_usage": True} for one in truth)
    measured = json.loads(ended.stdout)["measurement"]
    seen, n = measured["streams"], measured["requests"]
    assert (seen["tokens_out"], seen["chunks"], seen["cached_tokens"]) == (TOKENS * n, 4 * n, 3 * n)
    assert len(truth) > n + 1  # all that is measured had ended before the load did
    assert len(np.load(tmp_path / "streams.npy")) == n


def test_who_replied_is_named_and_no_two_prompts_of_a_command_are_alike() -> None:
    program = "import sys; from loadgen.cli import run_command; sys.exit(run_command(sys.argv[1:]))"
    key, header = "sk-3f9a77c1e05d", "X-Any-Cache: SEMANTIC HIT"
    with llm_server(ttft_s=0.01, tpot_s=0.001, other_model=f"else-{key}", header=header) as server:
        words = (
            f"{server.url}/v1 --api openai-chat --model fake --warmup 1s --prompt-tokens 200 --rate 30 "
            f"--output-tokens 4 --duration 1s --processes 2 --max-send-lag 10s --json --header X-Key:{key}"
        )
        ended = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, check=False)
        prompts = [set(one["words"].split()) for one in server.truth()]
    record = json.loads(ended.stdout)
    assert record["outcome"] == "measured", ended.stderr
    told = record["measurement"]["in_front"]
    assert [sum(name in sentence for sentence in told) for name in ("'else-***'", "x-any-cache")] == [1, 1]
    assert set(told) < set(record["reasons"])
    assert max(len(one & other) / len(one) for place, one in enumerate(prompts) for other in prompts[:place]) < 0.7
