"""`tritune.optimize` on a simulated server: the run of the command, without its terminal and its signals."""

import asyncio
import logging
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn

import tritune
from search.trials import events


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "model": small_cnn(tmp_path / "cnn.onnx"),
        "p99": "50ms",
        "output": tmp_path / "run",
        "server": "docker",
        "precisions": ["fp32"],
        "price_per_hour": 2,
        "time_budget": "200s",
        "cache_dir": str(tmp_path / "cache"),
        "seed": 3,
    }


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_a_search_in_a_thread_of_a_running_loop(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_STORAGE", "postgresql://elsewhere/else")
    monkeypatch.setenv("TRITUNE_OPTIMIZE_SERVER_URL", "http://me:secret@elsewhere")
    seen: list[object] = []
    handlers = []
    hidden, refused = [], []
    before = (logging.getLogger("tritune").level, logging.getLogger("tritune").propagate)

    def on_event(event: object) -> None:
        hidden.append([name for name in os.environ if name.startswith(("TRITUNE_OPTIMIZE_", "TRITUNE_STORAGE"))])
        try:
            tritune.optimize(**options)
        except tritune.Error as error:
            refused.append(error.exit_code)
        seen.append(event)
        handlers.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))

    async def main() -> tritune.Recommendation:
        handlers.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))
        return await asyncio.to_thread(partial(tritune.optimize, on_event=on_event, **options))

    found = asyncio.run(main())
    assert (found.status, found.exit_code) == ("certified", 0)
    assert found.workload.rows_per_request == 1
    assert any(isinstance(event, events.TrialEnded) for event in seen)
    assert len(set(handlers)) == 1
    assert hidden[0] == []
    assert set(refused) == {2}
    assert len(refused) == len(seen)
    log = logging.getLogger("tritune")
    assert (log.level, log.propagate) == before
    assert "arguments:" not in (options["output"] / "optimize.log").read_text()
    assert os.environ["TRITUNE_OPTIMIZE_SERVER_URL"] == "http://me:secret@elsewhere"
    assert capfd.readouterr() == ("", "")
    assert os.environ["TRITUNE_STORAGE"] == "postgresql://elsewhere/else"
    run = tritune.open_run(options["output"])
    assert run.recommendation == found
    assert found.winner.number in {trial.number for trial in run.trials}


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_in_the_main_thread_no_handler_is_set_and_a_listener_that_fails_ends_nothing(
    options: dict[str, Any],
) -> None:
    before, seen_handlers = signal.getsignal(signal.SIGINT), []

    def on_event(event: object) -> None:
        seen_handlers.append(signal.getsignal(signal.SIGINT))
        raise ZeroDivisionError("a bug of the caller")

    kept = options["output"].with_name("events.jsonl")
    found = tritune.optimize(on_event=on_event, events=kept, **options)
    assert found.status == "certified"
    assert set(seen_handlers) == {before}
    assert '"event":"trial_ended"' in kept.read_text()
    again = tritune.optimize(resume=options["output"], time_budget="300s")
    assert again.status == "certified"


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_what_stop_raises_reaches_the_caller_and_the_process_is_left_as_it_was(options: dict[str, Any]) -> None:
    asked, state, environment = [], random.getstate(), dict(os.environ)

    def stop() -> bool:
        asked.append(os.environ["ORT_DISABLE_TELEMETRY"])
        if len(asked) > 3:
            raise ZeroDivisionError("a bug of the caller")
        return False

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        tritune.optimize(stop=stop, **options)
    assert (random.getstate(), dict(os.environ)) == (state, environment)
    recommendation = tritune.open_run(options["output"]).recommendation
    assert recommendation is None or recommendation.status == "interrupted"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": None}, "model"),
        ({"p99": None}, 'p99="50ms"'),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "three"}, "seed"),
        ({"precision": "fp32"}, "precisions"),
        ({"precisions": ["fp32", "fp3"]}, "fp3"),
        ({"dry_run": True}, "dry_run"),
        ({"storage": "nonsense"}, "storage="),
    ],
)
def test_an_error_has_two_lines_and_the_exit_code(options: dict[str, Any], changed: Any, named: str) -> None:
    with pytest.raises(tritune.Error) as caught:
        tritune.optimize(**{**options, **changed})
    assert caught.value.exit_code == 2
    assert named in f"{caught.value.what} {caught.value.fix}"
    assert not options["output"].exists()


def test_a_password_may_be_in_a_call_which_no_list_of_processes_shows(options: dict[str, Any]) -> None:
    """On a command line it is refused, before anything else is; here another option is."""
    with pytest.raises(tritune.Error) as caught:
        tritune.optimize(**options, storage="postgresql://me:secret@localhost:1/none", server_port=0)
    assert "server_port=0" in caught.value.what
