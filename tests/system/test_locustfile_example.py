"""The locustfile in examples/ runs under Locust's own command as its first lines say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_triton import fake_triton

EXAMPLE = Path(__file__).parents[2] / "examples" / "locustfile.py"


@pytest.mark.system
def test_it_loads_the_model_that_the_environment_names() -> None:
    usage = re.search(r"locust -f (\S+) (.*) --host", EXAMPLE.read_text())
    assert usage is not None
    assert EXAMPLE.match(usage.group(1))
    with fake_triton("--delay-ms", "2") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "locust", "-f", str(EXAMPLE), *usage.group(2).split()),
                *("--host", server.url, "--headless", "--run-time", "4s", "--json"),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "MODEL": "delay", "RATE": "600"},
            check=False,
        )
        served = len(server.document("/kept")["kept_ns"])
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)
    assert 250 < entry["num_requests"] < 3000  # 200 at its own rate; Locust may take its time to start
    assert 0 <= served - entry["num_requests"] <= 5
