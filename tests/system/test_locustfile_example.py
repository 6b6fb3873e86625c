"""The locustfile in examples/ under Locust's own command: plug-ins, CSV files and the web UI see every request."""

import csv
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from browser import browser_path, page
from fake_triton import FakeTriton, fake_triton
from waiting import wait_until

from loadgen.spec.plan import LoadPlan
from loadgen.traffic.arrivals import schedule

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "locustfile.py"
SHOTS = ROOT / "build" / "screenshots"
PLUGIN = """
import os
import signal

from locust import events

count, runner = 0, None

@events.init.add_listener
def keep(environment, **_):
    global runner
    runner = environment.runner

@events.request.add_listener
def note(response_time, **_):
    global count
    count += 1
    if count == {last}:
        {end}

@events.quit.add_listener
def report(**_):
    print("heard", count)
"""
NEVER = -1
QUIT = "runner.quit()"
SIGNAL = "os.kill(os.getpid(), signal.SIGTERM)"


def locust(*options: str) -> list[str]:
    return [sys.executable, "-m", "locust", *options]


def planned(rate_per_s: float, duration_s: float, seed: int = 0) -> int:
    return len(schedule(LoadPlan(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)))


def counts_in_csv(prefix: Path) -> dict[str, int]:
    with Path(f"{prefix}_stats.csv").open() as file:
        return {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("processes", "last", "end"),
    [
        (1, NEVER, ""),
        (1, 700, SIGNAL),
        (1, 700, QUIT),
        pytest.param(2, NEVER, "", marks=pytest.mark.long),
    ],
    ids=["to-the-end", "until-a-signal", "until-a-plug-in-quits", "two-processes"],
)
def test_plug_ins_and_csv_files_see_every_request_once(
    processes: int, last: int, end: str, tmp_path: Path
) -> None:
    usage = re.search(r"locust -f (\S+) (.*) --host", EXAMPLE.read_text())
    assert EXAMPLE.match(usage.group(1))
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.format(last=last, end=end or "pass"))
    prefix = tmp_path / "run"
    options = (*usage.group(2).split(), "--model", "delay", "--rate", "400", "--run-time", "3s")
    with fake_triton("--delay-ms", "200") as server:
        command = locust("-f", f"{EXAMPLE},{plugin}", *options, "--host", server.url)
        command += ["--headless", "--json", "--csv", str(prefix)]
        command += ["--processes", str(processes)] * (processes > 1)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        expected = len(server.document("/kept")["kept_ns"]) - processes  # each tries one before the load
    assert done.returncode == 0, done.stderr
    if last == NEVER:
        assert expected == sum(planned(400 / processes, 3.0, seed) for seed in range(processes))
    assert sum(map(int, re.findall(r"^heard (\d+)", done.stdout, re.MULTILINE))) == expected
    printed = re.search(r"^\[\n.*?^\]$", done.stdout, re.MULTILINE | re.DOTALL)  # a worker prints an empty list
    (entry,) = json.loads(printed[0])
    expected -= end == QUIT  # which ends the event that it is called in, before Locust's statistics have it
    assert (entry["num_requests"], entry["num_failures"]) == (expected, 0)
    assert counts_in_csv(prefix) == {"delay": expected, "Aggregated": expected}


OWN_OPTION = """
from locust import events

@events.init_command_line_parser.add_listener
def add(parser):
    GROUP.add_argument("--rate", type=int)
"""


class WebUi:
    """Locust's web UI, as its own pages talk to it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = requests.get(f"{self.url}/stats/requests", timeout=60).json()
        return figures

    def requests(self) -> int:
        return int(self.figures()["stats"][-1]["num_requests"])

    def start(self, **form: str) -> None:
        assert requests.post(f"{self.url}/swarm", data=form, timeout=60).json()["success"]

    def stop(self) -> None:
        requests.post(f"{self.url}/stop", timeout=60).raise_for_status()

    def has_stopped(self) -> bool:
        return bool(self.figures()["state"] == "stopped")

    def answers(self) -> bool:
        try:
            return requests.get(self.url, timeout=60).ok
        except OSError:
            return False


@contextmanager
def web_ui(server: FakeTriton, *options: str) -> Iterator[WebUi]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = ("--web-host", "127.0.0.1", "--web-port", str(port))
    command = locust("-f", str(EXAMPLE), "--host", server.url, *address, *options)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        ui = WebUi(f"http://127.0.0.1:{port}")
        try:
            wait_until(ui.answers)
            yield ui
        finally:
            process.terminate()


def test_the_start_form_has_the_rate_and_no_users_and_the_test_ends_with_its_schedule() -> None:
    with fake_triton("--delay-ms", "2") as server, web_ui(server, "--rate", "70") as ui:
        page = requests.get(ui.url, timeout=60).text
        shown = json.loads(page.split("window.templateArgs = ")[1].split("\n")[0])
        assert shown["hide_common_options"]
        values = {name: option["default_value"] for name, option in shown["extra_options"].items()}
        assert values == {"model": "small_cnn", "rate": 70.0, "duration": "", "arrivals": ""}
        ui.start(model="delay", rate="300", duration="2s", arrivals="")
        wait_until(ui.has_stopped)
        assert ui.requests() == planned(300, 2.0) == len(server.document("/kept")["kept_ns"]) - 1
        ui.start(model="delay", rate="200", duration="1s", arrivals="constant")
        wait_until(lambda: ui.requests() == 200 and ui.has_stopped())
        ui.start(model="delay", rate="", duration="2s", arrivals="constant")
        wait_until(lambda: ui.requests() == 100 and ui.has_stopped())  # 50/s, as in the file


@pytest.mark.parametrize(
    ("group", "before"),
    [("", True), ("", False), (".add_argument_group('mine')", True), (".add_mutually_exclusive_group()", False)],
)
def test_options_of_the_locustfile_with_names_of_ours_are_refused_in_two_lines(
    group: str, before: bool, tmp_path: Path
) -> None:
    file = tmp_path / "locustfile.py"
    parts = [OWN_OPTION.replace("GROUP", f"parser{group}"), "from loadgen.triton_user import TritonHttpUser"]
    file.write_text(
        "\n".join([*parts[:: 1 if before else -1], "class Model(TritonHttpUser):", "    model_name = 'm'"])
    )
    done = subprocess.run(locust("-f", str(file), "--headless"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "--rate" in done.stderr


FIELDS = """
[...document.querySelectorAll('input')].filter(field => field.checkVisibility({visibilityProperty: true}))
    .map(field => field.name).sort()
"""
BUTTONS = """
[...document.querySelectorAll('button')].filter(button => button.checkVisibility())
    .map(button => button.textContent)
"""
START = """
const field = document.querySelector('input[name=rate]')
Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, '90')
field.dispatchEvent(new Event('input', {bubbles: true}))
document.querySelector('button[type=submit]').click()
"""


@pytest.mark.long
@pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on PATH, and CHROMIUM is not set")
def test_a_browser_shows_the_options_of_an_open_loop_and_no_others(tmp_path: Path) -> None:
    chromium = browser_path()
    assert chromium is not None
    SHOTS.mkdir(parents=True, exist_ok=True)
    options = ("--model", "delay", "--run-time", "1s")
    with (
        fake_triton("--delay-ms", "2") as server,
        web_ui(server, *options) as ui,
        page(chromium, tmp_path / "profile") as tab,
    ):
        tab.look_like(width=1280)
        tab.go(ui.url)
        wait_until(lambda: tab.value(FIELDS))
        assert tab.value(FIELDS) == ["arrivals", "duration", "host", "model", "rate"]
        tab.screenshot(SHOTS / "locust-form.png")
        tab.value(START)
        wait_until(lambda: "Stop" in tab.value(BUTTONS))
        assert "Edit" not in tab.value(BUTTONS)
        tab.screenshot(SHOTS / "locust-running.png")
        wait_until(lambda: "New" in tab.value(BUTTONS))
        assert ui.requests() == planned(90, 1.0)


@pytest.mark.long
def test_stop_waits_for_the_requests_in_flight() -> None:
    with fake_triton("--delay-ms", "1000") as server, web_ui(server, "--model", "delay") as ui:
        ui.start(rate="100", duration="600s")
        wait_until(lambda: ui.requests() > 0)
        ui.stop()
        wait_until(ui.has_stopped)
        figures = ui.figures()["stats"][-1]
        assert figures["num_failures"] == 0
        assert figures["num_requests"] == len(server.document("/kept")["kept_ns"]) - 1


@pytest.mark.parametrize("option", ["--rate", "--duration", "--arrivals"])
def test_a_value_that_cannot_be_ends_the_test_with_an_error(option: str) -> None:
    command = locust("-f", str(EXAMPLE), option, "many", "--headless", "--host", "http://127.0.0.1:9")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert f"{option} " in done.stderr.replace(":", " ")


def test_a_model_that_is_not_there_is_said_once_and_ends_the_test() -> None:
    with fake_triton() as server:
        command = locust("-f", str(EXAMPLE), "--model", "other", "--headless", "--host", server.url)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert done.stderr.count("does not serve other") == 1
