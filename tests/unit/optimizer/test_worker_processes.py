"""Workers of this machine: one for each GPU, none of them left behind, and the storage in no command line."""

import sys
from pathlib import Path

from optimizer import worker_processes
from optimizer.worker_processes import LOG_FILE, workers_on

SAYS_WHAT_IT_GOT = """
import os, sys, time
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRITUNE_STORAGE"], *sys.argv[1:], flush=True)
time.sleep(600)
"""


def test_each_gpu_gets_a_process_that_ends_with_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_processes, "COMMAND", (sys.executable, "-c", SAYS_WHAT_IT_GOT))
    logs = [tmp_path / f"gpu-{number}" / LOG_FILE for number in (1, 2)]
    url = "postgresql://me:s3cret@db/optuna"
    with workers_on(["GPU-b", "GPU-c"], storage=url, arguments=["--study", "s"], folder=tmp_path) as started:
        while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
            assert all(process.poll() is None for process in started)
        lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in started]
    assert all(process.poll() is not None for process in started)
    said = [log.read_text().split() for log in logs]
    assert [words[0] for words in said] == ["GPU-b", "GPU-c"]
    assert {words[1] for words in said} == {url}
    assert [words[words.index("--output") + 1] for words in said] == [str(log.parent) for log in logs]
    assert all("s3cret" not in line for line in lines)
