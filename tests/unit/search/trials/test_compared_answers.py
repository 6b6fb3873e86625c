"""Answers under load against those to the same requests alone: what counts as mixed rows, and what is not seen."""

import itertools
from collections.abc import Callable
from threading import Condition, get_ident
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.errors import TargetRefused
from search.records.trial import AnswersRecord
from search.trials.compared_answers import MAX_REQUESTS, ComparedAnswers, at_levels

ENOUGH = 40
Answer = Callable[[int, bool], Any]
"""Returns the output to a request by its number, and whether it comes under load."""


class Server:
    """Answers requests that hold their number; its load, of other threads, ends after 40 answers or refusals."""

    def __init__(self, answer: Answer, seconds: float = 0.0) -> None:
        self.answer, self.seconds, self.alone_in = answer, seconds, get_ident()
        self.now_s, self.users, self.alone, self.under_load = 0.0, 0, 0, 0
        self.changed = Condition()

    def ask(self, request: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        with self.changed:
            busy = get_ident() != self.alone_in
            self.now_s += 0.0 if busy else self.seconds
            self.alone += not busy
            self.under_load += busy
            self.changed.notify_all()
        return {"y": np.asarray(self.answer(int(request["x"][0]), busy))}

    def load(self, users: int, seconds: float) -> float:
        with self.changed:
            self.users = users
            assert self.changed.wait_for(lambda: self.under_load >= ENOUGH, timeout=60)
        return 7.5


def compared(server: Server, *, count: int = 16, most_s: float = 60.0) -> AnswersRecord:
    requests = [{"x": np.array([number])} for number in range(count)]
    return ComparedAnswers(requests, server.ask, clock=lambda: server.now_s).under(server.load, most_s)


def floats(number: int) -> NDArray[Any]:
    return np.array([[number, -3.0, np.nan, np.inf]], np.float32)


def refused(number: int, busy: bool) -> NDArray[Any]:
    if busy:
        raise TargetRefused("no.\nSee its log.")
    return floats(number)


def classes(number: int, share: float) -> NDArray[Any]:
    """A map of 100 classes, of which a share is another."""
    return np.where(np.arange(100) < 100 * share, 99, number)


RIGHT: dict[str, Answer] = {
    "equal": lambda number, busy: floats(number),
    "half precision": lambda number, busy: floats(number) * (1.05 if busy else 1.0),
    "an argmax with a near tie in one request": lambda number, busy: [number if number != 3 or not busy else 2],
    "a map of classes with near ties": lambda number, busy: classes(number, 0.05 * busy),
    "an embedding of int8, one step off": lambda n, busy: np.array([n, -15, 14 - busy], np.int8),
    "ids of the best, with near ties": lambda n, busy: [[n, 3000, 4000, 5000][:: -1 if busy else 1]],
    "texts": lambda number, busy: np.array([[b"a", str(number)]], np.object_),
    "the order of one request's detections": lambda n, busy: [[n, -9.0][:: -1 if busy and n == 3 else 1]],
}
MIXED: dict[str, Answer] = {
    "the next row": lambda number, busy: floats(number + 3 * busy),
    "NaN": lambda number, busy: floats(number) * (np.nan if busy else 1.0),
    "infinite": lambda number, busy: np.array([number, np.inf if busy else 1.0], np.float32),
    "finite": lambda number, busy: np.array([number, 1.0 if busy else np.inf], np.float32),
    "another class": lambda number, busy: [number + busy],
    "another flag": lambda number, busy: [bool(number % 2) != busy],
    "another map": lambda number, busy: classes(number, 0.5 * busy),
    "other rows of int8": lambda n, busy: np.array([n + 3 * busy, -15], np.int8),
    "other ids": lambda n, busy: [[n, n + 1000, n + 2000 + busy]],
    "another text": lambda number, busy: np.array([b"b" if busy else b"a", str(number)], np.object_),
    "fewer rows": lambda number, busy: floats(number)[: 0 if busy else 1],
    "a third of the requests": lambda number, busy: floats(number + 9 * (busy and number % 3 == 0)),
}


@pytest.mark.parametrize("answer", RIGHT)
def test_what_precision_and_near_ties_do_is_tolerated(answer: str) -> None:
    found = compared(Server(RIGHT[answer]))
    assert (found.mixed, found.unseen) == (False, "")
    assert found.compared >= ENOUGH
    assert found.differing < found.compared / 4
    assert found.mean_batch_size == 7.5


@pytest.mark.parametrize("answer", MIXED)
def test_other_rows_are_seen_in_outputs_of_any_type(answer: str) -> None:
    found = compared(Server(MIXED[answer]))
    assert found.mixed
    assert 0 < found.differing <= found.compared


def test_a_model_whose_answers_differ_alone_as_well_does_not_mix_rows() -> None:
    random = np.random.default_rng(1)
    found = compared(Server(lambda number, busy: random.standard_normal(4)))
    assert not found.mixed
    assert found.differing
    assert found.unseen


def test_a_model_whose_answers_vary_now_and_then_does_not_mix_rows() -> None:
    """Every fifth answer is another, whether the server is busy or not."""
    calls = itertools.count()
    found = compared(Server(lambda number, busy: floats(number + 9 * (next(calls) % 5 == 4))))
    assert found.differing
    assert not found.mixed


def test_answers_that_differ_are_not_judged_if_the_requests_cannot_be_sent_again() -> None:
    asked: dict[int, int] = {}

    def once(number: int, busy: bool) -> Any:
        asked[number] = asked.get(number, 0) + (not busy)
        return floats(number + 3) if busy else refused(number, asked[number] > 1)

    found = compared(Server(once))
    assert found.differing
    assert not found.mixed
    assert "no" in found.unseen


def test_without_batches_mixed_rows_would_not_show() -> None:
    server = Server(RIGHT["equal"])
    requests = [{"x": np.array([number])} for number in range(16)]
    found = ComparedAnswers(requests, server.ask, rows_per_request=7).under(server.load, 60.0)
    assert found.unseen


def test_refusals_are_no_answers_and_show_nothing() -> None:
    found = compared(Server(refused))
    assert (found.compared, found.mixed) == (0, False)
    assert found.failed >= ENOUGH
    assert "no" in found.unseen


def test_requests_that_are_all_refused_alone_cannot_be_compared() -> None:
    server = Server(lambda number, busy: refused(number, True))
    found = compared(server)
    assert (found.compared, server.under_load, server.users) == (0, 0, 0)
    assert found.unseen


def test_with_answers_that_are_alike_mixed_rows_would_not_show() -> None:
    found = compared(Server(lambda number, busy: [1000.0 + number]))
    assert found.compared >= ENOUGH
    assert not found.mixed
    assert found.unseen


@pytest.mark.parametrize(("count", "most_s"), [(1, 60.0), (16, 3.0)])
def test_without_other_requests_or_time_nothing_is_sent_under_load(count: int, most_s: float) -> None:
    server = Server(RIGHT["equal"])
    found = compared(server, count=count, most_s=most_s)
    assert (found.compared, server.under_load, server.users) == (0, 0, 0)
    assert found.unseen
    assert server.alone <= 1


@pytest.mark.parametrize(("seconds", "most_s", "in_flight"), [(0.01, 60.0, 32), (1.0, 60.0, 8), (1.0, 9.0, 0)])
def test_a_slow_model_gets_fewer_requests_or_none_if_they_would_take_too_long(
    seconds: float, most_s: float, in_flight: int
) -> None:
    server = Server(RIGHT["equal"], seconds)
    found = compared(server, most_s=most_s)
    assert server.users + min(8, in_flight // 2) == in_flight
    assert bool(found.unseen) == (in_flight == 0)
    assert server.now_s <= 4.0


def test_of_many_requests_a_few_are_compared_from_all_over_them() -> None:
    seen = set[int]()

    def noted(number: int, busy: bool) -> NDArray[Any]:
        seen.add(number)
        return floats(number)

    compared(Server(noted), count=1000)
    assert len(seen) <= MAX_REQUESTS
    assert max(seen) > 900


def test_random_requests_differ_in_level_and_keep_their_types() -> None:
    random = np.random.default_rng(1)
    given = [{"x": random.standard_normal(1000).astype(np.float16), "ids": np.array([1, 0])} for _ in range(16)]
    made = at_levels(given)
    means = [float(request["x"].mean()) for request in made]
    assert means[-1] - means[0] > 0.3
    assert max(np.abs(request["x"]).max() for request in made) <= 2 * np.abs(given[0]["x"]).max()
    assert all(request["x"].dtype == np.float16 for request in made)
    assert all(request["ids"].tolist() == [1, 0] for request in made)
