"""Both commands on a real terminal: they draw, heed its keys, and end, whatever becomes of it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_triton import fake_triton
from llm_server import llm_server
from terminals import Terminal
from waiting import wait_until

from loadgen.records.record import LoadTestRecord
from search.records.run_files import TRIALS_FILE, read_outcome

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ANY_ANSWER = {0, 96, 98}  # of a machine that may be slow

PLAIN = ("--model", "delay", "--rate", "100", "--warmup", "0s", "--max-send-lag", "30s")
STREAM = "--api openai-chat --model fake --prompt-tokens 8 --output-tokens 4 --rate 10 --warmup 0s"
SEARCH = ("--model", "delay", "--find-max", "--p50", "600ms", "--rate", "50", "--max-send-lag", "30s")


def loadtest(*arguments: str, **settings: Any) -> Terminal:
    return Terminal([str(BIN / "loadtest"), *arguments], **settings)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_triton("--delay-ms", "2") as server:
        yield server.url


@pytest.fixture(scope="module")
def llm_url() -> Iterator[str]:
    with llm_server() as server:
        yield server.url


@pytest.mark.parametrize("kind", ["rate", "stream", "find-max"])
def test_a_load_test_draws_within_80_columns_and_ends(kind: str, url: str, llm_url: str, tmp_path: Path) -> None:
    orders = {
        "rate": (url, *PLAIN, "--duration", "3s"),
        "stream": (f"{llm_url}/v1", *STREAM.split(), "--duration", "3s"),
        "find-max": (url, *SEARCH, "--duration", "3s"),
    }
    result = tmp_path / "r.json"
    with loadtest(*orders[kind], "--output", str(result), columns=80, rows=24) as terminal:
        code = terminal.end()
    assert code == LoadTestRecord.model_validate_json(result.read_bytes()).exit_code, terminal.written
    assert terminal.pictures > 2
    assert max(map(len, terminal.lines)) <= 80


def test_a_dead_address_is_an_error_on_a_terminal_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with loadtest(f"http://127.0.0.1:{port}", *PLAIN) as terminal:
        assert terminal.end() == 2
    assert any(line.startswith("error: ") for line in terminal.lines)


def ctrl_c(terminal: Terminal) -> None:
    terminal.press_ctrl_c()


def two_ctrl_c(terminal: Terminal) -> None:
    terminal.press_ctrl_c()
    wait_until(lambda: "Ctrl-C again" in terminal.written)
    if terminal.process.poll() is None:
        terminal.press_ctrl_c()


def sigterm(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGTERM)


ENDS: list[Callable[[Terminal], None]] = [ctrl_c, two_ctrl_c, sigterm, Terminal.hang_up]


@pytest.mark.parametrize("end", ENDS)
def test_a_load_test_ends_when_asked(end: Callable[[Terminal], None], url: str, tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    with loadtest(url, *PLAIN, "--duration", "10m", "--output", str(result)) as terminal:
        terminal.wait_for(lambda: "in flight" in terminal.written)
        end(terminal)
        # The result cannot be printed on a terminal that is gone, which does not hide what came first.
        assert terminal.end() == 130
    if end is not two_ctrl_c:
        assert LoadTestRecord.model_validate_json(result.read_bytes()).exit_code == 130


def test_a_load_test_survives_a_resize_a_dumb_terminal_and_a_closed_stdin(url: str) -> None:
    with loadtest(url, *PLAIN, "--duration", "5s", columns=200, rows=50) as terminal:
        terminal.wait_for(lambda: "in flight" in terminal.written)
        before = len(terminal.lines)
        terminal.resize(40, 10)
        assert terminal.end() == 0
    assert len(terminal.lines) > before
    with loadtest(url, *PLAIN, "--duration", "3s", term="dumb") as terminal:
        assert terminal.end() == 0
    assert "\x1b" not in terminal.written
    assert any("Measuring" in line for line in terminal.lines)  # lines, where no picture can be drawn
    closed = ["sh", "-c", 'exec "$@" <&-', "-", str(BIN / "loadtest")]
    with Terminal([*closed, url, *PLAIN, "--duration", "2s"]) as terminal:
        assert terminal.end() == 0
    assert terminal.pictures > 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(path)], check=True, timeout=240)
    return path


def optimize(model: Path, run: Path, budget: str, **settings: Any) -> Terminal:
    """A promise that nearly any machine keeps, decided in seconds."""
    easy = ("--p90", "100ms", "--confidence", "0.8", "--max-send-lag", "1s", "--despite-noise")
    command = [str(BIN / "optimize"), "--model", str(model), *easy, "--time-budget", budget, "--output", str(run)]
    return Terminal(command, **settings)


def test_optimize_draws_through_a_resize_and_ends_with_its_answer(model: Path, tmp_path: Path) -> None:
    with optimize(model, tmp_path / "run", "20s") as terminal:
        terminal.wait_for(lambda: "Searching" in terminal.written)
        at_80 = terminal.lines
        terminal.resize(200, 50)
        code = terminal.end()
    assert code in ANY_ANSWER, terminal.written
    assert code == read_outcome(tmp_path / "run").exit_code
    assert max(map(len, at_80)) <= 80
    assert any("reading the model" in line for line in at_80)  # what takes so long
    assert terminal.pictures > 10


@pytest.mark.parametrize(
    ("phase", "end"),
    [("Preparing", sigterm), ("Searching", Terminal.hang_up), ("trial", ctrl_c)],
)
def test_optimize_ends_when_asked(
    phase: str, end: Callable[[Terminal], None], model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with optimize(model, run, "10m", columns=200, rows=50) as terminal:
        trials = run / TRIALS_FILE
        terminal.wait_for(lambda: trials.exists() if phase == "trial" else phase in terminal.written)
        end(terminal)
        assert terminal.end() == 130
    assert read_outcome(run).exit_code == 130
    assert "Traceback" not in terminal.written
