"""The GPU runtime's model.py inside a real Triton, on a GPU made of ordinary memory."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_cuda
import numpy as np
import pytest
from engines import parameters, plain_engine
from infer import InferenceRefused, infer

from model_repo.repository.write import write_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.spec import ServingConfig, TensorSpec

pytestmark = pytest.mark.system

OPENING = """
import fake_cuda
from pathlib import Path
from tritune_gpu.runner import Runner

def open_runner(version_dir, config, *, device):
    cuda = fake_cuda.FakeCuda()
    parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
    runner = Runner(
        fake_cuda.DoublingEngine(cuda), cuda, cuda.stream(), max_batch_size=config["max_batch_size"],
        batch_sizes=[int(size) for size in parameters["batch_sizes"].split(",")],
        cuda_graphs=parameters["cuda_graphs"] == "1", input_path=parameters["input_path"],
    )
    run = runner.run
    def noted(requests):
        try:
            return run(requests)
        finally:
            Path(parameters["notes"]).write_text(" ".join(cuda.calls))
    runner.run = noted  # the runner is this test's own
    return runner
"""
"""In place of the real one, which needs a GPU."""


def repository_in(folder: Path, *, input_path: str) -> Path:
    x = TensorSpec(name="x", datatype="FP32", shape=(-1,), sample_shape=(4,))
    outputs = (
        TensorSpec(name="y", datatype="FP32", shape=(-1,)),
        TensorSpec(name="sums", datatype="FP32", shape=()),
    )
    plan = folder / "model.plan"
    plan.write_bytes(b"plan")
    engine = plain_engine(
        backend="tensorrt_rtx", device="gpu", model_file="model.plan", files=(("model.plan", plan),),
        inputs=(x,), outputs=outputs,
    )  # fmt: skip
    config = ServingConfig(
        engine=engine, max_batch_size=8, max_queue_delay_us=20_000, cuda_graph_batch_sizes=(1, 2, 4, 8)
    )
    model = write_repository(folder / "repository", config)
    version = model / "1"
    (version / "tritune_gpu" / "opening.py").write_text(OPENING)
    shutil.rmtree(version / "tritune_gpu" / "__pycache__")
    shutil.copy(Path(fake_cuda.__file__), version / "fake_cuda.py")
    pbtxt = model / "config.pbtxt"
    text = pbtxt.read_text().replace("KIND_GPU", "KIND_CPU")
    pbtxt.write_text(text + parameters(input_path=input_path, notes=str(folder / "notes.txt")))
    return folder / "repository"


@pytest.mark.parametrize("input_path", ["pinned", "direct"])
def test_batches_of_requests_get_their_own_answers(tmp_path: Path, input_path: str) -> None:
    repository = repository_in(tmp_path, input_path=input_path)
    with serve_repository(repository, ServerOptions(run_dir=tmp_path)) as standing:
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((1 + number % 3, 500)).astype(np.float32) for number in range(24)]
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda x: infer(standing.endpoint, "m", {"x": x}), inputs))
        for x, answer in zip(inputs, answers, strict=True):
            np.testing.assert_allclose(answer["y"], 2 * x, rtol=1e-5)
            np.testing.assert_allclose(answer["sums"].ravel(), x.sum(axis=1), rtol=1e-3, atol=1e-3)
        with pytest.raises(InferenceRefused):
            infer(standing.endpoint, "m", {"x": np.zeros((9, 4), np.float32)})
    calls = (tmp_path / "notes.txt").read_text().split()
    assert "launch" in calls
    assert ("register" in calls) == (input_path == "direct"), "the GPU reads Triton's shared memory where it lies"
