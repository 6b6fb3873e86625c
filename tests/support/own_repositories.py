"""Repositories of users, as their authors write them: one model for each of several backends of Triton."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from model_repo.spec import Engine
from optimizer.config import OptimizeConfig
from optimizer.run.own_model import own_engines
from search.trials import events

TENSORRT = """\
name: "detector"
platform: "tensorrt_plan"
max_batch_size: 32
input [
  {
    name: "images"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 640, 640 ]
  }
]
output [ { name: "boxes" data_type: TYPE_FP32 dims: [ 8400, 4 ] } ]
instance_group [
  {
    count: 1
    kind: KIND_GPU
    gpus: [ 0, 1 ]
  }
]
dynamic_batching {
  preferred_batch_size: [ 8, 32 ]
  max_queue_delay_microseconds: 500   # agreed with the product team
}
optimization { cuda { graphs: true } }
model_warmup [
  { batch_size: 1 inputs { key: "images" value { data_type: TYPE_FP32 dims: [3, 9, 9] zero_data: true } } },
  { batch_size: 32 inputs { key: "images" value { data_type: TYPE_FP32 dims: [3, 9, 9] zero_data: true } } }
]
"""
ONNX = """\
# one model, one group
name: "ranker"
platform: "onnxruntime_onnx"
max_batch_size: 64
input { name: "ids" data_type: TYPE_INT64 dims: -1 }
input { name: "mask" data_type: TYPE_INT64 dims: -1 optional: true }
output { name: "score" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { preserve_ordering: true }
from_the_future { knob: 3 [x.y/z.T] { a: "}" } }
"""
PYTORCH = """\
name: "encoder"
backend: "pytorch"
platform: "pytorch_libtorch"
max_batch_size: 0
input [ { name: "INPUT__0", data_type: TYPE_FP32, dims: [ 1, 16 ] } ]
output [ { name: "OUTPUT__0", data_type: TYPE_FP32, dims: [ 1, 4 ] } ]
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
instance_group [ { kind: KIND_GPU } ]
"""
FIL = """\
backend: "fil"
max_batch_size: 32768
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 500 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_AUTO } , { kind: KIND_CPU, count: 3 } ]
parameters [
  { key: "model_type" value: { string_value: "xgboost_json" } },
  { key: "storage_type" value: { string_value: "AUTO" } }
]
"""
VLLM = """\
backend: "vllm"
max_batch_size: 1
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_MODEL } ]
"""

ENSEMBLE = """\
# asked for by the shop
platform: "ensemble"
max_batch_size: 8
input [ { name: "x", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "second"   # it comes first here
      model_version: -1
      input_map { key: "x" value: "between" }
      output_map { key: "y" value: "y" }
    },
    {
      model_name: "first"
      model_version: -1
      input_map { key: "x" value: "x" }
      output_map { key: "y" value: "between" }
    }
  ]
}
"""

BACKENDS = {
    "tensorrt_plan": ("detector", TENSORRT),
    "onnxruntime_onnx": ("ranker", ONNX),
    "pytorch_libtorch": ("encoder", PYTORCH),
    "fil": ("forest", FIL),
    "vllm": ("chat", VLLM),
}
"""Backend -> the model's name, and its config.pbtxt."""

PYTHON = """\
# Ask the ranking team before you change it.
backend: "python"
max_batch_size: 8   # clients send no more

input [ { name: "x", data_type: TYPE_FP32, dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "factor" value { string_value: "2" } }

instance_group [
  { name: "fast" count: 1 kind: KIND_CPU },
  { name: "batch" count: 1 kind: KIND_CPU }   # for the jobs at night
]
"""
MODEL = """\
import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

OFFSET = np.float32(json.loads((Path(__file__).parent / "weights.json").read_text())["offset"])
NOTES = Path(__file__).parents[1] / "notes.txt"


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        tensor = {"data_type": "TYPE_FP32", "dims": [4]}
        config.add_input({"name": "x", **tensor})
        config.add_output({"name": "y", **tensor})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        values = {key: float(value["string_value"]) for key, value in parameters.items()}
        self.factor, self.wait_s = np.float32(values.get("factor", 1)), values.get("wait_s", 0)
        with NOTES.open("a") as notes:  # a model that writes into its own folder
            notes.write("loaded\\n")

    def execute(self, requests):
        time.sleep(self.wait_s)
        found = (pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * self.factor + OFFSET)]) for x in found]
"""


def written(root: Path, name: str, config: str | None, files: Mapping[str, str]) -> Path:
    """Write a model with these files below its folder, and return that; without a configuration for None."""
    for path, text in {**files, **({} if config is None else {"config.pbtxt": config})}.items():
        target = root / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root / name


def python_model(root: Path, name: str = "scorer", config: str | None = PYTHON) -> Path:
    """Write a model of the Python backend: y = factor x + offset. It reads one file beside it, and writes one.

    Its parameters are `factor` and `wait_s`, the seconds of an execution.
    """
    data = {"1/weights.json": '{"offset": 1}', "notes.txt": "", "1/__pycache__/x.pyc": "old"}
    return written(root, name, config, {"1/model.py": MODEL, **data})


def ensemble(root: Path, *, first: str = "", second: str = "") -> None:
    """Write an ensemble `pair` of the models `first` and `second`, whose configurations get further text."""
    written(root, "pair", ENSEMBLE, {"1/.keep": ""})
    python_model(root, "first", PYTHON + first)
    python_model(root, "second", PYTHON + second)


def fingerprint(root: Path) -> str:
    """A hash of all names, contents, modes and times below a folder."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        digest.update(repr((path.relative_to(root), status.st_mode, status.st_mtime_ns, content)).encode())
    return digest.hexdigest()


def loaded(engine: Any) -> dict[str, Any]:
    """What a server answers that has nothing to complete but what it always adds, for a model and its members."""
    from google.protobuf import json_format  # type: ignore[import-untyped]

    from model_repo.repository.own_model import parse_own

    always = {"default_model_filename": "model.py", "version_policy": {"latest": {"num_versions": 1}}}
    return {
        one.model_name: {
            **json_format.MessageToDict(parse_own(one.own.text), preserving_proto_field_name=True),
            **always,
        }
        for one in (engine, *engine.members)
    }


def may_not_write(folder: Path) -> None:
    """Take the right to write from a folder and all that is in it."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


def own_config(root: Path, name: str = "scorer", **changes: Any) -> OptimizeConfig:
    given: dict[str, Any] = {
        "limits": (LatencyLimit(limit_ms=50.0),),
        "repository": root / "repository",
        "model": name,
        "output": root / "run",
        "server": "docker",
        "price_per_hour_usd": 2.0,
        "time_budget_s": 150.0,
        "seed": 3,
    }
    return OptimizeConfig(**{**given, **changes})


def engines_of(
    config: OptimizeConfig, ask: Any = loaded, on_event: Any = events.ignore, *, on_gpu: bool = False
) -> tuple[Engine, ...]:
    folder = Path(tempfile.mkdtemp(dir=config.output.parent))
    return own_engines(config, folder, on_gpu=on_gpu, ask=ask, on_event=on_event)[1]


def refused(config: OptimizeConfig, ask: Any = loaded) -> BadInput:
    """The two lines with which a model is refused; the repository stays as it is."""
    before = fingerprint(config.repository or Path())
    with pytest.raises(BadInput) as raised:
        engines_of(config, ask)
    assert fingerprint(config.repository or Path()) == before
    assert "\n" not in raised.value.what + raised.value.fix
    return raised.value
