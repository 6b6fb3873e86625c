"""`bundle_from_recommendation`: the files that take a recommendation to production, and their one atomic write."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploy.containers import checked_image
from deploy.errors import BundleRefused
from deploy.manifest import MANIFEST_FILE, first_foreign, read_manifest, remove_listed, write_manifest
from deploy.plan import plan_for
from deploy.render import EMBEDDED_REPOSITORY, NATIVE_REPOSITORY, TARGETS, render_files
from deploy.smoke import LENGTHS_FILE, MOST_BYTES, TRACE_FILE, smoke_file
from model_repo.config_pbtxt import NATIVE_BACKENDS, render_config_pbtxt
from model_repo.layout import VERSION, place, runtime_files, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from deploy.manifest import Manifest
    from deploy.plan import BundleOptions, Plan
    from deploy.render import Target
    from model_repo.config_pbtxt import Runtime
    from model_repo.spec import ServingConfig
    from search.records import RecommendationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What is written: path -> text, and path -> the file that is copied there. Paths are relative, with `/`."""

    plan: Plan
    texts: Mapping[str, str]
    copies: Mapping[str, Path]


def bundle_from_recommendation(
    found: RecommendationRecord,
    config: ServingConfig,
    *,
    options: BundleOptions | None = None,
    targets: Collection[Target] = TARGETS,
    loadtest_image: str | None = None,
    trace: str | None = None,
    lengths: str | None = None,
) -> Bundle:
    """The bundle for a recommendation: pure, and the same for equal arguments. Raises BundleRefused.

    `trace` is the text of the recorded arrivals, where the recommendation is about such, and `lengths` that of the
    lengths of requests.
    `config` is the winner's configuration with its engine's files.
    """
    if found.demand.shared_memory != "none":
        raise BundleRefused(
            "This promise is for clients that share memory with the server; those of a bundle come by network.",
            "Run optimize without --shared-memory, or copy the run's model repository beside the clients.",
        )
    plan = plan_for(found, config, options)
    if loadtest_image is not None:
        checked_image(loadtest_image, "--loadtest-image")
    texts = render_files(plan, targets=targets, loadtest_image=loadtest_image)
    for name, text in ((TRACE_FILE, trace), (LENGTHS_FILE, lengths)):
        if name in plan.smoke.files and text is not None:
            kept = smoke_file(text, MOST_BYTES // len(plan.smoke.files))
            texts |= {f"{folder}/{name}": kept for folder in _smoke_folders(targets)}
    copies: dict[str, Path] = {}
    for root, runtime in _repositories(config).items():
        folder = f"{root}/{config.engine.model_name}"
        texts[f"{folder}/config.pbtxt"] = render_config_pbtxt(config, runtime=runtime)
        copies |= {f"{folder}/{VERSION}/{name}": source for name, source in config.engine.files}
        if runtime == "python":
            own = runtime_files(config.engine).items()
            copies |= {f"{folder}/{VERSION}/{name}": source for name, source in own}
    return Bundle(plan=plan, texts=dict(sorted(texts.items())), copies=dict(sorted(copies.items())))


def write_bundle(bundle: Bundle, folder: Path, *, force: bool = False) -> Path | None:
    """Write the bundle to `folder`, whole or not at all. A bundle that nobody changed is replaced.

    With `force` whatever stands there is kept beside it as `FOLDER.old`, or `FOLDER.old-2` and so on. Returns what
    was kept; None: nothing. Raises BundleRefused without `force` if `folder` holds anything but an
    unchanged bundle, and RepositoryWriteFailed.
    """
    folder = folder.resolve()
    with writing(folder):
        manifest = None if force or _is_free(folder) else _unchanged(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.parent / tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
        try:
            _fill(draft, bundle)
            old = _step_aside(folder)
            try:
                draft.rename(folder)
            except OSError:
                if old is not None:
                    old.rename(folder)
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    gone = old is None or (manifest is not None and remove_listed(old, manifest))
    return None if gone else old


def _fill(draft: Path, bundle: Bundle) -> None:
    for path, text in bundle.texts.items():
        _parent_made(draft / path).write_text(text, encoding="utf-8")
    copied: dict[Path, Path] = {}
    for path, source in bundle.copies.items():
        target = _parent_made(draft / path)
        # A model may be large: both repositories share one copy of it.
        place(copied.get(source, source), target, copy=source not in copied)
        copied.setdefault(source, target)
    write_manifest(draft)
    draft.chmod(0o755)
    _to_disk(draft)


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _unchanged(folder: Path) -> Manifest:
    """The manifest of the bundle in `folder`. Raises BundleRefused if something else is in it, too."""
    advice = f"Give another folder, or --force, which keeps this one as {folder.name}.old"
    if not folder.is_dir():
        raise BundleRefused(f"--output {folder} is a file.", "Give a folder for the bundle.")
    manifest = read_manifest(folder)
    if manifest is None:
        raise BundleRefused(
            f"--output {folder} is not empty and not a bundle (it has no valid {MANIFEST_FILE}), "
            "so it is not replaced.",
            advice,
        )
    foreign = first_foreign(folder, manifest)
    if foreign is not None:
        raise BundleRefused(f"--output {folder} is not replaced: {foreign}.", advice)
    return manifest


def _step_aside(folder: Path) -> Path | None:
    """Rename `folder` to a free name beside it, and return that; None if there is nothing worth keeping."""
    if not folder.exists():
        return None
    if _is_free(folder):
        folder.rmdir()
        return None
    beside = (
        folder.with_name(f"{folder.name}.old{suffix}") for suffix in ("", *(f"-{n}" for n in range(2, 10_000)))
    )
    old = next(path for path in beside if not os.path.lexists(path))
    return folder.rename(old)


def _smoke_folders(targets: Collection[Target]) -> Iterator[str]:
    """Where a smoke test runs from."""
    if "compose" in targets:
        yield "compose"
    if "kubernetes" in targets:
        yield "kubernetes/smoke"
        yield "kubernetes/components/argo-rollouts"


def _repositories(config: ServingConfig) -> dict[str, Runtime]:
    """Folder -> what runs the engine in it: the container's own backend where it has one, and ours."""
    repositories: dict[str, Runtime] = {}
    if config.engine.backend in NATIVE_BACKENDS:
        repositories[NATIVE_REPOSITORY] = "native"
    if config.engine.device == "gpu" or config.engine.backend == "onnxruntime":
        repositories[EMBEDDED_REPOSITORY] = "python"
    return repositories


def _parent_made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _to_disk(folder: Path) -> None:
    """Files that a rename makes visible must not be empty after a crash."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
