"""PyTorch models to ONNX: a factory (`package.module:callable`) or an ExportedProgram (`.pt2`).

PyTorch works in a process of its own (`optimizer.export_run`), so that this one neither needs it nor keeps its
memory. A factory is the user's own code and is run as such. A `.pt2` is opened with `torch.export.load`, where
`torch.load` gives nothing but tensors, and only after its size expressions were seen to be arithmetic, because
PyTorch has SymPy evaluate them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.scratch import scratch_folder
from optimizer.batch_proof import difference
from optimizer.child_limits import environment_of_child
from optimizer.errors import ModelError
from optimizer.model_source import is_file, stem_of
from optimizer.onnx_check import plain, shortened
from optimizer.onnx_run import RunFailed, load_tensors, run_model

if TYPE_CHECKING:
    from collections.abc import Mapping

CHILD = (sys.executable, "-P", "-m", "optimizer.export_run")
TIMEOUT_S = 1800.0
TOLERANCE = 1e-3
"""Of the largest element, between PyTorch and ONNX Runtime, both fp32."""


class ExportFailed(ModelError):
    """The PyTorch model cannot be loaded, exported, or does not survive the export."""


def export_model(source: Path | str, folder: Path) -> Path:
    """Write the model that `source` names, a `.pt2` file or a factory, as ONNX into `folder`; gives its path.

    The batch varies, and so do the axes that a factory asks for (a `.pt2`: those it was exported with). Results
    equal PyTorch's at every batch size tried. Raises ExportFailed.
    """
    if isinstance(source, Path) and not is_file(source):
        raise ExportFailed(f"The model {source} does not exist or is no file.", "Check the path.")
    path = folder / f"{stem_of(source)}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder("export") as draft:
        kind = "factory" if isinstance(source, str) else "program"
        checks = _exported({"kind": kind, "source": str(source), "target": str(path)}, Path(draft))
        for number in range(checks):
            _check(source, path, Path(draft), number)
    return path


def _exported(request: Mapping[str, str], draft: Path) -> int:
    """Let `optimizer.export_run` do it; gives the number of inputs to check. Raises ExportFailed."""
    (draft / "request.json").write_text(json.dumps(request))
    environment = environment_of_child()
    if request["kind"] == "program":
        environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    try:
        ended = subprocess.run(
            [*CHILD, str(draft)],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ExportFailed(
            f"Exporting {request['source']} took more than {TIMEOUT_S:g} s.", "Export it to ONNX yourself."
        ) from error
    answer = draft / "answer.json"
    if not answer.exists():
        said = " ".join(ended.stderr.split()[-40:])
        raise ExportFailed(
            f"Exporting {request['source']} ended with exit code {ended.returncode}: {shortened(said)}",
            "Out of memory? Else try the export alone, or export to ONNX yourself.",
        )
    result = json.loads(answer.read_text())
    if "what" in result:
        raise ExportFailed(result["what"], result["fix"])
    return int(result["checks"])


def _check(source: Path | str, path: Path, draft: Path, number: int) -> None:
    """Compare ONNX Runtime's results with PyTorch's for one of the inputs that were tried."""
    feed = load_tensors(draft / f"feed{number}.npz")
    expected = load_tensors(draft / f"expected{number}.npz")
    batch = len(next(iter(feed.values())))
    try:
        actual = run_model(path, [feed])[0]
    except RunFailed as error:
        raise ExportFailed(
            f"The ONNX form of {source} does not run at batch {batch}: {shortened(plain(error.reason))}",
            "Let the factory ask for the axes that vary, or give a model that does not depend on their sizes.",
        ) from error
    if len(actual) != len(expected):
        raise ExportFailed(
            f"The ONNX form of {source} has {len(actual)} outputs, and PyTorch gives {len(expected)}.",
            "Return every tensor once, and nothing that is computed without the inputs.",
        )
    for (name, result), (_, wanted) in zip(actual.items(), expected.items(), strict=True):
        problem = difference(wanted, result, TOLERANCE)
        if problem:
            raise ExportFailed(
                f"At batch {batch} the ONNX form of {source} differs from PyTorch: output {name} {problem}.",
                "Call model.eval() in the factory; random or data-dependent steps cannot be exported.",
            )
