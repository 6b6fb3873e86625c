"""What all tests share: helpers by name, no timing of examples, repeats with a reason only, and listed skips."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# Tests neither use results of this user's earlier runs nor leave some; those of the cache have their own.
os.environ["TRITUNE_CACHE"] = "off"

# A deadline would be an absolute limit on a timing, which a busy machine breaks.
settings.register_profile("tritune", deadline=None)
settings.load_profile("tritune")

# Started in the background of a script, this process ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins that list repeats and skips."""
    from repeats import Repeats
    from skips import LIST, Skips, expected_skips, in_ci

    if not hasattr(config, "workerinput"):  # with xdist, reports come to the process that has no such
        config.pluginmanager.register(Skips(expected_skips(LIST.read_text()), strict=in_ci()))
    config.pluginmanager.register(Repeats(config.rootpath))
