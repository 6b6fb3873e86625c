"""Run load generators for token streams against a server that knows the truth, and say who is right.

    python benchmarks/llm_truth.py --cache FOLDER --output FOLDER [--tool NAME] [--behaviour NAME]

Per behaviour of tests/support/llm_server.py, each tool sends the same small load: 40 requests for 32 tokens each,
10 per second. A tool is right if its count of good requests is the server's within 1, and its medians of the time
to the first token (TTFT) and per further token (TPOT) are those of the server's good requests within 10 % or 1 ms;
also if it says that the client was late where the client itself is stopped again and again.

`--cache` is the folder of the tools' virtual environments, which are made from the package index if they are not
there. Writes a line per tool and behaviour to OUTPUT/truth.jsonl, in place of earlier lines of the same. A busy
machine delays tools; `--again` runs once more what was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from lib.llm.tools import TOOLS, Load, Seen, Tool, installed, local_tokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from llm_server import BEHAVIOURS, RunningServer, llm_server  # noqa: E402 - found by the line above

SERVER = {"ttft_s": 0.1, "tpot_s": 0.01, "stall_s": 20.0}
ENVIRONMENT = {"GUIDELLM__MAX_WORKER_PROCESSES": "2"}  # ten start slowly on a small machine
LONGEST_S = 240  # a tool that takes longer does not end by itself
STOPPED_S, RUNNING_S = 0.2, 0.05  # of a client whose process is slow
WITHIN = 0.1
WITHIN_MS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder of the tools' environments")
    parser.add_argument("--output", type=Path, required=True, help="folder of truth.jsonl")
    parser.add_argument("--tool", action="append", choices=[tool.name for tool in TOOLS], help="these tools alone")
    parser.add_argument("--behaviour", action="append", choices=BEHAVIOURS, help="these behaviours alone")
    parser.add_argument("--again", action="store_true", help="only what was wrong so far; a right result counts")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "truth.jsonl"
    cache = options.cache.resolve()
    tokenizer = local_tokenizer(installed(TOOLS[1], cache)[0] / "python", cache, ROOT / "docs" / "loadtest.md")
    for tool in TOOLS:
        if options.tool and tool.name not in options.tool:
            continue
        bin_dir, version = installed(tool, cache)
        for behaviour in options.behaviour or BEHAVIOURS:
            if options.again and not wrong_so_far(path, tool.name, behaviour):
                continue
            row = {"behaviour": behaviour, "tool": tool.name, "version": version}
            row |= one_run(tool, bin_dir, behaviour, tokenizer)
            print(json.dumps(row), flush=True)
            keep(path, row)


def wrong_so_far(path: Path, tool: str, behaviour: str) -> bool:
    rows = map(json.loads, path.read_text().splitlines())
    return any((row["tool"], row["behaviour"], row["right"]) == (tool, behaviour, False) for row in rows)


def keep(path: Path, row: dict[str, Any]) -> None:
    """Write a row in place of an earlier one of its tool and behaviour, in the order of both."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    names, order = [tool.name for tool in TOOLS], list(BEHAVIOURS)
    rows = [one for one in rows if (one["behaviour"], one["tool"]) != (row["behaviour"], row["tool"])] + [row]
    rows.sort(key=lambda one: (order.index(one["behaviour"]), names.index(one["tool"])))
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def one_run(tool: Tool, bin_dir: Path, behaviour: str, tokenizer: Path) -> dict[str, Any]:
    with llm_server(behaviour, **SERVER) as server, tempfile.TemporaryDirectory() as folder:
        load = Load(server.url, Path(folder), tokenizer)
        program, *words = tool.command(load)
        started = time.monotonic()
        with load.output.open("w") as output:
            process = subprocess.Popen(
                [str(bin_dir / program), *words],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, **ENVIRONMENT},
            )
            ended = watched(process, server, load.requests, slow=behaviour == "slow-client")
        truth = server.truth()
        seconds = round(time.monotonic() - started, 1)
        try:
            seen = tool.read(load) if ended else None
        except (OSError, KeyError, IndexError, TypeError, ValueError) as problem:
            print(f"{type(problem).__name__}: {problem}", load.output.read_text()[-2000:])
            seen = None
    counted = truth[tool.asked_first :][: load.requests]  # it may go on sending until the last of them has ended
    return judged(counted, seen, ended=ended, slow=behaviour == "slow-client") | {
        "exit_code": process.returncode,
        "seconds": seconds,
    }


def watched(process: subprocess.Popen[bytes], server: RunningServer, requests: int, *, slow: bool) -> bool:
    """Wait for a tool; if it is to be slow, stop it again and again while it sends. False if it did not end."""
    deadline = time.monotonic() + LONGEST_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            signal_all(process.pid, signal.SIGKILL)
            process.wait()
            return False
        served = server.truth() if slow else []
        if served and not (len(served) >= requests and all(one["good"] for one in served)):
            signal_all(process.pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            signal_all(process.pid, signal.SIGCONT)
        time.sleep(RUNNING_S)
    return True


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for one in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)


def judged(truth: list[dict[str, Any]], seen: Seen | None, *, ended: bool, slow: bool) -> dict[str, Any]:
    """Return what was true, what was seen, whether the tool is right, and a cell of the table.

    `slow`: the client itself was stopped, and a tool that doubts its figures is right.
    """
    good = [one for one in truth if one["good"]]
    ttft_ms, tpot_ms = (
        round(1000 * statistics.median(values), 2)
        for values in (
            [one["first_s"] - one["arrived_s"] for one in good],
            [(one["last_s"] - one["first_s"]) / (one["asked"] - 1) for one in good],
        )
    ) if good else (None, None)  # fmt: skip
    row = {"sent": len(truth), "good": len(good), "ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    row["asked"] = sorted({one["asked"] for one in truth})
    row["api"] = sorted({one["api"] for one in truth})
    row["ignore_eos"] = all(one["request"].get("ignore_eos") for one in truth)
    if seen is None:
        return row | {"right": False, "cell": "wrong: no report" if ended else "wrong: does not end"}
    row |= {"seen_good": seen.good, "seen_ttft_ms": seen.ttft_ms, "seen_tpot_ms": seen.tpot_ms}
    wrong = [] if abs(seen.good - len(good)) <= 1 else [f"{seen.good} good of {len(truth)}, {len(good)} were"]
    for name, was, said in (("TTFT", ttft_ms, seen.ttft_ms), ("TPOT", tpot_ms, seen.tpot_ms)):
        if was is not None and not close(was, said):
            wrong.append(f"{name} {'none' if said is None else f'{said:.3g} ms'}, was {was:.3g} ms")
    row["doubted"] = seen.doubted
    if slow and seen.doubted:
        return row | {"right": True, "cell": "; ".join(["right: says that the client was late", *wrong])}
    return row | {"right": not wrong, "cell": f"wrong: {'; '.join(wrong)}" if wrong else "right"}


def close(was: float, said: float | None) -> bool:
    return said is not None and abs(said - was) <= max(WITHIN * was, WITHIN_MS)


if __name__ == "__main__":
    main()
