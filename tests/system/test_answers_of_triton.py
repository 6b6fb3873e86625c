"""What a real Triton answers is an inference, however much it varies, and what is no inference is never one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.errors import TargetRefused
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target
from model_repo.server import control
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server, serve

pytestmark = [pytest.mark.system, pytest.mark.long]

CONFIG = """
backend: "python"
max_batch_size: %d
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "fixed" data_type: TYPE_FP16 dims: 3 }
output { name: "drawn" data_type: TYPE_INT64 dims: [ -1, 2 ] }
output { name: "text" data_type: TYPE_STRING dims: 1 }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.random = np.random.default_rng(0)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        lead = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().shape[:-1]
        size = int(self.random.integers(1, 300))
        outputs = [
            pb_utils.Tensor("fixed", np.zeros((*lead, 3), np.float16)),
            pb_utils.Tensor("drawn", np.zeros((*lead, size, 2), np.int64)),
            pb_utils.Tensor("text", np.full((*lead, 1), b"x" * size, np.object_)),
        ]
        return pb_utils.InferenceResponse(outputs%s)
"""


def load(server: Server, name: str, *, max_batch_size: int = 8, last: str = "") -> None:
    folder = server.repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG % max_batch_size)
    (folder / "1" / "model.py").write_text(MODEL % last)
    control.load_model(server.endpoint, name, timeout_s=60)


@pytest.fixture(scope="module", params=["http", "grpc"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    folder: Path = tmp_path_factory.mktemp("answers")
    with serve(ServerOptions(run_dir=folder, protocol=request.param)) as server:
        load(server, "batched")
        load(server, "plain", max_batch_size=0)
        load(server, "less", last="[:2]")
        yield server, request.param


def target(server: tuple[Server, str], name: str) -> Target:
    endpoint, protocol = server[0].endpoint, server[1]
    return Target(url=endpoint.url(protocol), model_name=name, headers=endpoint.headers(protocol))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["batched", "plain"])
def test_answers_of_every_length_are_inferences(server: tuple[Server, str], name: str) -> None:
    with LoadGenerator() as generator:
        for plan in (LoadPlan(rate_per_s=150, duration_s=2, seed=1), ClosedLoopPlan(concurrency=3, duration_s=1)):
            run = generator.run(target(server, name), plan)
            assert run.measurement.errors == {}
            assert run.measurement.n > 100
            assert run.measurement.server is not None
            assert run.measurement.remarks == ()


def test_an_answer_that_lacks_an_output_is_refused_before_the_load(server: tuple[Server, str]) -> None:
    with LoadGenerator() as generator, pytest.raises(TargetRefused, match="output text is missing"):
        generator.run(target(server, "less"), LoadPlan(rate_per_s=50, duration_s=1, seed=1))
