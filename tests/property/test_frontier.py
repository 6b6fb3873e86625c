from hypothesis import given
from hypothesis import strategies as st
from recommendations import certificate, trial

from search.answer.recommend import frontier_of, unbeaten
from search.records.trial import LoadRunRecord

figures = st.floats(0.1, 1e6)


@given(points=st.lists(st.tuples(figures, figures), max_size=30))
def test_none_beats_the_frontier_and_everything_else_is_beaten(points: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] <= other[1]

    frontier = unbeaten(points)
    assert frontier == sorted(frontier)
    assert set(frontier) == {point for point in points if not any(beats(other, point) for other in points)}


def test_only_runs_that_kept_the_limits_and_can_be_trusted_are_on_it() -> None:
    def run(
        rate_per_s: float, latency_ms: float | None, *, kept: bool = True, trusted: bool = True
    ) -> LoadRunRecord:
        return LoadRunRecord(rate_per_s=rate_per_s, latency_ms=latency_ms, met=kept, trusted=trusted)

    runs = (run(100, 9), run(200, 8), run(900, 60, kept=False), run(150, 1, trusted=False), run(50, None))
    tried = trial(1, load_runs=runs, certificate=None)
    too_large = trial(2, state="infeasible", load_runs=(run(500, 2),), certificate=None)
    certified = trial(3, load_runs=(run(1000, 30),), certificate=certificate(1000.0, first={"latency_ms": 30.0}))
    found = frontier_of([tried, too_large, certified])
    shown = [(point.trial, point.rate_per_s, point.latency_ms, point.certified) for point in found]
    assert shown == [(1, 200, 8, False), (3, 1000, 30, True)]
