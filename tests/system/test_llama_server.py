"""`loadtest` of llama.cpp's own server: its three verdicts, and its times against those of the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_server import LlamaServer, llama_server

import loadgen.cli

pytestmark = pytest.mark.system
pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with llama_server(tmp_path_factory.mktemp("llama")) as running:
        yield running


def load(server: LlamaServer, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the record of a load test."""
    record = folder / "record.json"
    command = [f"{server.url}/v1", "--api", "openai-chat", "--model", "random", "--output", str(record)]
    code = loadgen.cli.run_command([*command, *options])
    return code, json.loads(record.read_text())


def test_streams_arrive_and_their_tokens_are_counted(server: LlamaServer, tmp_path: Path) -> None:
    shape = ["--prompt-tokens", "4", "--output-tokens", "4", "--rate", "4"]
    code, record = load(server, tmp_path, *shape, "--duration", "2s", "--warmup", "0s", "--max-send-lag", "1m")
    measured = record["measurement"]
    streams = measured["streams"]
    assert (code, record["outcome"], measured["failures"]) == (0, "measured", 0)
    assert streams["tokens_out"] == 4 * measured["requests"] > 0
    assert streams["tokens_in"] > streams["tokens_out"]
    assert streams["finish_reasons"] == {"length": measured["requests"]}


@pytest.mark.measure
@pytest.mark.parametrize(
    ("options", "code", "outcome"),
    [
        (("--ttft-p50=1s", "--tpot-p50=200ms"), 0, "met"),
        (("--ttft-p50=1s", "--tpot-p50=100us", "--fail-fast"), 99, "violated"),
        (("--ttft-p95=1s", "--tpot-p95=200ms", "--duration=3s"), 96, "inconclusive"),
    ],
)
def test_a_load_test_ends_met_violated_or_inconclusive(
    server: LlamaServer, tmp_path: Path, options: tuple[str, ...], code: int, outcome: str
) -> None:
    shape = ["--prompt-tokens", "8", "--output-tokens", "8", "--rate", "4"]
    ended, record = load(server, tmp_path, *shape, *options)
    assert (ended, record["outcome"]) == (code, outcome)


@pytest.mark.measure
def test_its_times_are_those_of_the_server(server: LlamaServer, tmp_path: Path) -> None:
    """One request is asked first, and the last requests of the load are not measured."""
    before = len(server.timings_ms())
    shape = ["--prompt-tokens", "50", "--output-tokens", "64", "--rate", "0.5", "--arrivals", "constant"]
    load(server, tmp_path, *shape, "--duration", "20s", "--warmup", "0s", "--keep-log", str(tmp_path / "log"))
    times = {path.stem: np.load(path) for path in (tmp_path / "log").glob("*.npy")}
    first_ns, last_ns = times["streams"]["first_ns"], times["streams"]["last_ns"]
    ours_ms = np.transpose([first_ns - times["scheduled_ns"], (last_ns - first_ns) / 63]) / 1e6
    served_ms = server.timings_ms()[before + 1 :][: len(ours_ms)]
    assert np.median(ours_ms / served_ms, axis=0) == pytest.approx([1, 1], abs=0.05)
