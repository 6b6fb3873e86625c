"""Every exit code of `optimize` is reached, and `recommendation.json` says the same, with a reason."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from recommendations import certificate, recommendation, run_dir, trial
from simulated_bench import SimulatedBench
from simulated_optimize import exit_code_of, interrupted_after, on_simulated

from deploy.plan import BundleOptions
from loadgen.errors import BadInput, EnvironmentFailed, UserError
from loadgen.exit_codes import CODES
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.spec.limits import LatencyLimit
from optimizer.call_options import CallOptions
from optimizer.cli import run_command
from optimizer.command import session
from optimizer.command.fleet import plan_fleet
from optimizer.config import OptimizeConfig
from optimizer.reports.report import markdown_report
from optimizer.run.bundle import bundle_run
from optimizer.run.recommendation import keep_failure, write_recommendation
from optimizer.run.run_directory import locked
from search.find_best import NothingFound
from search.records.confirmations import ConfirmationRecord, read_confirmations
from search.records.recommendation import AnyRecommendation, NoRecommendationRecord, RecommendationRecord
from search.records.run_files import read_outcome, read_recommendation
from search.records.slo import WorkloadRecord

CALL = ("baseline", "resume", "accept_provisional", "quiet", "verbose", "events")

pytestmark = pytest.mark.slow


def config_of(folder: Path) -> OptimizeConfig:
    return OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50.0),),
        model=small_cnn(folder / "cnn.onnx"),
        output=folder / "run",
        server="docker",
        precisions=("fp32",),
        price_per_hour_usd=2.0,
        time_budget_s=200.0,
        cache_dir=folder / "cache",
        seed=3,
    )


def ended(
    folder: Path,
    bench: SimulatedBench | None = None,
    *,
    search: Any = None,
    stalls_ms: float = 0.0,
    **changes: Any,
) -> tuple[int, AnyRecommendation]:
    """Return the exit code of a run on a simulated server, and what is in its `recommendation.json`."""
    call = {name: changes.pop(name) for name in CALL if name in changes}
    config = replace(config_of(folder), **changes)
    searched = search or on_simulated(bench or SimulatedBench(), stalls_ms)
    code = exit_code_of(config, CallOptions(json=True, **call), searched)
    outcome = read_outcome(config.output)
    assert outcome.exit_code == code
    return code, outcome


def raising(error: BaseException) -> Callable[..., RecommendationRecord]:
    def search(*_: object, **__: object) -> RecommendationRecord:
        raise error

    return search


def test_0_a_rate_that_is_certified_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, outcome = ended(tmp_path, search=lambda *_, **__: recommendation())
    assert (code, outcome.status) == (0, "certified")
    assert json.loads(capsys.readouterr().out) == json.loads(outcome.model_dump_json())


def test_quiet_and_verbose_decide_what_is_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {}
    for name in ("quiet", "plain", "verbose"):
        (tmp_path / name).mkdir()
        changes: dict[str, Any] = {} if name == "plain" else {name: True}
        assert ended(tmp_path / name, search=provisional, **changes)[0] == 96
        seen[name] = capsys.readouterr().err
    assert seen["quiet"] == ""
    assert " INFO " in seen["verbose"]
    assert " INFO " not in seen["plain"]


def test_96_a_budget_that_is_too_short(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, time_budget_s=6.0)
    assert (code, outcome.status) == (96, "inconclusive")
    assert "--time-budget" in outcome.advice


def provisional(*_: object, **__: object) -> RecommendationRecord:
    winner = trial(certificate=certificate(runs=1, caveat="there was no time to confirm it again"))
    return recommendation(winner=winner, status="provisional", status_reason="Once.")


def test_96_a_certificate_that_was_not_confirmed_again_and_0_if_that_is_accepted(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, search=provisional)
    assert (code, outcome.status) == (96, "provisional")
    (accepted := tmp_path / "accepted").mkdir()
    code, outcome = ended(accepted, search=provisional, accept_provisional=True)
    assert (code, outcome.status) == (0, "provisional")


def test_98_a_client_that_is_late_under_every_configuration(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, SimulatedBench(late=lambda config: True))
    assert (code, outcome.status) == (98, "untrustworthy")
    assert isinstance(outcome, NoRecommendationRecord)


def test_98_a_machine_that_stalls_before_any_load(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, stalls_ms=400.0)
    assert (code, outcome.status) == (98, "untrustworthy")
    assert "--despite-noise" in outcome.advice


def test_99_lone_requests_over_the_limit(tmp_path: Path) -> None:
    bench = SimulatedBench()
    code, outcome = ended(tmp_path, bench, limits=(LatencyLimit(limit_ms=3.0),))
    assert (code, outcome.status) == (99, "violated")
    assert "idle server" in outcome.status_reason
    assert outcome.contention == bench.spent.contention != CpuContention()
    assert "--p99" in outcome.advice
    assert (tmp_path / "run" / "report.html").is_file()


def test_2_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    (model := tmp_path / "m.onnx").write_bytes(b"no model")
    code, outcome = ended(tmp_path, model=model)
    assert (code, outcome.status) == (2, "bad_input")
    assert str(model) in outcome.status_reason


def test_3_a_server_that_dies_and_one_that_loads_nothing(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, SimulatedBench(faults=lambda config: "no such backend"))
    assert (code, outcome.status) == (3, "environment_failed")
    assert "No configuration could be served" in outcome.status_reason
    assert "no such backend" in outcome.status_reason
    (calls := tmp_path / "calls").mkdir()
    _, outcome = ended(calls, SimulatedBench(faults=lambda config: "http 500, Model 'words' is not ready."))
    assert "--calls words" in outcome.advice
    (died := tmp_path / "died").mkdir()
    code, outcome = ended(died, search=raising(EnvironmentFailed("Triton ended.", "See server.log.")))
    assert (code, outcome.status_reason, outcome.advice) == (3, "Triton ended.", "See server.log.")


def test_1_a_bug(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, search=raising(ZeroDivisionError("by zero")))
    assert (code, outcome.status) == (1, "bug")
    assert "by zero" in outcome.status_reason


@pytest.mark.parametrize("loadings", [0, 3])
def test_130_an_interrupt_whatever_was_found_until_then(tmp_path: Path, loadings: int) -> None:
    code, outcome = ended(tmp_path, interrupted_after(loadings))
    assert (code, outcome.status) == (130, "interrupted")
    assert outcome.status_reason.startswith("Interrupted")
    assert "--resume" in outcome.advice


def test_130_an_interrupt_before_the_search(tmp_path: Path) -> None:
    code, outcome = ended(tmp_path, search=raising(KeyboardInterrupt()))
    assert (code, outcome.status, outcome.status_reason) == (130, "interrupted", "Stopped.")


def attempt(answer: str, rate_per_s: float = 1000.0, **changes: Any) -> ConfirmationRecord:
    known: dict[str, Any] = {
        "trial": 3, "again": False, "rate_per_s": rate_per_s, "met": answer == "met", "answer": answer,
        "reason": "", "overloaded": False, "seconds": 9.0, "requests": 900, "violations": 47, "latency_ms": 51.6,
        "problems": (),
    }  # fmt: skip
    return ConfirmationRecord(**{**known, **changes})


NOTHING = NothingFound("No rate could be certified.", "Look again.", "untrustworthy")


@pytest.mark.parametrize(
    ("failure", "since", "status", "stands"),
    [
        (EnvironmentFailed("The disk is full.", "Free some space."), (), "environment_failed", True),
        (NOTHING, (), "provisional", True),
        (NOTHING, (attempt("inconclusive"),), "provisional", True),
        (NOTHING, (attempt("violated", 1100.0),), "provisional", True),
        (NOTHING, (attempt("violated", trial=4),), "provisional", True),
        (NOTHING, (attempt("violated", problems=("the client was late",)),), "provisional", True),
        (NOTHING, (attempt("violated", 900.0), attempt("met")), "provisional", True),
        (NOTHING, (attempt("violated", 900.0),), "untrustworthy", False),
        (EnvironmentFailed("The disk is full.", ""), (attempt("violated"),), "environment_failed", False),
        (NothingFound("No configuration meets it.", "", "violated"), (), "violated", False),
    ],
)
def test_what_was_recommended_before_stands_until_a_later_run_violates_its_rate(
    failure: UserError, since: tuple[ConfirmationRecord, ...], status: str, stands: bool, tmp_path: Path
) -> None:
    winner = trial(certificate=certificate(runs=1, servers=1, caveat="there was no time"))
    run_dir(tmp_path, recommendation(winner=winner, status="interrupted"), winner)
    lines = [one.model_dump_json() + "\n" for one in (attempt("met"), *since)]
    (tmp_path / "confirmations.jsonl").write_text("".join(lines))
    for name in ("model_repository", "bundle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    keep_failure(tmp_path, failure)
    found = read_outcome(tmp_path)
    assert (found.status, found.exit_code) == (status, CODES[found.status])
    assert [(tmp_path / name).exists() for name in ("model_repository", "bundle")] == [stands] * 2
    if isinstance(found, RecommendationRecord):
        assert stands
        assert (found.winner, found.provisional) == (winner.record, True)
        return
    assert not stands
    assert (tmp_path / "bundle.withdrawn" / "file").is_file()
    assert (found.withdrawn.trial, found.withdrawn.rate_per_s) == (3, 1000.0)
    assert found.withdrawn.reason in found.status_reason
    assert len(read_confirmations(tmp_path)) == 1 + len(since), "that it was met once stays on record"
    for refused in (
        lambda: plan_fleet([tmp_path], rate_per_s=50.0),
        lambda: bundle_run(tmp_path, target="all", options=BundleOptions()),
        lambda: read_recommendation(tmp_path),
    ):
        with pytest.raises(BadInput, match="withdrawn"):
            refused()


def test_a_resumed_run_that_finds_nothing_ends_with_what_was_met_before(tmp_path: Path) -> None:
    assert ended(tmp_path, interrupted_after(11))[0] == 130
    before = read_recommendation(tmp_path / "run")
    code, outcome = ended(
        tmp_path, SimulatedBench(late=lambda config: True), resume=tmp_path / "run", time_budget_s=30.0
    )
    assert (code, outcome.status) == (96, "provisional")
    assert isinstance(outcome, RecommendationRecord)
    assert outcome.winner == before.winner
    assert markdown_report(tmp_path / "run").splitlines()[0].count("Provisional: ") == 1


def test_a_directory_that_another_run_uses_is_not_written_to(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config.output.mkdir()
    with locked(config.output):
        assert run_command(["--resume", str(config.output)]) == 2
    assert not (config.output / "recommendation.json").exists()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--json"], "bad_input"),
        (["--json", "--no-such-option"], "bad_input"),
        (["--config", "json.yaml"], "bad_input"),
        (["--model", "/nowhere/m.onnx", "--p99", "50ms", "--json"], "bad_input"),
    ],
)
def test_json_is_printed_for_input_that_cannot_be_used(
    arguments: list[str],
    status: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("json.yaml").write_text("json: true\n")
    code = run_command(arguments)
    printed = NoRecommendationRecord.model_validate_json(capsys.readouterr().out)
    assert (printed.exit_code, printed.status) == (code, status)
    assert printed.status_reason


def test_a_subcommand_that_fails_prints_no_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fleet", "/nowhere", "--json"], ["explain", "--json"]):
        assert run_command(words) == 2
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "other",
    [
        {"limits": (LatencyLimit(limit_ms=40.0),)},
        {"arrivals": "gamma:cv=2"},
        {"client_batch": 4},
        {"protocol": "grpc"},
        {"trace": Path("trace.txt")},
    ],
    ids=str,
)
def test_2_a_baseline_of_another_limit_or_traffic_is_refused_before_anything_is_written(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    (before := tmp_path / "before").mkdir()
    write_recommendation(before, recommendation())
    given = replace(config_of(tmp_path), **other)
    if given.trace is not None:
        given = replace(given, trace=tmp_path / given.trace)
        given.trace.write_text("0.1\n0.2\n0.4\n")
    never = raising(AssertionError())
    with pytest.raises(BadInput, match=str(before)):
        session.run(given, [], CallOptions(baseline=before), search=never)
    assert not given.output.exists()


def test_a_run_without_a_protocol_takes_that_of_its_baseline(tmp_path: Path) -> None:
    (before := tmp_path / "before").mkdir()
    write_recommendation(before, recommendation(workload=WorkloadRecord(protocol="grpc")))
    seen: list[str] = []

    def search(config: OptimizeConfig, **_: object) -> RecommendationRecord:
        seen.append(config.protocol)
        return recommendation(workload=WorkloadRecord(protocol="grpc"))

    assert ended(tmp_path, search=search, baseline=before)[0] == 0
    assert seen == ["grpc"]


def test_97_a_run_that_is_worse_than_its_baseline_which_counts_if_a_provisional_certificate_is_accepted(
    tmp_path: Path,
) -> None:
    (before := tmp_path / "before").mkdir()
    faster = trial(rate_low_per_s=1.9e4, rate_at_limit_per_s=2e4, rate_high_per_s=2.1e4)
    write_recommendation(before, recommendation(winner=faster))
    (accepted := tmp_path / "accepted").mkdir()
    assert ended(tmp_path, search=bounded, baseline=before)[0] == 96
    code, outcome = ended(accepted, search=bounded, baseline=before, accept_provisional=True)
    assert (code, outcome.status) == (97, "worse")
    assert "capacity" in outcome.status_reason
    assert read_recommendation(accepted / "run").winner.certificate is not None


def bounded(*arguments: object, **options: object) -> RecommendationRecord:
    found = provisional(*arguments, **options)
    bounds = {"rate_low_per_s": 1040.0, "rate_high_per_s": 1060.0}
    return found.model_copy(update={"winner": found.winner.model_copy(update=bounds)})
