"""The `loadtest` command against a server of a few lines: answers, files, and that nothing is left behind."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_triton import FakeTriton, fake_triton
from load_records import measurement, record
from waiting import wait_until

from loadgen.records.record import LoadTestRecord

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-c", "from loadgen.cli import main; main()"]
NO_LIMIT = ("--rate", "200", "--duration", "2s", "--warmup", "0s")

LIMIT = ("--rate", "200", "--duration", "9s", "--p50", "600ms", "--warmup", "0s")
"""A limit that no machine breaks, and seconds enough to decide it if the first three are left out as unlike the
rest."""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeTriton]:
    with fake_triton("--delay-ms", "2") as running:
        yield running


def loadtest(url: str, *options: str, expected: int, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever a busy machine does to the client: no send lag is too much."""
    command = [*COMMAND, url, "--model", "delay", "--max-send-lag", "30s", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **settings)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


@contextmanager
def started(url: str, *options: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs; ended by force at the end of the block if need be."""
    command = [*COMMAND, url, "--model", "delay", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def children_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def record_of(done: subprocess.CompletedProcess[str]) -> LoadTestRecord:
    return LoadTestRecord.model_validate_json(done.stdout)


def test_json_alone_is_on_stdout_and_its_figures_agree_with_the_server(server: FakeTriton) -> None:
    seen = record_of(loadtest(server.url, *NO_LIMIT, "--json", expected=0)).measurement
    assert seen.failures == 0
    assert seen.requests == seen.server.requests
    assert seen.latency_min_ms >= 2.0
    assert seen.network_and_client_ms is not None


def baseline_at(folder: Path, p99_ms: float) -> Path:
    figures = measurement(latency_p99_low_ms=0.9 * p99_ms, latency_p99_ms=p99_ms, latency_p99_high_ms=1.1 * p99_ms)
    path = folder / "baseline.json"
    path.write_text(record(measurement=figures).model_dump_json())
    return path


def test_another_load_than_the_baselines_is_refused_before_it_is_sent(server: FakeTriton, tmp_path: Path) -> None:
    before = len(server.document("/kept")["kept_ns"])
    done = loadtest(server.url, "--rate", "100", "--compare", str(baseline_at(tmp_path, 1.0)), expected=2)
    assert "200/s, not 100/s" in done.stderr
    assert len(server.document("/kept")["kept_ns"]) == before


def test_a_client_that_falls_behind_says_so(server: FakeTriton) -> None:
    before = len(server.document("/kept")["kept_ns"])
    with started(server.url, *LIMIT, "--json") as process:
        wait_until(lambda: len(server.document("/kept")["kept_ns"]) > before + 20)
        (child,) = children_of(process.pid)
        child.suspend()
        time.sleep(0.5)  # so long at least
        child.resume()
        out, err = process.communicate(timeout=240)
    assert process.returncode == 98, err
    record = LoadTestRecord.model_validate_json(out)
    assert "left late" in record.measurement.problems[0]
    assert record.measurement.latency_max_ms > 300  # the wait counts


def test_a_secret_is_in_no_output_no_file_and_no_command_line(server: FakeTriton, tmp_path: Path) -> None:
    secret = "s3cret-7f3a"
    files = {"--output": "r.json", "--html": "r.html", "--junit": "r.xml", "--csv": "r"}
    options = [part for name, file in files.items() for part in (name, str(tmp_path / file))]
    options += ["--header-env", "Authorization=STAGING_TOKEN", "--max-send-lag", "30s"]
    with started(server.url, *NO_LIMIT, *options, environment={"STAGING_TOKEN": f"Bearer {secret}"}) as process:
        wait_until(lambda: children_of(process.pid))
        lines = [child.cmdline() for child in children_of(process.pid)]
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert lines
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert len(written) == 6
    assert not [text for text in (str(lines), out, err, *written) if secret in text]


@pytest.mark.parametrize("answers", [0, 100])
def test_ctrl_c_leaves_a_marked_result_and_no_process(server: FakeTriton, answers: int) -> None:
    """As soon as the load process is there, and in the midst of the load."""
    before = len(server.document("/kept")["kept_ns"])
    with started(server.url, "--rate", "100", "--duration", "600s", "--json") as process:
        wait_until(lambda: children_of(process.pid))
        wait_until(lambda: len(server.document("/kept")["kept_ns"]) >= before + answers)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.outcome == "interrupted"
    assert children
    assert not [child for child in children if child.is_running()]


def test_a_report_that_does_not_fit_on_the_disk_is_said_and_the_result_stands(
    server: FakeTriton, tmp_path: Path
) -> None:
    # A limit on the size of files stands in for a full disk: enough for the log of about 100 requests, not for the
    # page of 13 kB.
    done = loadtest(
        server.url,
        *("--rate", "50", "--duration", "2s", "--warmup", "0s"),
        *("--html", str(tmp_path / "r.html")),
        expected=3,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000)),
    )
    assert "MEASURED" in done.stdout
    assert done.stderr.splitlines()[-2].startswith(f"error: --html {tmp_path / 'r.html'} was not written")
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_does_not_match_is_refused_unless_it_is_said_not_to_matter() -> None:
    options = ("--rate", "100", "--duration", "2s", "--warmup", "0s", "--json")
    with fake_triton("--tls", scheme="https") as server:
        done = loadtest(server.url, *options, expected=2)
        assert "certificate" in done.stderr
        done = loadtest(server.url, *options, "--insecure", expected=0)
    assert "NOT checked" in done.stderr
    assert record_of(done).target.certificate_checked is False
    assert "NOT checked" in record_of(done).notes[0]


def test_a_search_outlives_passing_refusals_and_says_how_long_it_waited(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "2", "--busy-every", "3") as busy:
        options = ("--find-max", "--p50", "600ms", "--rate", "100", "--duration", "20s", "--wait-ready", "20s")
        loadtest(busy.url, *options, "--output", str(tmp_path / "r.json"), expected=0)
        asked = busy.document("/kept")["questions"]
    found = LoadTestRecord.model_validate_json((tmp_path / "r.json").read_bytes())
    assert found.capacity is not None
    assert asked > 6, "a question for each probe, and several were answered by 503"
    assert found.ready_after_s is not None
    assert any("of waiting" in note for note in found.notes)


@contextmanager
def slow_link(url: str, bytes_per_s: float) -> Iterator[str]:
    """Carry connections to a server, and at most so many bytes a second of all requests together."""
    port, lock, free_s = int(url.rpartition(":")[2]), threading.Lock(), [0.0]

    def carry(source: socket.socket, sink: socket.socket, *, slowly: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if slowly:
                    with lock:
                        now_s = time.monotonic()
                        free_s[0] = max(free_s[0], now_s) + len(data) / bytes_per_s
                    time.sleep(free_s[0] - now_s)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = opened.enter_context(listener.accept()[0])
                server = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                for source, sink in ((client, server), (server, client)):
                    way = {"slowly": source is client}
                    threads.append(threading.Thread(target=carry, args=(source, sink), kwargs=way))
                    threads[-1].start()

    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_a_slow_link_is_named_and_a_slow_model_is_not_taken_for_one(tmp_path: Path) -> None:
    options = ("--rate", "50", "--duration", "6s", "--warmup", "0s", "--p99", "100ms", "--output")
    megabyte = ("--size", "262144")
    with fake_triton(*megabyte) as fast, slow_link(fast.url, 25e6) as url:
        loadtest(url, *options, str(tmp_path / "link.json"), expected=99)
    with fake_triton(*megabyte, "--one-at-a-time", "--delay-ms", "60") as slow:
        loadtest(slow.url, *options, str(tmp_path / "model.json"), expected=99)
    link, model = (
        LoadTestRecord.model_validate_json((tmp_path / f"{name}.json").read_bytes()).reasons[0]
        for name in ("link", "model")
    )
    assert "the network, or a server that reads slowly" in link
    assert "more and more requests were waiting" in model
