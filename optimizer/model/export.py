"""Export PyTorch models to ONNX: a factory (`package.module:callable`) or an ExportedProgram (`.pt2`).

PyTorch works in a process of its own (`export_child`), so that this one neither needs it nor keeps its memory. A
factory is the user's own code and is run as such. A `.pt2` is opened with `torch.export.load`, which unpickles
nothing but tensors here, and only if its size expressions are arithmetic, because PyTorch has SymPy evaluate them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadgen.options.declare import is_file
from loadgen.processes import scratch_folder
from optimizer.cached import NO_CACHE, ResultCache
from optimizer.child import ChildCrashed, ChildRaised, ChildTimedOut, call_in_child, machine_limits, threads
from optimizer.errors import ExportFailed, RunFailed
from optimizer.model.checks import plain, shortened
from optimizer.model.export_child import Exported, exported
from optimizer.model.export_key import KIND, key_of_program
from optimizer.model.ort_child import Tensors, difference, load_tensors, run_model
from optimizer.model_source import stem_of

EXPORT_TIMEOUT_S = 1800.0
EXPORT_TOLERANCE = 1e-3
"""PyTorch's and ONNX Runtime's results, both fp32, may differ by 1e-3 of the largest element; more fails the
export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The ONNX file of an exported model. `cached`: an earlier run exported the same."""

    path: Path
    cached: bool


def export_model(
    source: Path | str,
    folder: Path,
    *,
    cache: ResultCache = NO_CACHE,
    meanwhile: Callable[[Path], None] = lambda _: None,
) -> ExportedModel:
    """Write the model that `source` names, a `.pt2` file or a factory, as ONNX into `folder`.

    A `.pt2` in the cache is not opened. A factory is called in any case, as its weights are in the key.
    `meanwhile` is called with the file in a thread, beside the check, and anew if the export has to be repeated.

    The batch varies, and so do the axes that a factory asks for (for a `.pt2`: those it was exported with). The
    results equal PyTorch's at every batch size tried. Raises ExportFailed, and what `meanwhile` raises.
    """
    if isinstance(source, Path) and not is_file(source):
        raise ExportFailed(f"The model {source} does not exist or is not a file.", "Check the path.")
    path = folder / f"{stem_of(source)}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    key = key_of_program(source, path) if isinstance(source, Path) else None
    if key is not None and (entry := cache.find(KIND, key)) is not None:
        entry.copied(folder)
        meanwhile(path)
        return ExportedModel(path=path, cached=True)
    with scratch_folder("export") as draft:
        done = _exported(source, path, draft, cache)
        key = done.key or key
        try:
            with threads(1) as pool:
                reading = pool.submit(meanwhile, path)
                _check(source, path, draft, done.checks)
                if key is not None and not done.cached:
                    weights = path.with_name(f"{path.name}.data")
                    cache.put(KIND, key, None, {file.name: file for file in (path, weights) if file.exists()})
                reading.result()
        except ExportFailed:
            if done.key is None or not done.cached:
                raise
            cache.remove(KIND, done.key)  # something that the key does not cover has changed
            return export_model(source, folder, cache=cache, meanwhile=meanwhile)
    return ExportedModel(path=path, cached=done.cached)


def _exported(source: Path | str, target: Path, draft: Path, cache: ResultCache) -> Exported:
    """Export in a child process. Raises ExportFailed."""
    try:
        call = partial(exported, source, target, draft, cache)
        return call_in_child(call, limits=machine_limits(), timeout_s=EXPORT_TIMEOUT_S)
    except ChildTimedOut as error:
        raise ExportFailed(
            f"Exporting {source} took more than {EXPORT_TIMEOUT_S:g} s.", "Export it to ONNX yourself."
        ) from error
    except (ChildCrashed, ChildRaised) as error:
        code = error.returncode if isinstance(error, ChildCrashed) else 1
        said = " ".join(error.trace.split()[-40:])
        raise ExportFailed(
            f"Exporting {source} ended with exit code {code}: {shortened(said)}",
            "Out of memory? Else try the export by itself, or export to ONNX yourself.",
        ) from error


def _check(source: Path | str, path: Path, draft: Path, count: int) -> None:
    """Compare ONNX Runtime's results with PyTorch's for the inputs that were tried. Raises ExportFailed."""
    feeds = [load_tensors(draft / f"feed{number}.npz") for number in range(count)]
    try:
        results = run_model(path, feeds)
    except RunFailed:  # of which input?
        results = [_result(source, path, feed) for feed in feeds]
    for number, (feed, actual) in enumerate(zip(feeds, results, strict=True)):
        _compare(source, _batch(feed), load_tensors(draft / f"expected{number}.npz"), actual)


def _batch(feed: Tensors) -> int:
    return len(next(iter(feed.values())))


def _result(source: Path | str, path: Path, feed: Tensors) -> Tensors:
    try:
        return run_model(path, [feed])[0]
    except RunFailed as error:
        raise ExportFailed(
            f"The ONNX form of {source} does not run at batch {_batch(feed)}: {shortened(plain(error.reason))}",
            "Let the factory ask for the axes that vary, or give a model that does not depend on their sizes.",
        ) from error


def _compare(source: Path | str, batch: int, expected: Tensors, actual: Tensors) -> None:
    if len(actual) != len(expected):
        raise ExportFailed(
            f"The ONNX form of {source} has {len(actual)} outputs, and PyTorch gives {len(expected)}.",
            "Return every tensor once, and nothing that is computed without the inputs.",
        )
    for (name, result), (_, wanted) in zip(actual.items(), expected.items(), strict=True):
        problem = difference(wanted, result, EXPORT_TOLERANCE)
        if problem:
            raise ExportFailed(
                f"At batch {batch} the ONNX form of {source} differs from PyTorch: output {name} {problem}.",
                "Call model.eval() in the factory; random or data-dependent steps cannot be exported.",
            )
