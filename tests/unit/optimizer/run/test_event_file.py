"""Tests of the file of events: a line of JSON per event, and a run that goes on without it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from recommendations import trial as made

from loadgen.errors import BadInput
from optimizer.run.run_directory import check_events, events_to
from search.trials import events

ALL: tuple[events.Event, ...] = (
    events.PhaseStarted(name="search", detail="100 configurations"),
    events.StepStarted(step="export"),
    events.StepEnded(step="export", seconds=1.5),
    events.Note(text="no\nline", warning=True),
    events.TrialStarted(number=0, knobs="fp32"),
    events.Probed(number=0, rate_per_s=5.0, latency_ms=math.inf, verdict="violated"),
)


def test_every_event_is_a_line_with_its_fields(tmp_path: Path) -> None:
    trial = made()
    ended = events.TrialEnded(trial=trial, best=trial, elapsed_s=3.0, budget_s=60.0)
    confirmed = events.ConfirmationEnded(trial=trial, rate_per_s=7.0, certificate=None)
    seen: list[Any] = []
    for _ in range(2):  # the second run appends
        with events_to(tmp_path / "events.jsonl", seen.append) as on_event:
            for event in (*ALL, ended, confirmed):
                on_event(event)
                last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
                assert last["elapsed_s"] >= 0  # it is there at once
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert seen == [*ALL, ended, confirmed] * 2
    names = ["phase_started", "step_started", "step_ended", "note", "trial_started", "probed", "trial_ended"]
    names.append("confirmation_ended")
    assert [line["event"] for line in lines] == names * 2
    assert (lines[0]["name"], lines[3]["text"], lines[5]["latency_ms"]) == ("search", "no\nline", None)
    assert lines[6]["trial"] == json.loads(trial.model_dump_json())
    assert lines[6]["best"] == trial.number


def test_a_full_disk_ends_the_file_and_not_the_run() -> None:
    seen: list[Any] = []
    with events_to(Path("/dev/full"), seen.append) as on_event:
        for event in ALL[:2]:
            on_event(event)
    assert seen[1:] == [*ALL[:2]]
    assert seen[0].warning


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--events"), events_to(tmp_path, print):
        pass


def test_a_file_in_the_folder_of_the_run_which_is_made_later(tmp_path: Path) -> None:
    check_events(tmp_path / "a" / "run" / "events.jsonl", tmp_path / "a" / "run")
    with pytest.raises(BadInput, match="--events"):
        check_events(tmp_path / "b" / "events.jsonl", tmp_path / "a" / "run")
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_not_utf_8_is_written_with_escapes(tmp_path: Path) -> None:
    with events_to(tmp_path / "events.jsonl", print) as on_event:
        on_event(events.Note(text="c\udcff.pbtxt"))
    assert json.loads((tmp_path / "events.jsonl").read_text())["text"] == "c\\udcff.pbtxt"
