"""What all tests share: helpers by name, no timing of examples, and one line per test where that is asked for."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from loadgen.sending.generator import LoadGenerator

sys.path.insert(0, str(Path(__file__).parent / "support"))

# Tests neither use results of this user's earlier runs nor leave some; those of the cache have their own.
os.environ["TRITUNE_CACHE"] = "off"

# A deadline, and a limit on the time that drawing takes, would be broken by a busy machine. The same code gets the
# same examples; `make long` draws others, with the profile `drawn`.
settings.register_profile("drawn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tritune", settings.get_profile("drawn"), derandomize=True, database=None)
settings.load_profile("tritune")

# Started in the background of a script, this process ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make measure` and `make long`."""
    parser.addoption("--verdicts", action="store_true", help="end with one line per test")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins: against aborts of Triton, and the one behind `--verdicts`."""
    from triton_aborts import TritonAborts

    config.pluginmanager.register(TritonAborts())
    if config.getoption("--verdicts"):
        from verdicts import Verdicts

        config.pluginmanager.register(Verdicts())


@pytest.fixture(scope="module")
def generator() -> "Iterator[LoadGenerator]":
    """Start a load process, for all tests of a module."""
    from loadgen.sending.generator import LoadGenerator

    with LoadGenerator() as generator:
        yield generator
