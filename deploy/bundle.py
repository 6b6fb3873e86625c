"""Render the files that take a recommendation to production, and write them atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.images import CONSTRAINTS_FILE, Sources, checked_image
from deploy.plan import BundleOptions, Plan, plan_for
from deploy.render import MANIFEST_FILE, NATIVE_REPOSITORY, REPOSITORY, TARGETS, Target, render_files
from deploy.smoke import LENGTHS_FILE, MAX_BYTES, TRACE_FILE, smoke_file
from loadgen.errors import BadInput
from loadgen.files import flush_folder, sha256_of
from loadgen.processes import scratch_folder
from model_repo.repository.config_pbtxt import render_config_pbtxt
from model_repo.repository.own_model import CONFIG_FILE, own_files, own_versions
from model_repo.repository.write import place, runtime_files, writing
from model_repo.spec import VERSION, Runtime, ServingConfig
from search.records.recommendation import RecommendationRecord

SMOKE_FOLDERS: tuple[tuple[Target, str], ...] = (
    ("compose", "compose"),
    ("kubernetes", "kubernetes/smoke"),
    ("kubernetes", "kubernetes/components/argo-rollouts"),
)
"""From these folders of the targets a smoke test runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The content of a bundle by path: texts, bytes, and files to copy there. Paths are relative, with `/`."""

    plan: Plan
    texts: Mapping[str, str]
    data: Mapping[str, bytes] = field(repr=False)
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
    sources: Sources | None = None,
) -> Bundle:
    """Return the bundle for a recommendation: equal for equal arguments. Raises BadInput.

    `config` is the winner's configuration with its engine's files. `trace` is the text of recorded arrivals, and
    `lengths` that of request lengths, if the recommendation is for such a workload. `sources` None: the packages
    that the run recorded, and those of this installation.
    """
    if found.workload.shared_memory != "none":
        raise BadInput(
            "The certified rate is for clients with shared memory; the clients of a bundle use the network.",
            "Run optimize without --shared-memory, or serve the run's model repository on the clients' machine.",
        )
    plan = plan_for(found, config, options, sources)
    if loadtest_image is not None:
        checked_image(loadtest_image, "--loadtest-image")
    texts = render_files(plan, targets=targets, loadtest_image=loadtest_image)
    for name, text in ((TRACE_FILE, trace), (LENGTHS_FILE, lengths)):
        if name in plan.smoke.files and text is not None:
            kept = smoke_file(text, MAX_BYTES // len(plan.smoke.files))
            texts |= {f"{folder}/{name}": kept for target, folder in SMOKE_FOLDERS if target in targets}
    copies: dict[str, Path] = {}
    repositories: dict[str, Runtime] = {REPOSITORY: plan.runtime.runtime}  # what was measured
    if plan.offers_native:
        repositories[NATIVE_REPOSITORY] = "native"
    for (root, runtime), served in product(repositories.items(), config.models):
        engine = served.engine
        folder = f"{root}/{engine.model_name}"
        texts[f"{folder}/config.pbtxt"] = render_config_pbtxt(served, runtime=runtime)
        copies |= {f"{folder}/{VERSION}/{name}": source for name, source in engine.files}
        if engine.own is not None:
            copies |= {f"{folder}/{name}": source for name, source in own_files(engine.own.folder)}
            texts |= {f"{folder}/{name}/.keep": "" for name in _empty_versions(engine.own.folder)}
        if runtime != "native":
            own = runtime_files(engine, runtime).items()
            copies |= {f"{folder}/{VERSION}/{name}": source for name, source in own}
    texts[CONSTRAINTS_FILE] = plan.sources.constraints
    data = {f"images/{plan.sources.wheel_name}": plan.sources.wheel}
    return Bundle(plan=plan, texts=dict(sorted(texts.items())), data=data, copies=dict(sorted(copies.items())))


def write_bundle(bundle: Bundle, folder: Path, *, force: bool = False) -> Path | None:
    """Write the bundle to `folder`, whole or not at all; replace an unchanged bundle.

    With `force` the old content is kept next to it as `FOLDER.old`, or `FOLDER.old-2` and so on. Returns the path
    of the kept content, None if there is none. Raises RepositoryWriteFailed, and without `force` BadInput if
    `folder` holds anything but an unchanged bundle.
    """
    folder = folder.resolve()
    with writing(folder):
        if not force:
            _check_unchanged(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder("bundle", folder.parent) as draft:
            _fill(draft, bundle)
            old = step_aside(folder)
            try:
                draft.rename(folder)
            except OSError:
                if old is not None:
                    old.rename(folder)
                raise
    if old is None or force or first_foreign(old) is not None:  # somebody may have put a file there meanwhile
        return old
    shutil.rmtree(old, ignore_errors=True)
    return None


def _empty_versions(own: Path) -> list[str]:
    """Return the version folders without a file, which neither git nor a bucket keeps by itself."""
    filled = {name.partition("/")[0] for name, _ in own_files(own)}
    return [name for name in own_versions(own) if name not in filled]


def _fill(draft: Path, bundle: Bundle) -> None:
    for path, text in bundle.texts.items():
        _parent_made(draft / path).write_text(text, encoding="utf-8")
    for root, served in product((REPOSITORY, NATIVE_REPOSITORY), bundle.plan.config.models):
        own, path = served.engine.own, f"{root}/{served.engine.model_name}/{CONFIG_FILE}"
        if own is not None and path in bundle.texts:
            shutil.copymode(own.folder / CONFIG_FILE, draft / path)
    for path, content in bundle.data.items():
        _parent_made(draft / path).write_bytes(content)
    copied: dict[Path, Path] = {}
    for path, source in bundle.copies.items():
        target = _parent_made(draft / path)
        # A model may be large: both repositories share one copy of it.
        place(copied.get(source, source), target, copy=source not in copied)
        if bundle.plan.config.engine.own is not None:  # programs stay programs, and keys private
            target.chmod(source.stat().st_mode & 0o777 | 0o600)
        copied.setdefault(source, target)
    _write_manifest(draft)
    draft.chmod(0o755)
    flush_folder(draft)


class Manifest(BaseModel):
    """`manifest.json`: every other file of the bundle and its SHA-256: they tell if it is unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    files: dict[str, str] = Field(description="Path in the bundle, with `/` -> SHA-256.")


def _write_manifest(folder: Path) -> None:
    """Write the manifest of all files in `folder`."""
    hashes: dict[int, str] = {}  # by inode: both repositories share one copy of a large model
    files: dict[str, str] = {}
    for name in sorted(_names(folder)):
        inode = (folder / name).stat().st_ino
        if inode not in hashes:
            hashes[inode] = sha256_of(folder / name)
        files[name] = hashes[inode]
    text = Manifest(files=files).model_dump_json(indent=2) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def first_foreign(folder: Path) -> str | None:
    """Return what distinguishes `folder` from an unchanged bundle: no manifest, an unlisted or a changed file.

    None if it is one. Files of the bundle that are missing, and empty folders, do not count: no work is in them.
    """
    try:
        path = folder / MANIFEST_FILE  # to read a FIFO can take for ever
        manifest = Manifest.model_validate_json(path.read_bytes() if path.is_file() else b"")
    except (OSError, ValidationError):
        return f"it is not empty and not a bundle (it has no valid {MANIFEST_FILE})"
    for name in sorted(_names(folder)):
        if name == MANIFEST_FILE:
            continue
        if name not in manifest.files:
            return f"{name!r} is not of the bundle"
        try:
            if not (folder / name).is_file() or sha256_of(folder / name) != manifest.files[name]:
                return f"{name!r} was changed"
        except OSError as error:
            return f"{name!r} cannot be read: {error.strerror}"
    return None


def _names(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files and links below `folder`."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _check_unchanged(folder: Path) -> None:
    """Raise BadInput if `folder` holds anything but a bundle as it was written."""
    if _is_free(folder):
        return
    if not folder.is_dir():
        raise BadInput(f"--output {folder} is a file.", "Give a folder for the bundle.")
    foreign = first_foreign(folder)
    if foreign is not None:
        raise BadInput(
            f"--output {folder} is not replaced: {foreign}.",
            f"Give another folder, or --force, which renames this one to {folder.name}.old",
        )


def step_aside(folder: Path, suffix: str = "old") -> Path | None:
    """Rename a folder or file to a free name next to it, with this suffix; None if there was nothing to keep.

    Raises OSError.
    """
    if not folder.exists():
        return None
    if _is_free(folder):
        folder.rmdir()
        return None
    beside = (
        folder.with_name(f"{folder.name}.{suffix}{number}")
        for number in ("", *(f"-{n}" for n in range(2, 10_000)))
    )
    old = next(path for path in beside if not os.path.lexists(path))
    return folder.rename(old)


def _parent_made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
