"""A model that sleeps as long as a law says: on shared hardware, the one model that is as fast an hour later.

The law is S(b, k), seconds for b requests while k instances execute. An execution goes at the pace of the moment
when it began, and ends at a time fixed then: what Python does meanwhile is part of the sleep, not on top of it.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from model_repo.spec import Engine, TensorSpec

MODEL = "sleep"
MOST_INSTANCES = 64

_CODE = """
import fcntl, mmap, time
import numpy as np
import triton_python_backend_utils as pb_utils

FIXED_S, EACH_S, FULL_AT, CROWDING = {law}
NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"


class TritonPythonModel:
    def initialize(self, args):
        self.file = open({busy_until!r}, "r+b")
        self.until_s = np.frombuffer(mmap.mmap(self.file.fileno(), 0), np.float64)
        for self.place in range(len(self.until_s)):  # a place of its own, free again when this process is gone
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.place)
                break
            except OSError:
                continue

    def execute(self, requests):
        now_s = time.monotonic()
        busy = 1 + int(np.count_nonzero(self.until_s > now_s))
        size = (len(requests) ** 3 + FULL_AT**3) ** (1 / 3)
        done_s = now_s + (FIXED_S + EACH_S * size) * busy**CROWDING
        warming_up = not pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy().any()
        self.until_s[self.place] = now_s if warming_up else done_s
        zeros = np.zeros((1, 1), np.float32)
        answer = pb_utils.Tensor("y", zeros) if NUMPY_1 else pb_utils.Tensor.from_dlpack("y", zeros)
        answers = [pb_utils.InferenceResponse([answer]) for _ in requests]
        if not warming_up:
            time.sleep(max(0.0, done_s - time.monotonic()))
        return answers
"""


@dataclass(frozen=True, slots=True)
class Law:
    """S(b, k) = (fixed_s + each_s (b^3 + full_at^3)^(1/3)) k^crowding.

    `full_at` is how many requests it takes to use the whole device, below which more of them cost little.
    `crowding` 0: instances do not hinder each other; 1: they take turns.
    """

    fixed_s: float
    each_s: float
    full_at: float = 0.0
    crowding: float = 0.0

    def seconds(self, size: int, busy: int) -> float:
        """What an execution of `size` requests takes while `busy` instances execute, itself counted."""
        used = (size**3 + self.full_at**3) ** (1 / 3)
        return float((self.fixed_s + self.each_s * used) * busy**self.crowding)


def sleeping_engine(folder: Path, law: Law) -> Engine:
    """The engine, whose files are written to `folder`: its code, and until when each instance is busy."""
    folder.mkdir(parents=True, exist_ok=True)
    busy_until, code = folder.absolute() / "busy_until", folder / "model.py"
    busy_until.write_bytes(np.zeros(MOST_INSTANCES).tobytes())
    code.write_text(_CODE.format(law=astuple(law), busy_until=str(busy_until)))
    tensor = TensorSpec(name="x", datatype="FP32", shape=(1,))
    return Engine(
        model_name=MODEL,
        backend="onnxruntime",  # by name: what runs is model.py
        precision="fp32",
        model_file="model.py",
        files=(("model.py", code),),
        inputs=(tensor,),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(1,)),),
        batched=True,
    )
