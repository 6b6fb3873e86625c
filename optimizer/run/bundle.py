"""`optimize bundle`: write a finished run's recommendation as files for production."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from deploy.bundle import Bundle, bundle_from_recommendation, write_bundle
from deploy.plan import BundleOptions
from deploy.render import TARGETS, Target
from deploy.scaling import DEFAULT_MAX_REPLICAS
from loadgen.errors import BadInput
from loadgen.records.formats import format_rate
from model_repo.repository.own_model import CONFIG_FILE, own_engine, with_members
from model_repo.repository.read import NotOurRepository, engine_from_repository
from model_repo.runtime.tritune_gpu.tensorrt_engine import METADATA_FILE
from model_repo.spec import OWN, Backend, Engine, ServingConfig
from optimizer.engines.cache import EngineMetadata
from optimizer.errors import explained
from optimizer.run.own_copies import own_text
from optimizer.run.recommendation import BUNDLE_FOLDER
from search.labels import member_name
from search.records.autoscale import read_autoscale
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation
from search.records.trial import ConfigRecord
from search.trials.trial import config_from_record


def bundle_run(
    run_dir: Path,
    *,
    target: Target | Literal["all"],
    options: BundleOptions,
    loadtest_image: str | None = None,
    output: Path | None = None,
    force: bool = False,
) -> tuple[Bundle, Path, Path | None]:
    """Render the run's bundle and write it to `output`, by default `bundle` in the run's directory.

    Returns the bundle, its folder, and the folder to which the old content was moved, None if nothing was kept.
    With `force` the old content of that folder is kept next to it. Raises UserError: BadInput for a run or an
    option from which no bundle can be made, and for a folder that holds anything but an unchanged bundle.
    """
    targets = TARGETS if target == "all" else (target,)
    found = read_recommendation(run_dir)
    config = winner_of(run_dir, found)
    folder = run_dir / BUNDLE_FOLDER if output is None else output
    if run_dir.resolve().is_relative_to(folder.resolve()):  # --force would move the run away
        raise BadInput(f"--output {folder} holds the run itself.", "Give another folder for the bundle.")
    scales = (options.rate_per_s, options.peak_rate_per_s, options.ramp_s, options.start_s, options.max_replicas)
    judged = read_autoscale(run_dir) if scales == (None, None, None, None, DEFAULT_MAX_REPLICAS) else None
    options = replace(options, tensorrt_version=_tensorrt_version(config), judged=judged)
    trace, lengths = (_read_numbers(run_dir, name) for name in (found.workload.trace, found.workload.lengths))
    bundle = bundle_from_recommendation(
        found,
        config,
        options=options,
        targets=targets,
        loadtest_image=loadtest_image,
        trace=trace,
        lengths=lengths,
    )
    with explained():
        kept = write_bundle(bundle, folder, force=force)
    return bundle, folder, kept


def winner_of(run_dir: Path, found: RecommendationRecord) -> ServingConfig:
    """Return the winner with its engine, from the run's model repository. Raises BadInput if it is incomplete."""
    label = found.winner.config.engine
    backend, _, precision = label.partition("-")
    known = next((name for name in get_args(Backend) if name == backend), None)
    if known is None:
        raise BadInput(
            f"The recommendation in {run_dir} names the engine {label}, which this version does not know.",
            "Use the version of tritune that made the run.",
        )
    model_dir = run_dir / found.repository / found.model.name
    if known == OWN:
        return _own_winner(model_dir, found)
    try:
        engine = engine_from_repository(model_dir, backend=known, precision=precision)
        return config_from_record(found.winner.config, [engine])
    except (NotOurRepository, ValueError) as error:
        raise _not_whole(error, run_dir) from error


def _own_winner(model_dir: Path, found: RecommendationRecord) -> ServingConfig:
    """Return the winner of a user's own model from its copy in the run, with the texts that were measured."""
    record, on_gpu = found.winner.config, bool(found.machine.gpus)
    try:
        root = model_dir.parent
        members = tuple(_measured(root / member_name(one), one, on_gpu=on_gpu) for one in record.members)
        engine = with_members(_measured(model_dir, record, on_gpu=on_gpu), members)
    except (OSError, ValueError) as error:
        raise _not_whole(error, model_dir.parent.parent) from error
    return config_from_record(record, [engine])


def _measured(folder: Path, record: ConfigRecord, *, on_gpu: bool) -> Engine:
    return replace(
        own_engine(folder, own_text(folder / CONFIG_FILE), on_gpu=on_gpu), precision=member_name(record)
    )


def _not_whole(error: Exception, run_dir: Path) -> BadInput:
    return BadInput(
        f"The run's model repository is not whole: {error}.",
        f"Go on with the run, which writes it anew: optimize --resume {run_dir}",
    )


def _read_numbers(run_dir: Path, name: str | None) -> str | None:
    """Return the lines of the run's file of this name without comments; None for no name. Raises BadInput."""
    if name is None:
        return None
    try:
        lines = (run_dir / name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"The run's file {run_dir / name} cannot be read: {error}.",
            "Restore the run's file, or run optimize again.",
        ) from error
    numbers = (line.partition("#")[0].strip() for line in lines)
    return "".join(f"{number}\n" for number in numbers if number)


def _tensorrt_version(config: ServingConfig) -> str | None:
    """Return the TensorRT version that built the engine, from its metadata; None if there is none."""
    path = dict(config.engine.files).get(METADATA_FILE)
    if config.engine.backend != "tensorrt" or path is None:
        return None
    try:
        return EngineMetadata.model_validate_json(path.read_bytes()).library_version
    except (OSError, ValidationError):
        return None


def show_bundle(bundle: Bundle, folder: Path, kept: Path | None) -> None:
    """Print the bundle's folder, its number of replicas and its assumptions on stdout."""
    from loadgen.console import SafeConsole

    plan, scaling = bundle.plan, bundle.plan.scaling
    console = SafeConsole(highlight=False, soft_wrap=True)
    console.print(f"The bundle is in {folder}; its README.md explains how to roll it out.")
    if kept is not None:
        console.print(f"  The folder that was there is now {kept}.")
    console.print(
        f"  {scaling.min_replicas} to {scaling.max_replicas} replicas of {plan.serving_image}, "
        f"one for each {format_rate(scaling.target_rate_per_s)} requests/s"
    )
    console.print(f"  Runtime: {plan.runtime_words}, as it was measured")
    if plan.renamed:
        console.print(f"  Kubernetes does not take the name {plan.title}: there it is called {plan.name}.")
    for text in scaling.traffic.assumed:
        console.print(f"  Assumed: {text}.")
