"""`tritune.loadtest`: in a process that is left as it was, with the options of the command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_triton import fake_triton

import tritune

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, json, os, random, signal, socket, sys, threading

socket.setdefaulttimeout(0.2)
random.seed(7)

def parts():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    state = (random.getstate(), dict(os.environ))
    return (socket.socket, socket.create_connection, threading.Thread, threading.get_ident, state, *handlers)

before = parts()
import tritune
seen = []
options = dict(model="delay", rate=50, duration="600ms", warmup="0s", p50="1s")

streams, over = [], threading.Event()

def watch():
    while not over.wait(0.01):
        streams.append(sys.stdout)

watcher = threading.Thread(target=watch)

async def main():
    watcher.start()
    seen.append(tritune.loadtest(sys.argv[1], **options))  # within a running loop, as in a notebook
    seen.append(await asyncio.to_thread(tritune.loadtest, sys.argv[1], **options))

asyncio.run(main())
over.set()
watcher.join()
same = all(a is b or a == b for a, b in zip(before, parts(), strict=True))
patched = sorted({"gevent", "locust"} & sys.modules.keys())
same = same and set(streams) == {sys.stdout}
print(json.dumps({"same": same, "patched": patched, "requests": [one.measurement.requests for one in seen]}))
"""


@pytest.mark.slow
def test_a_call_leaves_its_process_as_it_was_in_a_loop_and_in_a_thread(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, server.url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr == ""
    found = json.loads(done.stdout)  # nothing else is printed
    assert found["same"]
    assert found["patched"] == []
    assert min(found["requests"]) > 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_values_are_what_a_person_would_write(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        found = tritune.loadtest(
            server.url,
            model="delay",
            rate=40,
            p99=500,
            duration="300ms",
            warmup="0s",
            batch_size=np.int64(1),  # type: ignore[arg-type]
            shape=["x:256"],
            ask_output="y",
            output=tmp_path / "record.json",
            html=str(tmp_path / "page.html"),
        )
    assert found.load.rate_per_s == 40.0
    assert found.load.batch_size == 1
    assert found.load.shapes == {"x": (256,)}
    assert found.load.outputs == ("y",)
    assert [check.limit for check in found.checks] == [500.0]
    assert any("500" in note for note in found.notes)  # that ms were assumed
    assert (tmp_path / "record.json").read_text() == found.model_dump_json(indent=2) + "\n"
    assert (tmp_path / "page.html").is_file()
    assert found.outcome in repr(found)
    assert "<td" in found._repr_html_()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "rate="),
        ({"rate": "many"}, "rate"),
        ({"rate": 5, "p99": "50 apples"}, "p99='50 apples'"),
        ({"rate": 10**5000}, "rate"),
        ({"rate": 5, "html": False}, "html"),
        ({"rate": 5, "output": "a\0b"}, "output="),
        ({"rate": 5, "shape": {"x": (4,)}}, "shape"),
        ({"rate": 5, "durations": "3s"}, "duration"),
        ({"rate": 5, "processes": 0}, "processes=0"),
        ({"rate": 5, "find_max": "perhaps"}, "find_max"),
        ({"master": True}, "master"),  # would bring Locust into the process
        ({"json": True}, "json"),
        ({"rate": 5, "arrivals": "gamma:cv=-1"}, "gamma"),
    ],
)
def test_an_error_has_two_lines_and_the_exit_code(options: dict[str, Any], named: str) -> None:
    with pytest.raises(tritune.Error) as caught:
        tritune.loadtest("http://127.0.0.1:9", model="m", **options)
    assert caught.value.exit_code == 2
    assert named in f"{caught.value.what} {caught.value.fix}"
    assert caught.value.fix


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(tritune.Error) as caught:
        tritune.loadtest("http://127.0.0.1:9", model="m", rate=5)
    assert caught.value.status == "bad_input"


def test_variables_of_the_command_are_no_options_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_LOADTEST_RATE", "5")
    with pytest.raises(tritune.Error) as caught:
        tritune.loadtest("http://127.0.0.1:9", model="m")
    assert "rate=" in caught.value.fix
    assert os.environ["TRITUNE_LOADTEST_RATE"] == "5"
