"""`bundle_from_recommendation`: the files that take a recommendation to production, and their one atomic write."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploy.errors import BundleRefused
from deploy.plan import plan_for
from deploy.render import EMBEDDED_REPOSITORY, NATIVE_REPOSITORY, TARGETS, render_files
from deploy.smoke import LENGTHS_FILE, MOST_BYTES, TRACE_FILE, smoke_file
from model_repo.config_pbtxt import NATIVE_BACKENDS, render_config_pbtxt
from model_repo.layout import VERSION, place, replace_folder, runtime_files, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

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


def write_bundle(bundle: Bundle, folder: Path) -> Path:
    """`folder` with all of the bundle, or as it was: what stood there before is replaced in one step.

    Raises RepositoryWriteFailed.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.parent / tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
        try:
            for path, text in bundle.texts.items():
                _parent_made(draft / path).write_text(text, encoding="utf-8")
            copied: dict[Path, Path] = {}
            for path, source in bundle.copies.items():
                target = _parent_made(draft / path)
                # A model may be large: both repositories share one copy of it.
                place(copied.get(source, source), target, copy=source not in copied)
                copied.setdefault(source, target)
            draft.chmod(0o755)
            _to_disk(draft)
            replace_folder(folder, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


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
