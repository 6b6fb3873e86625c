"""The space of two cores, and the true best of it."""

from pathlib import Path

import pytest
from spaces import two_core_space
from virtual_search import true_capacity

from search.space import SearchSpace


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    return two_core_space(tmp_path)


@pytest.fixture(scope="module")
def true_best(tmp_path_factory: pytest.TempPathFactory) -> float:
    space = two_core_space(tmp_path_factory.mktemp("space"))
    return max(true_capacity(space.config(knobs)) for knobs in space.points() if knobs["max_queue_delay_us"] == 0)
