"""`optimize` as a process, on a real Triton: its files, its exit codes, and what it survives."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from recommendations import recommendation, trial
from waiting import wait_until

from loadgen.spec.limits import LatencyLimit
from search.records.confirmations import CONFIRMATIONS_FILE, read_confirmations
from search.records.recommendation import RecommendationRecord
from search.records.run_files import (
    RECOMMENDATION_FILE,
    TRIALS_FILE,
    read_outcome,
    recommendation_if_any,
)
from search.records.slo import Slo
from search.records.trial import TrialRecord
from search.simulator.service_times_file import PROFILE_FILE

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))

EASY = ("--p90", "100ms", "--confidence", "0.8", "--max-send-lag", "1s", "--despite-noise")
"""A promise that a machine which stands still now and then can keep, and that is decided in seconds. The run's own
record says whether it was kept, and the exit code has to agree with it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's CNN: about a millisecond an image, so that the server and not the client is the limit."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(path)], check=True, timeout=240)
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def name_of_living(process: psutil.Process) -> str | None:
    """None for one that has ended, collected or not."""
    try:
        return process.name() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


class Run:
    """An `optimize` process that is watched from outside."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [OPTIMIZE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._seen: dict[int, psutil.Process] = {}

    def family(self) -> list[psutil.Process]:
        """All processes it has started so far that are still alive, however they were detached since."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._seen.setdefault(child.pid, child)
        except psutil.NoSuchProcess:
            pass
        return [child for child in self._seen.values() if name_of_living(child)]

    def ended(self) -> bool:
        return self.process.poll() is not None

    def servers(self) -> list[psutil.Process]:
        return [child for child in self.family() if name_of_living(child) == "tritonserver"]

    def interrupt_after(self, condition: Callable[[], bool]) -> bool:
        """One Ctrl-C once it is so, unless the run comes to its end before: it may find nothing better to try.

        Whether there was one.
        """

        def over() -> bool:
            self.family()
            return condition() or self.ended()

        wait_until(over, most_s=600)
        if self.ended():
            return False
        self.process.send_signal(signal.SIGINT)
        return True

    def interrupt_again(self, run_dir: Path) -> None:
        """A second Ctrl-C once the run has said what it does, unless the first one has ended it."""
        log = run_dir / "optimize.log"
        wait_until(lambda: self.ended() or (log.exists() and "Ctrl-C again" in log.read_text()))
        self.family()
        if not self.ended():
            self.process.send_signal(signal.SIGINT)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for what the run does, and know all that it has started until then."""

        def seen() -> bool:
            self.family()
            if not condition():
                assert not self.ended(), self.process.communicate()
                return False
            return True

        wait_until(seen, most_s=400)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err

    def leaves_nothing(self) -> None:
        """Wait until all that it has started is gone."""
        wait_until(lambda: not self.family())


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*arguments: str) -> Run:
        runs.append(Run(*arguments))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


def trials_in(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / TRIALS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_in(run_dir: Path) -> int:
    """How many trials and confirmations have ended."""
    files = [run_dir / TRIALS_FILE, run_dir / CONFIRMATIONS_FILE]
    return sum(file.read_text().count("\n") for file in files if file.exists())


@pytest.fixture
def fast_baseline(tmp_path: Path) -> Path:
    """An earlier run that did a thousand times better than any machine that runs these tests."""
    bounds: dict[str, Any] = {"rate_low_per_s": 0.99e6, "rate_at_limit_per_s": 1e6, "rate_high_per_s": 1.01e6}
    winner = trial(**bounds)
    folder = tmp_path / "before"
    folder.mkdir()
    text = recommendation(
        winner=winner, slo=Slo(limits=(LatencyLimit(limit_ms=100.0, quantile=0.9),))
    ).model_dump_json()
    (folder / "recommendation.json").write_text(text)
    return folder


def test_finds_a_configuration_and_writes_every_file(
    start: Callable[..., Run], model: Path, run_dir: Path, fast_baseline: Path
) -> None:
    run = start(
        *("--model", str(model), *EASY, "--output", str(run_dir), "--time-budget", "20s"),
        # So few that a machine which is slow now keeps twice that with a bundle's 100 replicas.
        *("--rate", "500", "--price-per-hour", "2", "--json", "--baseline", str(fast_baseline)),
        "--accept-provisional",
    )
    run.wait_for(lambda: len(run.family()) > 2)
    code, out, err = run.end()
    run.leaves_nothing()
    records = [TrialRecord.model_validate(trial) for trial in trials_in(run_dir)]
    assert [record.number for record in records] == list(range(len(records)))
    assert records[0].config.max_batch_size == 4  # Triton's own default
    begun = [run.began_unix_s for record in records for run in record.load_runs]
    begun += [one.began_unix_s for one in read_confirmations(run_dir)]
    assert None not in begun
    for name in ("study.db", "optimize.log", "server.log", "run.json", "report.html"):
        assert (run_dir / name).stat().st_size > 0
    text = (run_dir / RECOMMENDATION_FILE).read_text()
    jsonschema.validate(json.loads(text), json.loads((ROOT / "docs" / "recommendation.schema.json").read_text()))
    found = read_outcome(run_dir)
    assert code == found.exit_code, err
    assert found.status_reason
    if not isinstance(found, RecommendationRecord):
        assert found.status in {"inconclusive", "untrustworthy"}, err
        assert json.loads(out)["status"] == found.status
        assert found.advice
        return
    assert found.status in {"worse", "untrustworthy"}, err  # no machine is as fast as the baseline
    assert out == found.model_dump_json(indent=2) + "\n" == text
    assert found.winner.certificate.first.latency_high_ms <= 100
    assert found.cost.replicas * found.winner.certificate.rate_per_s >= 500
    assert found.cost.total_usd_per_hour == pytest.approx(2 * found.cost.replicas)
    per_million = 2 / (found.winner.certificate.rate_per_s * 3600) * 1e6
    assert found.cost.cost_per_million_inferences_usd == pytest.approx(per_million)
    assert (run_dir / "model_repository" / "tiny" / "config.pbtxt").is_file()
    if found.status != "untrustworthy" and found.winner.certificate.confirmed_again:
        assert (run_dir / "bundle" / "README.md").is_file()
    assert found.served.replica_start_s > 0
    assert found.served.memory_bytes > 20e6
    assert not found.winner.answers.mixed
    assert found.winner.answers.compared or found.winner.answers.unseen


def test_kill_9_loses_no_finished_trial(start: Callable[..., Run], model: Path, run_dir: Path) -> None:
    first = start("--model", str(model), *EASY, "--output", str(run_dir), "--time-budget", "1m")
    first.wait_for(lambda: len(trials_in(run_dir)) >= 1)
    first.process.kill()
    first.end()
    first.leaves_nothing()
    before, steps = (run_dir / "trials.jsonl").read_text(), steps_in(run_dir)

    second = start("--resume", str(run_dir), "--json")
    second.wait_for(lambda: steps_in(run_dir) > steps)
    second.process.send_signal(signal.SIGINT)
    second.interrupt_again(run_dir)
    code, _, err = second.end()

    found = read_outcome(run_dir)
    assert code == found.exit_code == 130, err
    second.leaves_nothing()
    assert (run_dir / "trials.jsonl").read_text().startswith(before[: before.rindex("\n") + 1])
    numbers = [trial["number"] for trial in trials_in(run_dir)]
    assert numbers == list(range(len(numbers)))
    assert not isinstance(found, RecommendationRecord) or found.winner.number in numbers


@pytest.mark.parametrize("what", ["it starts", "a server starts", "a model is loaded"])
def test_two_ctrl_c_stop_now_whatever_was_going_on(
    start: Callable[..., Run], model: Path, run_dir: Path, what: str
) -> None:
    run = start("--model", str(model), *EASY, "--output", str(run_dir))
    log = run_dir / "server.log"
    going_on: dict[str, Callable[[], bool]] = {
        "it starts": run_dir.exists,  # before Python itself is up, a Ctrl-C is not ours to answer
        "a server starts": log.exists,
        "a model is loaded": lambda: log.exists() and "successfully loaded" in log.read_text(),
    }
    run.wait_for(going_on[what])
    run.process.send_signal(signal.SIGINT)
    run.interrupt_again(run_dir)
    code, out, err = run.end()
    # Before Python is up, the signal ends it; a shell calls that 130 too.
    assert code in {130, -signal.SIGINT}, err
    assert out == ""
    if (run_dir / RECOMMENDATION_FILE).exists():
        outcome = read_outcome(run_dir)
        assert (outcome.status, outcome.exit_code) == ("interrupted", 130)
    run.leaves_nothing()


@pytest.mark.long
def test_a_server_that_dies_under_load_costs_no_trial(
    start: Callable[..., Run], model: Path, run_dir: Path
) -> None:
    run = start(
        *("--model", str(model), *EASY, "--output", str(run_dir), "--json"),
        *("--time-budget", "2m"),  # so that the search goes on for a while after its first trial
    )
    run.wait_for((run_dir / PROFILE_FILE).exists)

    def loaded() -> int:
        return (run_dir / "server.log").read_text().count("successfully loaded")

    # Between two trials a dead server is replaced without a word. Load is sent once a configuration is loaded.
    before = loaded()
    run.wait_for(lambda: loaded() > before)
    (server,) = run.servers()
    server.kill()
    measured = len(trials_in(run_dir))
    if run.interrupt_after(lambda: len(trials_in(run_dir)) > measured):
        run.interrupt_again(run_dir)
    code, _, err = run.end()
    assert code in {0, 96, 98, 130}, err
    assert "sent again to a fresh server" in (run_dir / "optimize.log").read_text()
    assert [trial["state"] for trial in trials_in(run_dir) if trial["state"] == "failed"] == []
    run.leaves_nothing()


@pytest.mark.measure
def test_a_neighbour_is_seen_and_said(start: Callable[..., Run], model: Path, run_dir: Path) -> None:
    """How much it takes and for how long is the machine's affair; that it was there has to be in every file."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        run = start("--model", str(model), *EASY, "--output", str(run_dir), "--time-budget", "30s")
        code, out, err = run.end()
    finally:
        burner.kill()
        burner.wait()
    assert code in {0, 96, 98}, err
    found = recommendation_if_any(run_dir)
    if found is not None:
        assert found.contention.marked
        assert found.contention.others_cpu_s > 0.2 * found.contention.disturbed_s
        assert found.seconds.total < 1.5 * 30 + 30  # however slow its ends are
    records = [TrialRecord.model_validate(trial) for trial in trials_in(run_dir)]
    assert any(record.contention is not None and record.contention.marked for record in records)
    for text in (out, err, (run_dir / "report.html").read_text()):
        assert "processes took" in " ".join(text.split())
