"""When nothing keeps the limit, the message says what is within reach and what binds."""

from recommendations import config, measurement, timings, trial

from optimizer.verdict import explain_infeasible, what_binds
from search.confirmations import ConfirmationRecord
from search.objective import Objective
from search.records import LimitRecord, Slo

SLO = Slo(limit_ms=5.0)


def over_the_limit(**changes: object):
    known: dict[str, object] = {"state": "infeasible", "rate_at_limit_per_s": 0.0, "certificate": None}
    return trial(**{**known, **changes})


def test_names_the_fastest_configuration_and_a_limit_to_ask_for() -> None:
    slow = over_the_limit(number=0, lone_latency_ms=20.0)
    fast = over_the_limit(
        number=1,
        lone_latency_ms=8.0,
        config=config(max_batch_size=1, dynamic_batching=False, instance_count=1, intra_op_threads=2),
        measurement=measurement(latency_p99_ms=10.0),
    )
    error = explain_infeasible([slow, fast], SLO)
    assert error.exit_code == 99
    assert "p99 within 5 ms" in error.what
    assert "1 instance x 2 threads" in error.what
    assert "8 ms" in error.what
    assert "--p99 11ms" in error.fix


def test_an_engine_over_the_limit_binds_alone() -> None:
    assert "engine alone takes 8.3 ms" in what_binds(over_the_limit(), SLO)


def test_queueing_binds_where_requests_mostly_wait() -> None:
    waits = over_the_limit(measurement=measurement(server=timings(queue_ms=9.0, compute_infer_ms=2.0)))
    assert "Queueing binds" in what_binds(waits, SLO)


def test_the_client_binds_where_the_server_is_quick() -> None:
    quick = measurement(server=timings(queue_ms=0.1, compute_infer_ms=0.5), network_and_client_ms=6.0)
    assert "client" in what_binds(over_the_limit(measurement=quick), SLO)


def test_without_timings_nothing_is_claimed() -> None:
    assert "not known" in what_binds(over_the_limit(measurement=measurement(server=None)), SLO)


def test_a_budget_that_was_too_short_is_not_called_infeasible() -> None:
    error = explain_infeasible([trial(certificate=None)], SLO)
    assert "time budget" in error.what
    assert "--time-budget" in error.fix


def confirmation(rate_per_s: float, violations: int, **changes: object) -> ConfirmationRecord:
    known: dict[str, object] = {
        "trial": 0,
        "again": False,
        "rate_per_s": rate_per_s,
        "kept": False,
        "answer": "undecided",
        "reason": "",
        "overloaded": False,
        "seconds": 30.0,
        "requests": 160,
        "violations": violations,
        "latency_ms": 200.0,
        "problems": (),
    }
    return ConfirmationRecord(**{**known, **changes})


def test_a_limit_that_no_rate_was_near_to_keeping_is_not_a_matter_of_time() -> None:
    attempts = [confirmation(90.0, 30), confirmation(20.0, 5), confirmation(40.0, 7)]
    error = explain_infeasible([trial(certificate=None)], SLO, confirmations=attempts)
    assert "even at 20/s, 5 of 160 requests were over it (p99 200 ms)" in error.what
    assert "--p99 220ms" in error.fix


def test_bad_luck_and_late_clients_say_nothing_of_the_limit() -> None:
    attempts = [confirmation(20.0, 3), confirmation(10.0, 9, problems=("the client was late",))]
    error = explain_infeasible([trial(certificate=None)], SLO, confirmations=attempts)
    assert "time budget" in error.what


def test_nothing_measured_at_all() -> None:
    error = explain_infeasible([over_the_limit(state="failed", rate_at_limit_per_s=None)], SLO)
    assert "trials.jsonl" in error.fix


def test_of_several_limits_those_that_are_missed_are_named() -> None:
    slo = Slo(limit_ms=50.0, also=(LimitRecord(quantile=0.5, limit_ms=5.0),))
    best = over_the_limit(lone_latency_ms=8.0, measurement=measurement(latency_p50_ms=8.2, latency_p99_ms=10.0))
    error = explain_infeasible([best], slo)
    assert "p99 within 50 ms and p50 within 5 ms" in error.what
    assert "--p50 9.02ms," in error.fix
    assert "--p99" not in error.fix


def test_where_memory_is_what_is_missing_it_is_said_how_much() -> None:
    slo = Slo(limit_ms=50.0, max_memory_bytes=2**30)
    trials = [over_the_limit(number=n, memory_bytes=(3 - n) * 2**30) for n in (0, 1)]
    error = explain_infeasible(trials, slo)
    assert "in 1 GiB: the smallest over it" in error.what
    assert "took 2 GiB" in error.what
    assert "--max-memory 2.2GiB" in error.fix


def test_a_rate_over_what_one_replica_keeps_is_compared_with_what_it_does() -> None:
    trials = [over_the_limit(number=n, rate_at_limit_per_s=rate) for n, rate in enumerate((400.0, 700.0))]
    error = explain_infeasible(trials, Slo(limit_ms=50.0), Objective(name="latency", rate_per_s=900.0))
    assert "p99 within 50 ms at 900 requests/s on one replica" in error.what
    assert "up to about 700" in error.what
    assert "--rate, such as 630" in error.fix


def test_lower_rates_that_only_lacked_time_show_that_it_is_not_the_inputs() -> None:
    attempts = [confirmation(90.0, 60), confirmation(60.0, 30), confirmation(40.0, 1)]
    error = explain_infeasible([trial(certificate=None)], SLO, confirmations=attempts)
    assert "60 requests/s broke it, and the time budget was too short" in error.what
    assert "--time-budget" in error.fix
