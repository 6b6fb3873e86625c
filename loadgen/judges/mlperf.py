"""MLPerf LoadGen as a judge: what it is told, and the verdict in its own files.

"MLPerf" is a name of MLCommons. What is made here is no MLPerf score and not verified, and says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from loadgen.errors import BadInput, ClientFailed, EnvironmentFailed
from loadgen.processes import scratch_folder
from loadgen.records.record import JudgeRecord
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.load_process import LoadProcess
from loadgen.spec.plan import LoadPlan
from loadgen.traffic.arrivals import loadgen_times_ns

FIRST_LETTERS = "mlperf_log_"
FILES = tuple(f"{FIRST_LETTERS}{rest}" for rest in ("summary.txt", "detail.txt", "accuracy.json"))
"""What LoadGen writes. The last has no entries: the outputs of the model are not looked at."""

_MARK = ":::MLLOG "
_NEAR_NS = 1_000
"""The libraries' logarithms may differ in the last bit, so the end of the schedule by a ns now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What LoadGen is told. It writes to `folder`."""

    rate_per_s: float
    duration_s: float
    limit_ms: float
    quantile: float
    seed: int
    folder: str

    def to_json(self) -> str:
        """Return the text for the command line of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings of such a text."""
        return cls(**json.loads(text))


def check_installed() -> None:
    """Raise BadInput if LoadGen is not installed."""
    if find_spec("mlperf_loadgen") is None:
        raise BadInput(
            "--judge mlperf needs MLPerf LoadGen, which is not installed.",
            "Install it: pip install 'tritune[mlperf]'",
        )


@contextmanager
def loadgen_in(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for LoadGen's files; those that are complete at the end of the block go to `folder`.

    Raises EnvironmentFailed if they cannot be written there.
    """
    try:
        with scratch_folder("mlperf", folder) as scratch:
            yield scratch
            for name in FILES:
                os.replace(scratch / name, folder / name)  # noqa: PTH105 - the same on one file system
    except OSError as error:
        raise EnvironmentFailed(
            f"LoadGen's files cannot be written to {folder}: {error.strerror or error}.",
            "Make room there, or give another --keep-log FOLDER.",
        ) from error


def mlperf_generator(settings: Settings) -> LoadGenerator:
    """Return a generator whose one process lets LoadGen decide when requests leave."""
    start = partial(LoadProcess, "loadgen.judges.mlperf_process", settings.to_json())
    return LoadGenerator(start=start)


def read_verdict(folder: Path, settings: Settings, plan: LoadPlan) -> JudgeRecord:
    """Return the verdict in LoadGen's detailed log. Raises ClientFailed if there is none, or none of this plan."""
    entries = _entries(folder / FILES[1])
    try:
        version = str(entries["loadgen_version"]).split(" ")[0]
        _check_schedule(entries, plan, version)
        percentile = f"{100 * settings.quantile:.2f}"
        return JudgeRecord(
            version=version,
            verdict=entries["result_validity"],
            performance_constraints_met=entries["result_perf_constraints_met"],
            min_duration_met=entries["result_min_duration_met"],
            min_queries_met=entries["result_min_queries_met"],
            early_stopping_met=entries["early_stopping_met"],
            early_stopping=" ".join(str(entries["early_stopping_result"]).replace("*", " ").split()),
            queries=entries["result_query_count"],
            over_limit=entries["result_overlatency_query_count"],
            limit_ms=settings.limit_ms,
            quantile=settings.quantile,
            latency_ms=entries[f"result_{percentile}_percentile_latency_ns"] / 1e6,
            errors=tuple(entries["errors"]),
            folder=str(folder),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ClientFailed(
            f"MLPerf LoadGen ended without a verdict: {type(error).__name__} {error} in {FILES[1]}.",
            "Install the version that tritune was tested with: pip install mlcommons-loadgen==6.0.17",
        ) from error


def _check_schedule(entries: Mapping[str, Any], plan: LoadPlan, version: str) -> None:
    times_ns = loadgen_times_ns(plan)
    drawn = (entries["generated_query_count"], entries["generated_query_duration"])
    if drawn[0] != len(times_ns) - 1 or abs(drawn[1] - int(times_ns[-1])) > _NEAR_NS:
        raise ClientFailed(
            f"MLPerf LoadGen {version} drew another schedule than tritune expects of it: {drawn[0]:,} queries in "
            f"{drawn[1] / 1e9:.6f} s, not {len(times_ns) - 1:,} in {times_ns[-1] / 1e9:.6f} s.",
            "Install the version that tritune was tested with: pip install mlcommons-loadgen==6.0.17",
        )


def _entries(file: Path) -> dict[str, Any]:
    """Return the last value of each key of a detailed log, and the texts of all errors as `errors`."""
    found: dict[str, Any] = {}
    errors: list[str] = []
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        if not line.startswith(_MARK):
            continue
        try:
            entry = json.loads(line.removeprefix(_MARK))
        except ValueError:
            continue  # a text with quotes in it, which LoadGen does not escape
        key, value = entry["key"], entry["value"]
        if entry["metadata"]["is_error"]:
            errors.append(str(value))
        found[key] = value
    return found | {"errors": errors}
