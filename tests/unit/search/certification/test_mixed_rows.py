"""A configuration whose batches mix rows is never the answer, nor is one that forms such batches."""

from pathlib import Path

import pytest
from certifications import DEFAULT, SLO, NotedBench, bench, ended, tried
from spaces import two_core_space

from loadgen.exit_codes import CODES
from model_repo.spec import ServingConfig
from search.answer.conclusion import RunEvidence, conclude
from search.answer.recommend import alternatives_to
from search.records.confirmations import read_confirmations
from search.records.run_files import read_trials
from search.space import knobs_of
from search.study.store import TrialStore, open_store
from search.study.trial_runner import TrialRunner
from search.trials.context import Budget


def mixing_from(rows: int) -> NotedBench:
    return bench(mixes=lambda config: config.max_batch_size >= rows)


def reopened(folder: Path) -> TrialStore:
    return open_store(two_core_space(folder), folder, storage="sqlite://", seed=3)


def test_the_next_best_with_smaller_batches_is_the_answer(tmp_path: Path) -> None:
    given = mixing_from(8)
    trials = [tried(tmp_path, batch, number) for number, batch in enumerate((DEFAULT, 8, 16, 12))]
    found = ended(tmp_path, given, *trials)
    assert found.winner.number == 0
    found.assert_confirmed_twice()
    assert not found.winner.answers.mixed
    assert found.winner.answers.compared > 0
    noted = [number for code, number in found.codes if code == "answers_differ"]
    assert noted[:2] == [2, 3], "the best first, and each once"
    assert set(noted[2:]) <= {1}
    assert [given.batches.count(batch) for batch in (16, 12)] == [1, 1]


def test_what_was_certified_unseen_is_no_answer_if_smaller_batches_mix(tmp_path: Path) -> None:
    """The default shows it, which is tried since the winner is slower on its restarted server."""
    trials = [tried(tmp_path, DEFAULT, 0), tried(tmp_path, 16, 1)]
    given = mixing_from(2)
    given.unseen = [trials[1].served]
    given.service_s = lambda config, size: 0.01 * (4.0 if given.restarts and config.max_batch_size == 16 else 1.0)
    assert ended(tmp_path, given, *trials).certified is None
    assert read_confirmations(tmp_path)[0].met
    assert [trial.mixes_rows for trial in reopened(tmp_path).trials] == [True, True]


def test_larger_batches_of_the_same_engine_are_not_tried_any_more(tmp_path: Path) -> None:
    given = mixing_from(8)
    trials = [tried(tmp_path, DEFAULT, 0, 600.0), tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 650.0)]
    found = ended(tmp_path, given, *trials, profiled=False)
    assert found.winner.number == 0
    assert given.batches[0] == 8
    assert 16 not in given.batches
    kept = read_trials(tmp_path)
    assert [trial.state for trial in kept] == ["complete", "failed", "failed"]
    assert all("trial 1" in trial.reason for trial in kept[1:])
    store = reopened(tmp_path)
    assert [trial.mixes_rows for trial in store.trials] == [False, True, True]
    assert alternatives_to(found.winner, store.trials) == []


def test_a_run_resumed_after_that_looks_for_smaller_batches_only(tmp_path: Path) -> None:
    trials = [tried(tmp_path, batch, number) for number, batch in enumerate((16, 8))]
    assert ended(tmp_path, mixing_from(8), *trials).certified is None
    store = reopened(tmp_path)
    runner = TrialRunner(store=store, bench=bench(), slo=SLO, budget=Budget(total_s=60.0), seed=1)
    engine = store.space.engines[0]

    def promising(rows: int) -> bool:
        return runner.promising(knobs_of(ServingConfig(engine=engine, max_batch_size=rows)))

    assert [promising(rows) for rows in (2, 4, 8, 16)] == [True, True, False, False]


@pytest.mark.parametrize("rows", [8, 16])
def test_a_run_without_another_answer_says_why_and_that_the_model_is_wrong(tmp_path: Path, rows: int) -> None:
    found = ended(tmp_path, mixing_from(rows), tried(tmp_path, 16, 0, 1500.0))
    assert found.certified is None
    concluded = conclude(RunEvidence(slo=SLO, trials=reopened(tmp_path).trials))
    assert CODES[concluded.status] == 2
    assert "trial 0" in concluded.reason
    assert "--resume" in concluded.advice


def test_without_time_the_answers_are_not_compared_and_the_record_says_so(tmp_path: Path) -> None:
    """The bench is asked once for each trial, for what is left of the budget."""
    asked = list[tuple[int, float]]()

    class Asked(NotedBench):
        def compare_answers(self, most_s: float) -> object:  # type: ignore[override]
            asked.append((self.loaded[-1].max_batch_size, most_s))
            return super().compare_answers(most_s)

    found = ended(
        tmp_path, Asked(service_s=bench().service_s), tried(tmp_path, DEFAULT, 0), tried(tmp_path, 16, 1)
    )
    assert [batch for batch, _ in asked] == [16]
    assert all(0.0 <= most_s <= found.budget.total_s for _, most_s in asked)
    assert found.winner.answers is not None
