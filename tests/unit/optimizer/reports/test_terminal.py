"""Tests of the output at the end of a run: the recommendation first, and only measured values."""

from dataclasses import replace
from pathlib import Path

import pytest
from recommendations import certificate, config, contention, engine, recommendation, trial

from loadgen.console import SafeConsole
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.spec.limits import LatencyLimit
from optimizer.reports.terminal import recommendation_view
from optimizer.run.progress import certified_line, trial_line
from search.answer.analysis import frontier_of
from search.records.accuracy import AccuracyRecord, OutputAccuracyRecord
from search.records.engine_profile import CeilingsRecord, EngineProfileRecord, LayerRecord, TimeUseRecord
from search.records.recommendation import (
    FrontEndRecord,
    RecommendationRecord,
    SecondsRecord,
    StageRecord,
    StepRecord,
)
from search.records.slo import Slo
from search.records.trial import CertifiedLatencyRecord, PredictionRecord, ServiceTimesRecord, WhyRecord
from search.trials import events


def shown(found: RecommendationRecord, width: int = 80) -> str:
    console = SafeConsole(width=width, force_terminal=False, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(recommendation_view(found, Path("runs/m")))
    return capture.get()


def test_the_answer_comes_first() -> None:
    first = shown(recommendation()).splitlines()[1]
    assert "1,000 requests/s" in first
    assert "p99 50 ms" in first
    assert "$0.139" in first


def test_every_figure_of_the_promise_is_there() -> None:
    text = " ".join(shown(recommendation(), width=120).split())
    for figure in ("30.0 ms (28.0 to 36.0 at 95 %)", "20,000 requests", "12 over the limit", "2 runs"):
        assert figure in text
    assert "2.00 times the rate of the baseline" in text
    assert "3 replicas: $1.50 an hour" in text
    assert "95 % load or loading" in text


def test_where_the_time_of_the_run_went() -> None:
    spent = SecondsRecord(
        total=100.0,
        load=60.0,
        loading_models=10.0,
        other=30.0,
        preparation=(StepRecord(step="export", seconds=2.5, cached=True), StepRecord(step="reading", seconds=9.0)),
        stages=(
            StageRecord(stage="prepare", seconds=20.0, load=0.0, loading_models=0.0),
            StageRecord(stage="search", seconds=80.0, load=60.0, loading_models=10.0),
        ),
    )
    lines = [line.split() for line in shown(recommendation(seconds=spent)).splitlines()]
    assert ["preparation", "20.0", "0.0", "0.0", "20.0"] in lines
    assert ["-", "export", "(cached)", "2.5"] in lines
    assert ["-", "reading", "9.0"] in lines
    assert ["trials", "80.0", "60.0", "10.0", "10.0"] in lines
    assert "seconds of" not in shown(recommendation())


@pytest.mark.parametrize(("runs", "said"), [(1, True), (2, False)])
def test_a_rate_that_was_kept_only_once_is_no_firm_promise(runs: int, said: bool) -> None:
    winner = trial(1, certificate=certificate(runs=runs))
    first_lines = " ".join(shown(recommendation(winner=winner)).splitlines()[:4])
    assert ("Provisional" in first_lines) is said


def test_nothing_is_wider_than_the_terminal() -> None:
    assert max(len(line) for line in shown(recommendation()).splitlines()) <= 80


def test_a_baseline_that_was_not_certified_is_said_to_be_an_estimate() -> None:
    baseline = trial(0, certificate=None, rate_at_limit_per_s=432.0)
    text = shown(recommendation(baseline=baseline, gain=None), width=120)
    assert "not certified" in text
    assert "about 432/s" in text
    assert "times the rate" not in text


def test_a_winning_baseline_is_shown_once() -> None:
    winner = trial(0)
    text = shown(recommendation(winner=winner, baseline=winner, gain=1.0))
    assert "Triton default" not in text
    assert "no better than the baseline" in text


def test_what_the_server_did_not_tell_is_a_dash() -> None:
    winner = trial(measurement=None, certificate=certificate())
    text = shown(recommendation(winner=winner, baseline=None, gain=None))
    queue = next(line for line in text.splitlines() if line.startswith("queue "))
    assert queue.split()[-1] in ("-", "ms")  # the first value is the configuration's delay
    inference = next(line for line in text.splitlines() if line.startswith("inference"))
    assert inference.split()[-1] == "-"


def test_the_winner_says_how_close_its_precision_is() -> None:
    output = OutputAccuracyRecord(
        output="y",
        batch_size=8,
        passed=True,
        sqnr_db=39.5,
        exact=False,
        cosine=0.9999,
        max_relative_error=0.03,
        top1_agreement=None,
        top1_lower_bound=None,
        non_finite=0,
    )
    record = AccuracyRecord(
        precision="int8",
        runner="onnxruntime-cpu",
        level="strict",
        passed=True,
        reason="",
        first_node=None,
        inputs=64,
        input_source="given",
        note="",
        outputs=(output,),
    )
    int8 = replace(engine(), precision="int8")
    winner = trial(config=config(engine=int8))
    text = " ".join(shown(recommendation(winner=winner, accuracy=(record,)), width=120).split())
    assert "int8 to fp32 on 64 given inputs: SQNR 40 dB" in text
    assert "int8 to fp32" not in shown(recommendation(accuracy=(record,)))


def test_every_limit_has_its_row() -> None:
    slo = Slo(
        limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=10.0)), max_memory_bytes=2**33
    )
    median = CertifiedLatencyRecord(
        quantile=0.5, latency_ms=7.5, latency_low_ms=7.0, latency_high_ms=8.0, violations=4
    )
    winner = trial(certificate=certificate(1000.0, median), memory_bytes=2**30)
    text = shown(recommendation(slo=slo, winner=winner), width=120)
    assert "within p99 50 ms and p50 10 ms" in text
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "7.50 ms (7.00 to 8.00 at 95 %)" in rows["p50 at that rate"]
    assert "1 GiB" in rows["server's memory (limit 8 GiB)"]


def test_the_frontier_is_shown_where_it_was_kept() -> None:
    frontier = frontier_of([trial()])
    text = shown(recommendation(frontier=frontier), width=120)
    assert "1,000/s" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == ["1,000/s"])
    assert row.split()[1:4] == ["30.0", "ms", "3"]
    assert row.rstrip().endswith("certified")
    assert "frontier" not in shown(recommendation())


QUIET, BUSY = contention(1.0, of_s=60.0), contention(34.0, of_s=120.0)
BUSIER, BUSIEST = contention(50.0, of_s=120.0), contention(70.0, of_s=120.0)


@pytest.mark.parametrize(
    ("winner", "baseline", "run", "shown_one"),
    [
        (BUSY, BUSIER, BUSIEST, BUSY),
        (QUIET, BUSIER, BUSIEST, BUSIER),
        (QUIET, QUIET, BUSIEST, BUSIEST),
        (QUIET, QUIET, QUIET, None),
        (None, None, None, None),
    ],
)
def test_contention_is_shown_once_and_first_that_of_the_winner(
    winner: CpuContention | None,
    baseline: CpuContention | None,
    run: CpuContention | None,
    shown_one: CpuContention | None,
) -> None:
    found = recommendation(
        winner=trial(certificate=certificate(contention=winner)),
        baseline=trial(0, certificate=certificate(500.0, contention=baseline)),
        contention=run,
    )
    text = " ".join(shown(found).split())
    count = {one: text.count(one.text[1:]) for one in (QUIET, BUSY, BUSIER, BUSIEST)}  # without the capital
    assert [one for one, times in count.items() if times] == ([] if shown_one is None else [shown_one])
    assert sum(count.values()) == (shown_one is not None)


def test_a_trial_and_a_certificate_that_were_disturbed_say_so_as_they_end() -> None:
    busy = trial(certificate=certificate(contention=BUSY), contention=BUSY)
    assert BUSY.text in trial_line(busy, is_best=True)
    assert BUSY.text in certified_line(
        events.ConfirmationEnded(trial=busy, rate_per_s=1.0, certificate=busy.certificate)
    )
    assert QUIET.text not in trial_line(busy.changed(contention=QUIET), is_best=True)


@pytest.mark.parametrize(
    ("standalone_per_s", "share"), [(1500.0, " 67 % of the 1,500/s"), (20_000.0, "only 5 % of")]
)
def test_the_rate_is_held_against_what_the_engine_does_without_a_server(
    standalone_per_s: float, share: str
) -> None:
    text = shown(recommendation(standalone_per_s=standalone_per_s))
    assert share in text
    assert ("of a request's" in text) == ("only" in share)
    assert "standalone" not in shown(recommendation())


@pytest.mark.parametrize(
    ("let_through_per_s", "said", "not_said"),
    [
        (5060.0, "5,060/s through", "of a request's"),
        (15_000.0, "of a request's", "15,000/s through"),
        (None, "of a request's", "/s through"),
    ],
)
def test_a_rate_far_below_the_engines_own_says_what_front_end_and_client_let_through(
    let_through_per_s: float | None, said: str, not_said: str
) -> None:
    times = ServiceTimesRecord(
        batch_sizes=(1,),
        one_busy_ms=(1.0,),
        all_busy_ms=(1.0,),
        overhead_ms=0.1,
        let_through_per_s=let_through_per_s,
    )
    prediction = PredictionRecord(
        rate_per_s=9e3, sd=0.1, simulated_per_s=9e3, rank=1, untried=9, to_beat_per_s=None, service_times=times
    )
    winner = trial().model_copy(update={"why": WhyRecord(cause="predicted", prediction=prediction)})
    front_ends = (
        FrontEndRecord(protocol="http", shared_memory="none", requests_per_s=5100.0),
        FrontEndRecord(protocol="grpc", shared_memory="system", requests_per_s=22_594.0),
    )
    known = {"winner": winner, "standalone_per_s": 20_000.0}
    text = " ".join(shown(recommendation(**known)).replace("│", "").split())
    assert said in text
    assert not_said not in text
    assert "--protocol" not in text
    text = " ".join(shown(recommendation(**known, front_ends=front_ends)).replace("│", "").split())
    first, second = (
        text.index(f"--protocol {name}") for name in ("grpc with --shared-memory system 22,594/s", "http 5,100/s")
    )
    assert first < second


def test_the_slowest_layers_and_what_follows_from_them() -> None:
    layer = LayerRecord(name="[conv1]", operator="Conv", mean_ms=3.0, share=0.6, bound="bytes")
    profile = EngineProfileRecord(
        engine="onnxruntime-fp32",
        batch_size=3,
        execution_ms=5.0,
        layers=(layer,) * 10,
        layer_count=31,
        bound_shares={"bytes": 1.0},
        operator_shares={"Conv": 1.0},
        ceilings=CeilingsRecord(flops_per_s=None, bytes_per_s=None),
        profiler="onnxruntime",
    )
    text = shown(recommendation(time_use=TimeUseRecord(summary="Smaller weights help.", winner=profile)))
    assert "slowest of 31 layers, batch 3" in text
    assert text.count("[conv1]") == 5
    assert "memory traffic" in text
    assert "Time   Smaller weights help." in text
    assert max(len(line) for line in text.splitlines()) <= 80
    without = shown(recommendation(time_use=TimeUseRecord(summary="Waiting.", winner=None)))
    assert "Waiting." in without
    assert "slowest of" not in without
