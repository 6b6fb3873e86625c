"""The options of streams of tokens: what goes together, and the limits, times and notes that follow from them."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.cli import run_command
from loadgen.command.arguments import order_from_options
from loadgen.errors import BadInput
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.spec.limits import StreamLimit
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.plan import LoadPlan, Streamed

LEAST = {
    "url": "http://127.0.0.1:9/v1", "model": "m", "api": "openai-chat", "prompt_tokens": 100, "output_tokens": 50,
    "rate": 2.0,
}  # fmt: skip
LIMITS = {"ttft_p95": "500ms", "tpot_p95": "40ms"}


def order(**changes: object) -> tuple[LoadTest, list[Note]]:
    return order_from_options(made_of(LoadTestOptions, {**LEAST, **changes}, str), {})


def plan(**changes: object) -> LoadPlan:
    found = order(**changes)[0].plan
    assert isinstance(found, LoadPlan)
    return found


def limits_of(**changes: object) -> list[StreamLimit]:
    return [limit for limit in order(**changes)[0].limits.latency if isinstance(limit, StreamLimit)]


def test_the_requests_are_those_of_the_options() -> None:
    asked = Streamed(api="openai-chat", output_tokens=50, prompt_tokens=100)
    assert order()[0].payload.streamed == asked
    found, _ = order(prompt_tokens=None, prompts=Path(__file__), allow_short=True)
    assert found.payload.data_file == Path(__file__)
    assert found.payload.streamed == Streamed(api="openai-chat", output_tokens=50, allow_short=True)


def test_each_limit_is_tested_for_itself_and_the_attainment_is_about_all_of_them() -> None:
    *limits, together = limits_of(**LIMITS, e2e_p99="20s", attainment="90%")
    assert [(limit.measure, limit.quantile) for limit in limits] == [("ttft", 0.95), ("tpot", 0.95), ("e2e", 0.99)]
    assert (together.quantile, together.parts) == (0.9, tuple(limits))
    assert [limit.option for limit in limits] == ["--ttft-p95=500ms", "--tpot-p95=40ms", "--e2e-p99=20000ms"]


def test_a_search_is_about_the_attainment_or_the_one_limit() -> None:
    (limit,) = limits_of(**LIMITS, attainment="90%", find_max=True)
    assert (limit.quantile, [part.measure for part in limit.parts]) == (0.9, ["ttft", "tpot"])
    (limit,) = limits_of(e2e_p90="20s", find_max=True)
    assert (limit.quantile, [part.measure for part in limit.parts]) == (0.9, ["e2e"])


def test_the_load_lasts_as_long_as_the_limits_need_and_goes_on_until_all_is_measured() -> None:
    at_p95 = plan(**LIMITS)
    assert at_p95.tail_s == at_p95.timeout_s
    assert at_p95.timeout_s < plan().timeout_s
    assert plan(**LIMITS, rate=1.0).duration_s > at_p95.duration_s > 60.0
    assert plan(**LIMITS, e2e_p99="20s").duration_s > 10 * at_p95.duration_s
    assert plan(**LIMITS, e2e_p99="50s").timeout_s == 200.0
    assert plan(**LIMITS, duration="30s").duration_s == 30.0


def test_a_run_that_is_too_short_is_said_before_it_is_sent() -> None:
    assert [note.loud for note in order(**LIMITS)[1]] == [False]
    assert [note.loud for note in order(**LIMITS, duration="30s")[1]] == [True]


def test_late_sends_are_measured_by_the_shortest_limit_from_the_due_time() -> None:
    assert plan(**LIMITS, e2e_p99="20s").most_send_lag_ms == pytest.approx(25.0)
    assert plan().most_send_lag_ms == 1.0
    assert plan(**LIMITS, max_send_lag="3ms").most_send_lag_ms == 3.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"api": None}, "--prompt-tokens"),
        ({"api": None, "prompt_tokens": None, "output_tokens": None, "e2e_p95": "1s"}, "--e2e-p95"),
        ({"prompts": Path(__file__)}, "--prompts"),
        ({"prompt_tokens": None}, "prompts"),
        ({"output_tokens": None}, "tokens"),
        ({"output_tokens": 0}, "--output-tokens"),
        ({"api": "kserve"}, "--api"),
        ({"url": "grpc://127.0.0.1:9"}, "HTTP"),
        ({"p99": "1s"}, "--p99"),
        ({"max_errors": "1%"}, "--max-errors"),
        ({"concurrency": 3}, "--concurrency"),
        ({"batch_size": 2}, "--batch-size"),
        ({"shape": ["x:3"]}, "--shape"),
        ({"master": True}, "--master"),
        ({"ttft_p95": "500ms"}, "first token"),
        ({"tpot_p95": "40ms"}, "per token"),
        ({"attainment": "95%"}, "--attainment"),
        ({"attainment": "0%", "e2e_p95": "1s"}, "--attainment"),
        ({"attainment": "0.95", "e2e_p95": "1s"}, "--attainment"),
        ({"find_max": True}, "--find-max"),
        ({"find_max": True, **LIMITS}, "--find-max"),
        ({"e2e_p95": "90s", "timeout": "80s"}, "--timeout"),
        ({"arrivals": "ramp:from=1,to=2"}, "--arrivals"),
        ({"url": "http://192.0.2.1/v1"}, "192.0.2.1"),
    ],
)
def test_what_does_not_go_together_is_refused_and_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput) as caught:
        order(**changes)
    assert named in caught.value.what


def test_a_share_of_all_requests_is_answered_with_one_that_can_be_tested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command([str(LEAST["url"]), "--attainment", "100%"]) == 2
    fix = capsys.readouterr().err.splitlines()[-1].rpartition(" ")[2]
    assert limits_of(**LIMITS, attainment=fix)[-1].quantile >= 0.9


def test_an_address_without_a_server_is_said_as_for_triton() -> None:
    program = "import sys; from loadgen.cli import run_command; sys.exit(run_command(sys.argv[1:]))"
    words = "http://127.0.0.1:9/v1 --model m --api openai-chat --prompt-tokens 3 --output-tokens 3 --rate 2"
    ended = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"refuses connections" in ended.stderr
