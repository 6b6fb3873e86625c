"""Build and write `recommendation.json`, from a search result or from the failure of a run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

from deploy.bundle import step_aside
from deploy.images import imported_distributions, python_version, server_pins
from loadgen.errors import UserError
from loadgen.exit_codes import CODES, Status
from loadgen.files import write_atomically
from loadgen.records.formats import format_rate
from model_repo.errors import installed_version
from model_repo.native_library import runtime_here
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_model import CONFIG_FILE
from model_repo.server.options import DEFAULT_IMAGE
from model_repo.spec import ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import Hardware
from optimizer.run.own_copies import config_file, own_text
from optimizer.run.prepare import Prepared
from optimizer.run_file import objective_of, slo_of
from search.answer.recommend import withdrawn_by
from search.find_best import NothingFound, SearchResult
from search.records.confirmations import read_confirmations
from search.records.recommendation import (
    AnyRecommendation,
    FrontEndsRecord,
    MachineRecord,
    NoRecommendationRecord,
    RecommendationRecord,
    RuntimeRecord,
    SecondsRecord,
    TimeUseRecord,
)
from search.records.run_files import RECOMMENDATION_FILE, read_trials, recommendation_if_any
from search.simulator.surrogate import engine_alone_per_s
from search.workload import Workload

REPOSITORY = "model_repository"
BUNDLE_FOLDER = "bundle"
DIFF_FILE = "config.pbtxt.diff"
"""The changes to the user's own `config.pbtxt`, for `patch -p1`, if there are some."""

WITHDRAWN = "withdrawn"
PACKAGES = (
    "tritune",
    "onnxruntime-gpu",
    "onnxruntime",
    "tensorrt",
    "tensorrt-rtx-cu13-bindings",
    "cuda-bindings",
    "onnx",
    "nvidia-pytriton",
    "tritonclient",
    "locust",
    "optuna",
    "numpy",
)
"""Distributions whose versions the recommendation records, if they are installed."""

VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}")


def recommendation_record(
    config: OptimizeConfig,
    prepared: Prepared,
    workload: Workload,
    result: SearchResult,
    *,
    seconds: SecondsRecord,
    time_use: TimeUseRecord | None,
    front_ends: FrontEndsRecord | None,
    triton_version: str | None,
) -> RecommendationRecord:
    """Return the content of `recommendation.json`. `seconds` says where the time of the whole run went."""
    conclusion, served = result.conclusion, result.winner.served
    changes = (line for model in served.models for line in _changed_lines(model, config.model_config_name))
    per_s = engine_alone_per_s(served.engine, limit_ms=config.limits[0].limit_ms)
    rows = config.client_batch if served.engine.batched else 1
    return RecommendationRecord(
        tritune_version=version("tritune"),
        created_at=_now(),
        status=conclusion.status,
        status_reason=conclusion.reason,
        advice=conclusion.advice,
        model=prepared.record,
        slo=slo_of(config),
        objective=objective_of(config).record,
        workload=workload.record,
        winner=result.winner.record,
        baseline=None if result.baseline is None else result.baseline.record,
        gain=result.gain,
        start=None if result.start is None else result.start.record,
        cost=result.cost,
        alternatives=result.alternatives,
        reason=result.reason,
        seconds=seconds,
        machine=machine_record(prepared.machine),
        served=result.served,
        runtime=_runtime(config, result, triton_version),
        frontier=result.frontier if config.pareto else (),
        contention=result.contention,
        seed=config.seed,
        repository=REPOSITORY,
        config_diff=None if served.engine.own is None else "".join(changes),
        accuracy=prepared.accuracy,
        standalone_per_s=per_s / rows or None,
        let_through=front_ends,
        time_use=time_use,
    )


def _changed_lines(config: ServingConfig, name: str | None) -> Iterator[str]:
    """Yield what the configuration changes in the user's own, of this name, as a unified diff."""
    own = config.engine.own
    assert own is not None
    # Lines end with a newline alone: a form feed, say, is within one.
    texts = own_text(own.folder / CONFIG_FILE), render_config_pbtxt(config)
    before, after = (io.StringIO(text, newline="\n").readlines() for text in texts)
    path = config_file(own.folder, name).relative_to(own.folder.parent)
    for line in unified_diff(before, after, f"a/{path}" if before else "/dev/null", f"b/{path}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def failure_record(failure: UserError) -> NoRecommendationRecord:
    """Return the content of `recommendation.json` of a run that failed or found nothing."""
    return NoRecommendationRecord(
        tritune_version=version("tritune"),
        created_at=_now(),
        status=failure.status,
        exit_code=failure.exit_code,
        status_reason=failure.what,
        advice=failure.fix,
        contention=failure.contention if isinstance(failure, NothingFound) else None,
    )


def outcome_of(directory: Path, failure: UserError) -> AnyRecommendation:
    """Return how a run ended that failed or found nothing, by all that was measured in its directory.

    What an earlier process recommended there stands, unless its rate was violated since, or no rate meets the SLO:
    then it is withdrawn. If it stands and this process found nothing, the run ended with it.
    """
    nothing = failure_record(failure)
    before, withdrawn = None, None
    with suppress(UserError):  # what cannot be read decides nothing
        before = recommendation_if_any(directory)
        evidence = read_confirmations(directory), read_trials(directory)
        withdrawn = withdrawn_by(before, *evidence, failure.status)
    if withdrawn is not None:
        met = f"{format_rate(withdrawn.rate_per_s)} requests/s had been met and is withdrawn: {withdrawn.reason}."
        reason = nothing.status_reason if met in nothing.status_reason else f"{nothing.status_reason} {met}"
        return nothing.changed(status_reason=reason, withdrawn=withdrawn)
    certificate = None if before is None else before.winner.certificate
    if before is None or certificate is None:
        return nothing
    its = {name: getattr(nothing, name) for name in ("status", "exit_code", "status_reason", "advice")}
    if isinstance(failure, NothingFound) and failure.status != "interrupted":
        status: Status = "provisional" if before.provisional else "certified"
        met = f"{format_rate(certificate.rate_per_s)} requests/s met {before.slo.text}"
        times = "twice" if certificate.confirmed_again else "once"
        reason = f"{met} {times}, before the run was resumed; since then: {failure.what}"
        its |= {"status": status, "exit_code": CODES[status], "status_reason": reason}
    return before.model_copy(update=its)


def keep_failure(directory: Path, failure: UserError) -> AnyRecommendation:
    """Write `recommendation.json` of a run that failed, and return it: see `outcome_of`.

    The files that would deploy what is withdrawn get names that say so. Raises OSError.
    """
    record = outcome_of(directory, failure)
    write_recommendation(directory, record)
    if isinstance(record, NoRecommendationRecord):
        for name in (REPOSITORY, BUNDLE_FOLDER, DIFF_FILE):
            step_aside(directory / name, WITHDRAWN)
    return record


def write_recommendation(directory: Path, record: AnyRecommendation) -> None:
    """Write `recommendation.json`. Raises OSError."""
    write_atomically(directory / RECOMMENDATION_FILE, record.model_dump_json(indent=2) + "\n")


def _runtime(config: OptimizeConfig, result: SearchResult, triton_version: str | None) -> RuntimeRecord:
    engine = result.winner.served.engine
    ours = config.server == "embedded"
    return RuntimeRecord(
        server=config.server,
        runtime=runtime_here(engine) if ours else "native",
        triton_version=triton_version if VERSION.fullmatch(triton_version or "") else None,
        python=python_version() if ours else None,
        image=(config.docker_image or DEFAULT_IMAGE) if config.server == "docker" else None,
        packages=server_pins(engine.backend, gpu=engine.device == "gpu", more=imported_distributions(engine))
        if ours
        else {},
    )


def machine_record(machine: Hardware) -> MachineRecord:
    """Return the machine with the versions of our packages on it."""
    versions = {package: found for package in PACKAGES if (found := installed_version(package))}
    return MachineRecord(
        cpu=machine.cpu,
        cores=machine.logical_cores,
        memory_bytes=machine.memory_bytes,
        gpus=tuple(gpu.name for gpu in machine.gpus),
        versions=versions,
    )
