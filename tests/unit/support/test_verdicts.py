"""A failed measurement is disturbed if the machine was seen to disturb it, and failed otherwise."""

import pytest
from disturbance import Disturbance
from verdicts import Verdicts

TESTS = """
import pytest

@pytest.mark.measure
def test_measures():
    assert 1 > 2

@pytest.mark.measure
def test_measures_well():
    pass

def test_decides():
    assert FINE

@pytest.mark.skip(reason="no GPU")
def test_on_a_gpu():
    pass
"""


class Watched:
    """A machine whose disturbance is known; see `disturbance.Watch`."""

    def __init__(self, stolen_s: float) -> None:
        self.seen = Disturbance(watched_s=10.0, stolen_s=stolen_s, others_s=0.0)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        """It is known already."""


@pytest.mark.parametrize(
    ("stolen_s", "fine", "code", "measured"),
    [(4.0, True, 0, "disturbed"), (0.0, True, 1, "failed"), (4.0, False, 1, "disturbed")],
)
def test_each_test_gets_a_line_and_only_failed_ones_fail_the_session(
    stolen_s: float, fine: bool, code: int, measured: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(TESTS.replace("FINE", str(fine)))
    pytester.makeini("[pytest]\nmarkers =\n  measure")
    verdicts = Verdicts(watch=lambda: Watched(stolen_s))
    run = pytester.inline_run("-p", "no:cacheprovider", plugins=[verdicts])
    found = {name.partition("::")[2]: line for name, line in verdicts.lines.items()}
    assert int(run.ret) == code
    assert found["test_measures"].startswith(measured)
    assert ("other guests" in found["test_measures"]) == (measured == "disturbed")
    assert found["test_measures_well"].startswith("passed")
    assert found["test_decides"].startswith("passed" if fine else "failed")
    assert found["test_on_a_gpu"].startswith("skipped")
