"""Whether a server runs models at all: a model that needs nothing but our packages, loaded and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model_repo.errors import ModelLoadFailed, ServerError
from model_repo.layout import RUNTIME
from model_repo.python_home import search_path
from model_repo.server import serve
from model_repo.spec import Engine, ServingConfig, TensorSpec

if TYPE_CHECKING:
    from model_repo.options import ServerOptions


class PackagesMissing(ServerError):
    """Triton's Python does not find what our runtime imports."""


def check_runs_models(options: ServerOptions) -> None:
    """Return if a server of our Python runtime starts and finds its packages, which takes some seconds.

    Raises PackagesMissing, which names the module and the folders that were searched, or as `serve` does.
    """
    tensor = TensorSpec(name="x", datatype="FP32", shape=(-1,))
    engine = Engine(
        model_name="probe",
        backend="onnxruntime",
        precision="fp32",
        model_file="",
        files=(),
        inputs=(tensor,),
        outputs=(tensor,),
        batched=False,
        code=RUNTIME / "probe_model.py",
    )
    with serve(options) as server:
        try:
            server.load(ServingConfig(engine=engine, max_batch_size=0, dynamic_batching=False))
        except ModelLoadFailed as error:
            raise PackagesMissing(
                f"The {options.kind} Triton server cannot run models: {error.reason.rstrip('.')}. "
                f"Its Python looked in {search_path().in_words()}.\n"
                "Install tritune and its packages in one virtual environment, where only you may write.",
                log_tail=error.log_tail,
            ) from error
