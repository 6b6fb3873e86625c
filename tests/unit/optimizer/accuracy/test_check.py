"""Tests of the accuracy check with runners whose error is known."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.check import INPUTS, Reference, judge, reference_of
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.model.samples import Samples

STRICT = accuracy_rule("strict")


class Scores:
    """A runner x (batch, 8) -> scores (batch, 8); `disturb` adds the error to a whole batch."""

    name = "by hand"

    def __init__(self, disturb: Callable[[Any], Any] = lambda scores: scores, *, each_s: float = 0.0) -> None:
        self.disturb = disturb
        self.each_s = each_s
        self.runs: list[list[Any]] = []

    def run(self, feeds: Any) -> list[Any]:
        self.runs.append([len(feed["x"]) for feed in feeds])
        return [{"scores": self.disturb(3 * feed["x"])} for feed in feeds]

    def run_within(self, feeds: Any, *, least: int, budget_s: float) -> tuple[list[Any], float]:
        affordable = len(feeds) if self.each_s == 0 else max(least, int(budget_s / self.each_s))
        done = self.run(feeds[:affordable])
        return done, self.each_s * len(done)


class Labels(Scores):
    """A runner x (batch, 8) -> scores (batch,): a name for the sign of the first number."""

    def __init__(self, names: Any) -> None:
        super().__init__(lambda scores: names[(scores[:, 0] > 0).astype(int)])


def noise(size_db: int) -> Callable[[Any], Any]:
    def disturb(scores: Any) -> Any:
        random = np.random.default_rng(int(abs(scores[0, 0]) * 1e6))
        return scores + random.standard_normal(scores.shape) * 3 * 10 ** (-size_db / 20)

    return disturb


def samples(count: int = INPUTS, *, batched: bool = True) -> Samples:
    arrays = {"x": np.random.default_rng(0).standard_normal((count, 8))}
    return Samples(arrays=arrays, source="synthetic", batched=batched)


def reference(count: int = INPUTS) -> Reference:
    return reference_of(Scores().run_within, samples(count), classifying=["scores"])


@pytest.mark.parametrize("wrong", [8, 24, 64])
@pytest.mark.parametrize("inputs", [3, 20, INPUTS])
def test_a_wrong_batch_size_is_found_with_few_inputs_too(inputs: int, wrong: int) -> None:
    """With fewer inputs than a batch has rows, that size was never executed."""
    runner = Scores(lambda scores: -scores if len(scores) == wrong else scores)
    record = judge(runner, "fp16", reference(inputs), STRICT, further_sizes=(1, 8, 24, 64))
    assert {output.batch_size for output in record.outputs if not output.passed} == {wrong}
    assert record.inputs == inputs
    assert judge(Scores(), "fp16", reference(inputs), STRICT, further_sizes=(1, 8, 24, 64)).passed


@pytest.mark.parametrize("wrong", [False, True])
def test_labels_that_are_strings_are_compared_by_equality(wrong: bool) -> None:
    names = np.array(["low", "high"])
    known = reference_of(Labels(names).run_within, samples(), classifying=[])
    record = judge(Labels(names[::-1] if wrong else names), "fp16", known, STRICT)
    assert record.passed is not wrong
    assert all(output.exact is not wrong for output in record.outputs)


@pytest.mark.parametrize(("offered", "passes"), [(INPUTS, True), (100, False)])
def test_inputs_for_which_there_was_no_time_do_not_make_the_threshold_stricter(offered: int, passes: bool) -> None:
    """Of 256 inputs one may have another top class, of 100 none."""
    calls: list[int] = []

    def first_wrong(scores: Any) -> Any:
        calls.append(len(scores))
        return -scores if len(calls) == 1 else scores

    slow = Scores(each_s=0.25)
    few = reference_of(slow.run_within, samples(offered), classifying=["scores"], budget_s=25.0)
    assert few.samples.count == 100
    rule = accuracy_rule("strict,cosine=0,sqnr_db=0")
    assert judge(Scores(first_wrong), "fp16", few, rule).passed is passes


def test_equal_results_pass_every_precision() -> None:
    record = judge(Scores(), "fp32", reference(), STRICT)
    assert record.passed
    assert (record.inputs, record.input_source, record.note) == (INPUTS, "synthetic", "")
    assert all(output.exact and output.sqnr_db is None for output in record.outputs)


def test_both_batch_sizes_are_run_and_the_model_is_loaded_once() -> None:
    runner = Scores()
    record = judge(runner, "fp16", reference(20), STRICT)
    assert [output.batch_size for output in record.outputs] == [1, 8]
    assert runner.runs == [[1] * 20 + [8, 8, 4]]


@pytest.mark.parametrize(("size_db", "passes"), [(45, True), (35, False)])
def test_noise_about_the_threshold(size_db: int, passes: bool) -> None:
    rule = accuracy_rule("strict,top1=0,cosine=0")
    record = judge(Scores(noise(size_db)), "fp16", reference(), rule)
    assert record.passed is passes
    assert record.outputs[0].sqnr_db == pytest.approx(size_db, abs=0.5)
    assert record.reason.startswith("" if passes else "output scores at batch 1: SQNR 35.")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_never_passes(bad: float) -> None:
    def one_bad(scores: Any) -> Any:
        scores[0, 0] = bad
        return scores

    record = judge(Scores(one_bad), "fp16", reference(), accuracy_rule("off"))
    assert not record.passed
    assert "NaN" in record.reason


def test_a_figure_that_cannot_be_computed_does_not_pass() -> None:
    silent = reference_of(Scores(lambda scores: 0 * scores).run_within, samples(20), classifying=[])
    assert not judge(Scores(lambda scores: 0 * scores + 1), "fp16", silent, STRICT).passed


def test_missing_outputs_and_other_shapes_do_not_pass() -> None:
    record = judge(Scores(lambda scores: scores[:, :4]), "fp16", reference(20), accuracy_rule("off"))
    assert not record.passed
    assert record.outputs[0].non_finite == 20 * 8


def test_a_slow_model_is_judged_on_fewer_inputs() -> None:
    seen = reference_of(Scores(each_s=2.0).run_within, samples(), classifying=[], budget_s=60.0)
    assert seen.samples.count == len(seen.rows) == 30
    assert "30 instead of 256 inputs: one takes 2 s" in seen.note
    slower = reference_of(Scores(each_s=20.0).run_within, samples(), classifying=[], budget_s=60.0)
    assert slower.samples.count == 16
    few = reference_of(Scores().run_within, samples(10), classifying=[])
    assert "10 instead of 256 inputs: no more were given" in few.note


def test_a_model_without_a_batch_is_run_one_by_one() -> None:
    whole = reference_of(Scores().run_within, samples(20, batched=False).first(20), classifying=[])
    assert whole.samples.count == 20
