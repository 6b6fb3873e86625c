"""Load and export PyTorch models, and compute their expected results: the child process of `export`."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_repo.errors import install_command
from optimizer.cached import Key, ResultCache
from optimizer.errors import ExportFailed
from optimizer.model.export_key import KIND, key_of_factory
from optimizer.model.ort_child import save_tensors
from optimizer.model.pt2_expressions import check_expressions

if TYPE_CHECKING:
    import torch


COLLECTED_AFTER = 50_000
"""Python looks for garbage after 50,000 new objects, not 700, and never among those of PyTorch's import: 3 % of
the time instead of 11 % until the factory's model has run, and of 7 % with an export."""

BATCHES = (1, 2, 5)
EXTERNAL_BYTES = 1 << 30

Axes = dict[int, str]
"""The names of the axes that vary, by axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A model to call and export. `dynamic` is None if the program itself defines the axes that vary."""

    program: Any  # torch.nn.Module or torch.export.ExportedProgram
    call: Any  # the module to call
    example: Mapping[str, torch.Tensor]
    by_name: bool
    dynamic: Mapping[str, Axes] | None


def from_factory(spec: str) -> Exportable:
    """Return the model of a factory: module, example inputs (a tuple, or a dict by name), and axes that vary.

    The factory may leave the axes out: then the first axis of every input is the batch. Raises ExportFailed.
    """
    import torch

    made = _called(spec)
    if not isinstance(made, tuple) or len(made) not in {2, 3} or not isinstance(made[0], torch.nn.Module):
        raise ExportFailed(
            f"--model {spec} returned {type(made).__name__}, not a module with its example inputs.",
            "Return (module, inputs) or (module, inputs, {input: {axis: name}}).",
        )
    module, inputs, *rest = made
    by_name = isinstance(inputs, dict)
    example = _examples(spec, module, inputs)
    dynamic = {name: {0: "batch"} for name, value in example.items() if value.ndim}
    for name, axes in _asked_axes(spec, rest, example).items():
        dynamic[name] = {0: "batch", **axes}
    example = {name: _at_batch(value, 2) if dynamic.get(name) else value for name, value in example.items()}
    return Exportable(program=module.eval(), call=module, example=example, by_name=by_name, dynamic=dynamic)


def _called(spec: str) -> Any:
    """Call the factory and return its result. Raises ExportFailed for any error of its code."""
    module_name, _, name = spec.partition(":")
    sys.path.append(str(Path.cwd()))  # last, so that nothing there comes before an installed package
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ExportFailed(
            f"--model {spec}: {error}.", f"Run in an environment in which `import {module_name}` works."
        ) from error
    except (Exception, SystemExit) as error:
        raise ExportFailed(
            f"--model {spec}: importing {module_name} raised {_raised(error)}.", f"Mend {module_name}."
        ) from error
    if not callable(found):
        raise ExportFailed(
            f"--model {spec} is {type(found).__name__}, not a callable.",
            "Name a function that takes nothing and returns (module, inputs).",
        )
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ExportFailed(
            f"--model {spec} raised {_raised(error)}.", f"Mend it: `{name}()` must work."
        ) from error


def _raised(error: BaseException) -> str:
    """Return the error's text with the line of the user's code that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<")]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{where}"


def _examples(spec: str, module: torch.nn.Module, inputs: Any) -> dict[str, torch.Tensor]:
    """Return the example inputs by name. Raises ExportFailed if they are no tensors, or forward takes others."""
    import torch

    named = inputs if isinstance(inputs, dict) else {}
    placed = tuple(inputs) if isinstance(inputs, tuple | list) else ()
    given = (*named.values(), *placed)
    if not given or not all(isinstance(value, torch.Tensor) for value in given):
        raise ExportFailed(
            f"--model {spec}: the example inputs are not tensors.", "Give a tuple of tensors, or a dict by name."
        )
    taken = inspect.signature(module.forward)
    try:
        taken.bind(*placed, **named)
    except TypeError as error:
        raise ExportFailed(
            f"--model {spec}: forward does not take the example inputs: {error}.",
            f"It takes {', '.join(taken.parameters) or 'none'}: give a tuple in this order, or a dict by name.",
        ) from error
    return {**dict(zip(taken.parameters, placed, strict=False)), **named}


def _asked_axes(spec: str, rest: list[Any], example: Mapping[str, torch.Tensor]) -> Mapping[str, Axes]:
    """Return the axes that the factory asked for. Raises ExportFailed for names and axes that do not exist."""
    asked = rest[0] if rest else {}
    if not isinstance(asked, dict) or not all(isinstance(axes, dict) for axes in asked.values()):
        raise ExportFailed(f"--model {spec}: the axes are not a dict of dicts.", "Such as {'ids': {1: 'tokens'}}.")
    for name, axes in asked.items():
        if name not in example:
            raise ExportFailed(f"--model {spec}: no input is called {name!r}.", f"There are {', '.join(example)}.")
        beyond = [axis for axis in axes if axis not in range(example[name].ndim)]
        if beyond:
            raise ExportFailed(
                f"--model {spec}: input {name} has no axis {beyond[0]!r}.",
                f"Its example has the axes 0 to {example[name].ndim - 1}.",
            )
    return asked


def from_program(path: Path) -> Exportable:
    """Return the ExportedProgram in a file, opened without unpickling anything but tensors."""
    import torch

    check_expressions(path)
    try:
        program = torch.export.load(path)
    except Exception as error:  # PyTorch passes on all errors of its parsers
        raise ExportFailed(
            f"The model {path} is not an ExportedProgram that can be opened: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}",
            "Write it with torch.export.save(torch.export.export(model, inputs), PATH), without custom classes.",
        ) from error
    if program.example_inputs is None:
        raise ExportFailed(f"The model {path} was saved without example inputs.", "Export it again with inputs.")
    args, kwargs = program.example_inputs
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    example = dict(zip(names, [*args, *kwargs.values()], strict=True))
    return Exportable(program=program, call=program.module(), example=example, by_name=bool(kwargs), dynamic=None)


def _at_batch(value: torch.Tensor, batch: int) -> torch.Tensor:
    """Return the example repeated to a batch of that size; PyTorch takes a size of 1 for a fixed one."""
    repeats = -(-batch // max(1, len(value)))
    return value.repeat(repeats, *[1] * (value.ndim - 1))[:batch]


def export(made: Exportable, target: Path) -> None:
    """Write the ONNX file. Raises ExportFailed."""
    import torch

    inputs: dict[str, Any] = {}
    if made.dynamic is not None:
        shapes = {name: made.dynamic.get(name) for name in made.example}
        inputs = {"kwargs": dict(made.example)} if made.by_name else {"args": tuple(made.example.values())}
        inputs["dynamic_shapes"] = shapes if made.by_name else tuple(shapes.values())
    try:
        # Any: torch's types allow None, which is returned only without `dynamo`.
        program: Any = torch.onnx.export(
            made.program, **inputs, input_names=list(made.example), dynamo=True, verbose=False, optimize=False
        )
        _simplify(program.model)
    except Exception as error:  # the exporter wraps every error of the model
        raise ExportFailed(
            f"PyTorch cannot export the model: {' '.join(str(error).split())[:400]}",
            "Rewrite the named part, or export to ONNX yourself and give the .onnx file.",
        ) from error
    size_bytes = sum(value.numel() * value.element_size() for value in made.call.state_dict().values())
    program.save(target, external_data=size_bytes > EXTERNAL_BYTES)
    _require_dynamic(made, target)


def _simplify(model: Any) -> None:
    """Inline functions, fold constants, and put batch normalizations into the layers before them.

    PyTorch's own optimization tries some 45 patterns at every node, twice, which took 20 of the 38 s of a Swin's
    export. What remains, ONNX Runtime and TensorRT fuse themselves; only a batch normalization keeps our casts to
    fp16 around it.
    """
    from onnx_ir.passes import common
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common as rules

    optimizer.inline(model)
    optimizer.fold_constants(model)
    layers = ("conv", "conv_transpose", "gemm")
    rewriter.rewrite(model, [getattr(rules, f"fuse_batchnorm_into_{layer}_rule") for layer in layers])
    for each in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.NameFixPass(),
    ):
        each(model)


def _require_dynamic(made: Exportable, target: Path) -> None:
    import onnx

    graph = onnx.load_model(target, load_external_data=False).graph
    for value in graph.input:
        for axis, name in (made.dynamic or {}).get(value.name, {}).items():
            dim = value.type.tensor_type.shape.dim[axis]
            if not dim.HasField("dim_param"):
                raise ExportFailed(
                    f"Axis {axis} ({name}) of input {value.name} was to vary, and the export fixed it at "
                    f"{dim.dim_value}.",
                    "The model's code depends on that size: avoid int(x.shape[...]) and branches on sizes.",
                )


def write_checks(made: Exportable, folder: Path) -> int:
    """Write inputs at several batch sizes with PyTorch's results; return the number of inputs.

    Raises ExportFailed.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    sizes = BATCHES if made.dynamic is not None else (None,)
    for number, batch in enumerate(sizes):
        feed = {
            name: _shaken(value, batch if made.dynamic is None or made.dynamic.get(name) else None, random)
            for name, value in made.example.items()
        }
        try:
            with torch.no_grad():
                results = made.call(**feed) if made.by_name else made.call(*feed.values())
        except Exception as error:
            at = "" if batch is None else f" at batch {batch}"
            raise ExportFailed(
                f"The model does not run on its example inputs{at}: {_raised(error)}.",
                "It must take any batch: the first axis of every input is the batch.",
            ) from error
        leaves = _tensors(results)
        save_tensors(folder / f"feed{number}.npz", {name: value.numpy() for name, value in feed.items()})
        save_tensors(folder / f"expected{number}.npz", {str(i): leaf.numpy() for i, leaf in enumerate(leaves)})
    return len(sizes)


def _tensors(results: Any) -> list[torch.Tensor]:
    """Return all results, in the exporter's order.

    Raises ExportFailed for a result that is no tensor or is bfloat16, and if there is none.
    """
    import torch
    from torch.utils import _pytree

    leaves = [leaf for leaf in _pytree.tree_leaves(results) if leaf is not None]  # None's place is the exporter's
    wrong = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    if wrong or not leaves:
        raise ExportFailed(
            f"The model returns {wrong[0] if wrong else 'nothing'}, and only tensors can be served.",
            "Return a tensor, or a tuple or dict of tensors.",
        )
    if any(leaf.dtype == torch.bfloat16 for leaf in leaves):
        raise ExportFailed(
            "The model returns bfloat16, which numpy and most clients do not know.",
            "Give the fp32 model (module.float()), and --precisions bf16.",
        )
    return leaves


def _shaken(value: torch.Tensor, batch: int | None, random: torch.Generator) -> torch.Tensor:
    """Return values like the example's: floats with noise added, others drawn from the example's values."""
    import torch

    value = value if batch is None else _at_batch(value, batch)
    if value.is_floating_point():
        return value + torch.randn(value.shape, generator=random).to(value.dtype)
    flat = value.flatten()
    return flat[torch.randint(len(flat), value.shape, generator=random)] if len(flat) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The number of inputs to check, the key of the ONNX file, and whether that was in the cache."""

    checks: int
    key: Key | None
    cached: bool


def exported(source: str | Path, target: Path, folder: Path, cache: ResultCache) -> Exported:
    """Write the ONNX file of a factory or a `.pt2`, and inputs with results to check it into `folder`.

    That of a factory may come from the cache; it has to be checked nevertheless. Raises ExportFailed.
    """
    if isinstance(source, Path):
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    gc.set_threshold(COLLECTED_AFTER)
    try:
        import torch  # noqa: F401

        if find_spec("onnxscript") is None:  # PyTorch's exporter imports it, which takes 1 s, if nothing is kept
            raise ModuleNotFoundError(name="onnxscript")
    except ImportError as error:
        raise ExportFailed(
            f"--model {source} needs PyTorch, and {error.name} is not installed.",
            f"Run: {install_command('torch')}, or give an .onnx file.",
        ) from error
    gc.freeze()
    made = from_program(source) if isinstance(source, Path) else from_factory(source)
    checks = write_checks(made, folder)
    key = None
    if made.dynamic is not None:
        key = key_of_factory(made.call, made.example, made.dynamic, target, by_name=made.by_name)
    entry = None if key is None else cache.find(KIND, key)
    if entry is None:
        export(made, target)
    else:
        entry.copied(target.parent)
    return Exported(checks=checks, key=key, cached=entry is not None)
