"""`loadtest --compare`: read the record of an earlier run, and compare this one with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.records.comparison import Figure, bounds_of, check_same, compare_figures
from loadgen.records.formats import duration_option
from loadgen.records.record import ComparisonRecord, LoadRecord, LoadTestRecord


def read_baseline(path: Path, load: LoadRecord, limits: Iterable[str], *, find_max: bool) -> LoadTestRecord:
    """Read the record that an earlier run wrote with --output, for a run of this load, with these limits.

    Raises BadInput if it cannot be read, or if its figure has no bounds or was measured under another load.
    """
    try:
        record = LoadTestRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"--compare {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except ValidationError as error:
        raise BadInput(
            f"--compare {path} is not a record of loadtest: {first_problem(error)}.",
            "Write one with --output, using this version.",
        ) from error
    if record.outcome in ("untrustworthy", "interrupted"):
        raise BadInput(
            f"--compare {path} is the record of a run that was {record.outcome}.",
            "Use a run that measured its server.",
        )
    names = (check.name for check in record.checks if check.kind != "errors")
    before = _conditions(record.load, names, find_max=record.capacity is not None)
    check_same(path, before, _conditions(load, limits, find_max=find_max))
    bounds = [figure.bounds for figure in _figures(record).values()]
    if not bounds or bounds[0] is None or (bounds[0][0] == 0 if find_max else bounds[0][2] == math.inf):
        seen = record.measurement
        needed_s = None if seen is None else seen.latency_p99_bounded_after_s
        longer = "a longer one" if needed_s is None else f"one of --duration {duration_option(needed_s)} or longer"
        raise BadInput(
            f"--compare {path} has too few requests to bound its {' and '.join(_figures(record)) or 'p99'}.",
            f"Measure {longer} with --output.",
        )
    return record


def compare(baseline: LoadTestRecord, now: LoadTestRecord) -> tuple[ComparisonRecord, ...]:
    """Compare capacity for two searches, p99 for two runs; empty if one is too short to bound the figure."""
    return compare_figures(_figures(baseline), _figures(now))


def _figures(record: LoadTestRecord) -> dict[str, Figure]:
    found, seen = record.capacity, record.measurement
    if found is not None:
        rates = bounds_of(found.low_per_s, found.estimate_per_s, found.high_per_s)
        return {"highest rate": Figure("requests/s", rates, more_is_better=True)}
    if seen is None:
        return {}
    return {"p99": Figure("ms", bounds_of(seen.latency_p99_low_ms, seen.latency_p99_ms, seen.latency_p99_high_ms))}


def _conditions(load: LoadRecord, limits: Iterable[str], *, find_max: bool) -> dict[str, object]:
    """Return what must be the same in both runs. The model's name may differ: versions are compared."""
    most = "at most " if load.allow_short else ""
    rate = "none" if load.rate_per_s is None else f"{load.rate_per_s:.4g}/s"
    return {
        "arrivals": load.arrivals,
        "rate": "the highest (--find-max)" if find_max else rate,
        "limit": (" and ".join(limits) or "not known, as no rate was confirmed") if find_max else "",
        "batch size": load.batch_size,
        "shared memory": load.shared_memory,
        "format of tensors": load.format,
        "API and tokens": f"{load.api}, {load.prompt_tokens} in, {most}{load.output_tokens} out",
        "choice of outputs": sorted(load.outputs),
        "shapes": load.shapes,
    }
