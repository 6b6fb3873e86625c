"""Fuzzing takes as long as `TRITUNE_FUZZ_S` says, so pytest's own limit per test moves with it."""

from pathlib import Path

import pytest
from fuzzing import SECONDS, SLACK_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS + SLACK_S))
