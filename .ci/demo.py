"""Run `make demo` and judge its result: `.venv/bin/python .ci/demo.py`.

The demo has to certify at least `LEAST_SHARE` of the rate of a closed loop on the same configuration right after
it, in its slowest seconds; and its bundle, served by its own recipe in an empty environment, has to pass its own
check and smoke job. One failure is repeated. Two are red, unless CPU contention, stalls or an unsteady speed were
measured in both of these runs.
Every try is printed and kept in `build/demo.jsonl`.
"""

# ruff: noqa: T201 - it prints its result

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from disturbance import Disturbance, Watch  # noqa: E402 - found by the line above
from served_recipes import served_by_its_recipes  # noqa: E402

from loadgen.exit_codes import TABLE  # noqa: E402
from loadgen.measurement.cpu_contention import mark_of  # noqa: E402
from loadgen.records.record import LoadTestRecord, TimelineRecord  # noqa: E402
from search.records.run_files import recommendation_if_any  # noqa: E402
from search.records.trial import TrialRecord  # noqa: E402
from search.study.drift import variation_of  # noqa: E402

LEAST_SHARE = 0.6
"""Least share of the closed loop's rate: an open loop within a p99 leaves some of the server idle."""

CLOSED_LOOP_S, SLOWEST_S = 30, 2.0
"""A p99 is met at the rate of the machine's slowest seconds: on some, executions take up to 1.5
times as long from one second to the next, with nothing stolen."""

STALLED_SHARE = 0.005
"""Stalls that count and take this share of a run leave less than a p99 of 50 ms to the server."""

USERS = 16
"""Callers of the closed loop: two batches of 8 are always under way, far below the latency limit."""

MOST_TRIES = 2
ARTEFACT = ROOT / "build" / "demo.jsonl"

EXITS = {row.code: row.meaning for row in TABLE}
"""The meaning of the exit codes of `optimize`."""

OF_A_SLOW_MACHINE = {0, 96, 98, 99}
"""Exit codes that the speed of the machine can be the reason for."""

NOT_RUN = -1
"""Stands for the exit code if make failed before `optimize` ran, or was ended itself."""

FAILED_MAKE = re.compile(r"make(?:\[\d+\])?: \*\*\* \[.*\bdemo\] Error (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One demo. Rates are None if no configuration was found; `disturbed` is the disturbance, if any.

    `bundle_codes` are the exit codes of the bundle's own check and smoke job; None if there is no bundle.
    """

    exit_code: int
    certified_per_s: float | None = None
    closed_loop_per_s: float | None = None
    bundle_codes: tuple[int, int] | None = None
    load_s: float = 0.0
    disturbed: str | None = None

    @property
    def fault(self) -> str | None:
        """The fault of the demo; None if there is none."""
        if self.exit_code != 0:
            meaning = EXITS.get(self.exit_code, "optimize did not run, or was ended from outside")
            return f"exit code {self.exit_code}: {meaning}"
        if self.certified_per_s is None or self.closed_loop_per_s is None:
            return "exit code 0 without a certified rate or a closed loop to compare it with"
        if not self.certified_per_s >= LEAST_SHARE * self.closed_loop_per_s:
            share = f"less than {LEAST_SHARE:.0%} of the {self.closed_loop_per_s:.0f}/s of a closed loop"
            return f"certified {self.certified_per_s:.0f}/s, {share}"
        if self.bundle_codes != (0, 0):
            return f"the bundle's own check and smoke job ended with {self.bundle_codes}, not with 0"
        return None

    @property
    def codes(self) -> set[int]:
        """All exit codes."""
        return {self.exit_code, *(self.bundle_codes or ())}

    @property
    def text(self) -> str:
        """In one line."""
        return (
            f"{self.fault or self._rates}; {self.load_s:.0f} s of load; "
            f"{self.disturbed or 'neither contention nor stalls that count'}"
        )

    @property
    def _rates(self) -> str:
        certified, closed = self.certified_per_s, self.closed_loop_per_s
        return f"certified {certified:.0f}/s, a closed loop does {closed:.0f}/s at its slowest"


def decided(tries: list[Try]) -> Literal["green", "red", "again"]:
    """Return the verdict on the demos so far; the latest is the last."""
    last = tries[-1]
    if last.fault is None:
        return "green"
    if not last.codes <= OF_A_SLOW_MACHINE:
        return "red"
    if len(tries) < MOST_TRIES:
        return "again"
    return "green" if all(one.disturbed for one in tries) else "red"


def disturbance_in(run: Path, watched: Disturbance) -> str | None:
    """Return why the run may have measured wrong: contention by its own records, stalls as measured meanwhile."""
    contention = [trial.contention for trial in trials_of(run) if trial.contention is not None]
    found = recommendation_if_any(run)
    seen = found.contention if found is not None else reduce(add, contention) if contention else None
    reasons = [mark_of(seen), variation_of(trial.replay for trial in trials_of(run)).text]
    if watched.stalled_s >= STALLED_SHARE * watched.watched_s > 0:
        worst = f"{watched.worst_stall_ms:.0f} ms at the worst"
        reasons.append(
            f"a processor stood still for {watched.stalled_s:.1f} of {watched.watched_s:.0f} s ({worst})"
        )
    return ", ".join(reason for reason in reasons if reason) or None


def trials_of(run: Path) -> list[TrialRecord]:
    """Return all finished trials; none if the run ended before the first."""
    path = run / "trials.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [TrialRecord.model_validate_json(line) for line in lines]


def load_seconds(run: Path) -> float:
    """Return the seconds of load of the whole run if it found something, else of its trials."""
    found = recommendation_if_any(run)
    return found.seconds.load if found is not None else sum(trial.load_s for trial in trials_of(run))


def exit_code_of(make_code: int, output: str) -> int:
    """The exit code of `optimize`, which make prints and does not pass on."""
    failed = FAILED_MAKE.findall(output)
    return 0 if make_code == 0 else int(failed[-1]) if failed else NOT_RUN


def slowest_per_s(timeline: TimelineRecord) -> float:
    """The rate of the slowest seconds of a run."""
    count = max(1, round(SLOWEST_S / timeline.bin_s))
    windows = range(len(timeline.due_per_s) - count + 1)
    return min(statistics.fmean(timeline.due_per_s[first : first + count]) for first in windows)


def closed_loop_per_s(run: Path) -> float:
    """Return the lowest rate of `USERS` callers that wait for each response, on the run's configuration."""
    commands = Path(sys.executable).parent
    with subprocess.Popen([commands / "optimize", "serve", run], stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            served = re.match(r"(\S+) is served at (http://\S+)", serving.stdout.readline())
            assert served is not None, "optimize serve did not come up"
            load = [commands / "loadtest", served[2], "--model", served[1], "--concurrency", str(USERS)]
            done = subprocess.run(
                [*load, "--duration", f"{CLOSED_LOOP_S}s", "--json"], stdout=subprocess.PIPE, check=True
            )
        finally:
            serving.terminate()  # a shell's background process ignores SIGINT
    timeline = LoadTestRecord.model_validate_json(done.stdout).timeline
    assert timeline is not None
    return slowest_per_s(timeline)


def bundle_codes_of(run: Path) -> tuple[int, int]:
    """Serve the run's bundle by its own recipe; return the exit codes of its README's check and its smoke job."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served_by_its_recipes(run / "bundle", Path(folder).resolve()) as served,
    ):
        (checked, said), (smoked, more) = served.readme_check(), served.smoke()
    print(said, more, flush=True)
    return checked, smoked


def one_try() -> Try:
    """Run the demo as in the README."""
    before = set((ROOT / "runs").glob("*"))
    with Watch() as watch:
        code = _shown(["make", "demo"])
        new = set((ROOT / "runs").glob("*")) - before
        if len(new) != 1:
            return Try(exit_code=code)
        (run,) = new
        found = recommendation_if_any(run)
        certificate = None if found is None else found.winner.certificate
        certified = code == 0 and certificate is not None
        closed_per_s = closed_loop_per_s(run) if certified else None
        bundle_codes = bundle_codes_of(run) if certified else None
    return Try(
        exit_code=code,
        certified_per_s=None if certificate is None else certificate.rate_per_s,
        closed_loop_per_s=closed_per_s,
        bundle_codes=bundle_codes,
        load_s=load_seconds(run),
        disturbed=disturbance_in(run, watch.seen),
    )


def _shown(command: list[str]) -> int:
    output = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            print(line, end="", flush=True)
    return exit_code_of(process.returncode, "".join(output))


def main() -> int:
    """0 if the demo is good, or was disturbed whenever it was not; else 1, or 130 if it was interrupted."""
    ARTEFACT.parent.mkdir(exist_ok=True)
    ARTEFACT.write_text("")
    tries: list[Try] = []
    decision = "again"
    while decision == "again":
        tries.append(one_try())
        decision = decided(tries)
        with ARTEFACT.open("a") as file:
            file.write(json.dumps(asdict(tries[-1])) + "\n")
        print(f"demo, try {len(tries)}: {tries[-1].text}: {decision}", flush=True)
    if decision == "green":
        return 0
    return 130 if tries[-1].exit_code == 130 else 1


if __name__ == "__main__":
    sys.exit(main())
