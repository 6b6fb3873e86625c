"""Write a model that sleeps by a law: on shared hardware, only a sleep takes the same time an hour later.

The law is S(b, k), seconds for b requests while k instances execute. Instances share the device: if another one
begins or ends, an execution continues at the new pace; it checks every two milliseconds. The time that Python
takes meanwhile is part of the sleep, not added to it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from model_repo.spec import Engine, TensorSpec

MODEL = "sleep"
MAX_INSTANCES = 64

_CODE = """
import fcntl, mmap, time
import numpy as np
import triton_python_backend_utils as pb_utils

FIXED_S, EACH_S, FULL_AT, CROWDING = {law}
LOOK_S = 0.002
NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"


class TritonPythonModel:
    def initialize(self, args):
        self.file = open({busy!r}, "r+b")
        self.busy = np.frombuffer(mmap.mmap(self.file.fileno(), 0), np.float64)
        for self.place in range(len(self.busy)):  # a place of its own, free again when this process is gone
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.place)
                break
            except OSError:
                continue
        self.busy[self.place] = 0.0

    def execute(self, requests):
        began_s = time.monotonic()
        size = (len(requests) ** 3 + FULL_AT**3) ** (1 / 3)
        warming_up = not pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy().any()
        left_s = 0.0 if warming_up else FIXED_S + EACH_S * size  # of work, as it would take alone
        self.busy[self.place] = float(left_s > 0.0)
        zeros = np.zeros((1, 1), np.float32)
        answer = pb_utils.Tensor("y", zeros) if NUMPY_1 else pb_utils.Tensor.from_dlpack("y", zeros)
        answers = [pb_utils.InferenceResponse([answer]) for _ in requests]
        while left_s > 0.0:
            pace = 1.0 / max(1.0, self.busy.sum()) ** CROWDING
            time.sleep(min(LOOK_S, max(0.0, left_s / pace - (time.monotonic() - began_s))))
            now_s = time.monotonic()
            left_s -= (now_s - began_s) * pace
            began_s = now_s
        self.busy[self.place] = 0.0
        return answers
"""


@dataclass(frozen=True, slots=True)
class Law:
    """S(b, k) = (fixed_s + each_s (b^3 + full_at^3)^(1/3)) k^crowding.

    `full_at` requests use the whole device; below it, further requests cost little. `crowding` 0: instances do not
    slow each other down; 1: they take turns.
    """

    fixed_s: float
    each_s: float
    full_at: float = 0.0
    crowding: float = 0.0

    def seconds(self, size: int, busy: int) -> float:
        """Return the seconds of an execution of `size` requests while `busy` instances execute, this included."""
        used = (size**3 + self.full_at**3) ** (1 / 3)
        return float((self.fixed_s + self.each_s * used) * busy**self.crowding)


def sleeping_engine(folder: Path, law: Law) -> Engine:
    """Return the engine; writes its files to `folder`: its code, and the list of busy instances."""
    folder.mkdir(parents=True, exist_ok=True)
    busy, code = folder.absolute() / "busy", folder / "model.py"
    busy.write_bytes(np.zeros(MAX_INSTANCES).tobytes())
    code.write_text(_CODE.format(law=astuple(law), busy=str(busy)))
    tensor = TensorSpec(name="x", datatype="FP32", shape=(1,))
    return Engine(
        model_name=MODEL,
        backend="onnxruntime",  # only by name: the code runs
        precision="fp32",
        model_file="",
        files=(),
        code=code,
        inputs=(tensor,),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(1,)),),
        batched=True,
    )
