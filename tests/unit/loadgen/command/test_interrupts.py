import os
import signal

import pytest

from loadgen.command.app import finish_on_first_interrupt, stop_on_first_interrupt


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class CleanedUp:
    """Gets a signal while Python cleans it up, where nothing that is raised leaves."""

    def __del__(self) -> None:
        interrupt()


def test_the_first_asks_to_finish_and_the_second_stops_now() -> None:
    announced = []
    with finish_on_first_interrupt(lambda: announced.append(1)) as stop:
        assert not stop()
        interrupt()
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert announced == [1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_one_that_python_has_dropped_still_stops() -> None:
    with finish_on_first_interrupt(lambda: None) as stop:
        interrupt()
        CleanedUp()
        with pytest.raises(KeyboardInterrupt):
            stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_has_dropped_stops_as_the_block_ends() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_first_interrupt():
        CleanedUp()


def test_a_terminal_that_closes_asks_to_finish_unless_nohup_has_it_ignored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, asked in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            with finish_on_first_interrupt(lambda: None) as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                assert stop() is asked
            assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_stops_now_where_there_is_nothing_to_finish() -> None:
    with finish_on_first_interrupt(lambda: None) as stop:
        with pytest.raises(KeyboardInterrupt), stop_on_first_interrupt():
            interrupt()
        assert not stop()
        interrupt()
        assert stop()
