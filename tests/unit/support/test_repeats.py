"""A failed measurement is repeated with a measured reason, once; every repeat and every unexpected skip shows."""

import json
from pathlib import Path

import pytest
from disturbance import Disturbance
from repeats import ARTEFACT, MOST_REPEATS, Repeats
from skips import Skips, expected_skips

QUIET = Disturbance(watched_s=10.0, stolen_s=0.0, others_s=0.0)
STOLEN = Disturbance(watched_s=10.0, stolen_s=4.0, others_s=0.0)

FAILS_FIRST = """
import pytest
runs = {}

@pytest.fixture(scope="module")
def shared():
    yield object()

@pytest.mark.alone
@pytest.mark.parametrize("number", range(COUNT))
def test_measures(number, shared):
    runs[number] = runs.get(number, 0) + 1
    assert runs[number] > FAILURES
"""


class Watched:
    """A machine whose disturbance is known; see `disturbance.Watch`."""

    def __init__(self, seen: Disturbance) -> None:
        self.seen = seen

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        """It is known already."""


def outcome(
    pytester: pytest.Pytester, seen: Disturbance, *, count: int = 1, failures: int = 1
) -> tuple[int, pytest.HookRecorder, list[dict[str, str]]]:
    pytester.makepyfile(FAILS_FIRST.replace("COUNT", str(count)).replace("FAILURES", str(failures)))
    pytester.makeini("[pytest]\nmarkers =\n  alone\n  system")
    repeats = Repeats(pytester.path, watch=lambda: Watched(seen))
    run = pytester.inline_run("-p", "no:cacheprovider", plugins=[repeats])
    artefact = pytester.path / ARTEFACT
    lines = artefact.read_text().splitlines() if artefact.exists() else []
    return int(run.ret), run, [json.loads(line) for line in lines]


def test_a_disturbed_failure_is_repeated_and_told(pytester: pytest.Pytester) -> None:
    code, run, told = outcome(pytester, STOLEN)
    run.assertoutcome(passed=1)
    assert code == 0
    assert [line["reason"] for line in told] == ["other guests of the host took processors for 4.0 s of 10.0 s"]
    assert "assert 1 > 1" in told[0]["failure"]


def test_what_runs_beside_others_is_repeated_too_if_it_starts_real_servers(pytester: pytest.Pytester) -> None:
    for mark, passed in (("system", 1), ("gpu", 0)):
        source = FAILS_FIRST.replace("COUNT", "1").replace("FAILURES", "1").replace("mark.alone", f"mark.{mark}")
        pytester.makepyfile(**{f"test_{mark}": source})
        pytester.makeini("[pytest]\nmarkers =\n  alone\n  system\n  gpu")
        repeats = Repeats(pytester.path, watch=lambda: Watched(STOLEN))
        run = pytester.inline_run("-p", "no:cacheprovider", f"test_{mark}.py", plugins=[repeats])
        run.assertoutcome(passed=passed, failed=1 - passed)


def test_a_failure_on_a_quiet_machine_is_a_failure(pytester: pytest.Pytester) -> None:
    code, run, told = outcome(pytester, QUIET)
    run.assertoutcome(failed=1)
    assert (code, told) == (1, [])


def test_nothing_is_repeated_twice(pytester: pytest.Pytester) -> None:
    code, run, told = outcome(pytester, STOLEN, failures=2)
    run.assertoutcome(failed=1)
    assert (code, len(told)) == (1, 1)


def test_more_than_the_allowed_repeats_fail_a_session_in_which_all_passed(pytester: pytest.Pytester) -> None:
    code, run, told = outcome(pytester, STOLEN, count=MOST_REPEATS + 1)
    run.assertoutcome(passed=MOST_REPEATS + 1)
    assert (code, len(told)) == (1, MOST_REPEATS + 1)


@pytest.mark.parametrize(("strict", "code"), [(True, 1), (False, 0)])
def test_a_skip_that_is_not_listed_fails_in_ci(pytester: pytest.Pytester, strict: bool, code: int) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "def test_listed(): pytest.skip('needs a GPU: none here')\n"
        "def test_other(): pytest.skip('no browser')\n"
    )
    skips = Skips(expected_skips("# comment\nneeds a GPU  # no CI has one\n"), strict=strict)
    assert pytester.inline_run("-p", "no:cacheprovider", plugins=[skips]).ret == code
    assert [line.partition(": ")[2] for line in skips.unexpected] == ["Skipped: no browser"]


def test_an_empty_list_expects_nothing(tmp_path: Path) -> None:
    assert expected_skips("\n# a comment\n") == ()
