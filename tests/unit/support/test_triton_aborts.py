"""A test whose Triton aborted is repeated with new fixtures; one that fails for another reason is not."""

import pytest
from triton_aborts import ABORT, TritonAborts

TESTS = """
import pytest

pytestmark = pytest.mark.system
started = []

@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started.append(tmp_path_factory.mktemp("server") / "server.log")
    yield started[-1]
    assert not started[-1].exists(), "a dead server cannot be stopped"

def test_leaves_its_server_well(server):
    ABORTS

def test_meets_what_the_first_left(server):
    assert not server.exists()

def test_comes_last(server):
    assert not server.exists()
    assert len(started) == STARTED
"""


@pytest.mark.parametrize(
    ("last_words", "while_asked", "started", "failed"),
    [(ABORT, False, 2, 0), (ABORT, True, 2, 0), (b"segfault", True, 1, 3)],
)
def test_a_dead_server_costs_no_other_test(
    last_words: bytes, while_asked: bool, started: int, failed: int, pytester: pytest.Pytester
) -> None:
    dies = f"if len(started) == 1: server.write_bytes({last_words!r}); assert not {while_asked}"
    pytester.makepyfile(TESTS.replace("ABORTS", dies).replace("STARTED", str(started)))
    pytester.makeini("[pytest]\nmarkers =\n  system")
    run = pytester.inline_run("-p", "no:cacheprovider", plugins=[TritonAborts()])
    assert len(run.getfailures()) == failed + (failed > 0)  # its end, too
