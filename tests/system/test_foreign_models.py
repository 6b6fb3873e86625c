"""Models as other tools export them: each is served and answers as ONNX Runtime does, or refused in two lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from foreign_models import FOREIGN, SAMPLES, SHAPES
from numpy.typing import NDArray

from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server, serve
from model_repo.spec import Engine, ServingConfig
from optimizer.batching.kept import settled
from optimizer.engines.candidates import onnxruntime_engine
from optimizer.model.samples import given_samples, synthetic_samples

pytestmark = pytest.mark.system

UNBATCHED = {"yolo", "two_batch_axes", "scalar_output", "quantized"}
BATCH = 3
Tensors = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ServerOptions(run_dir=tmp_path_factory.mktemp("server"), protocol="grpc", exit_grace_s=0.1)
    with serve(options) as running:
        yield running


def inferred(server: Server, engine: Engine, feed: Tensors) -> Tensors:
    """Return the outputs of one request, by NVIDIA's own client."""
    types = {spec.name: spec.datatype for spec in engine.inputs}
    inputs = []
    for name, array in feed.items():
        inputs.append(triton.InferInput(name, array.shape, types[name]))
        inputs[-1].set_data_from_numpy(array.astype(object) if array.dtype.kind == "U" else array)
    address = f"{server.endpoint.host}:{server.endpoint.grpc_port}"
    with triton.InferenceServerClient(address) as client:
        key = dict(server.endpoint.headers("grpc"))
        found = client.infer(engine.model_name, inputs, client_timeout=240.0, headers=key)
    return {spec.name: found.as_numpy(spec.name) for spec in engine.outputs}


def expected(path: Path, feed: Tensors, *, one_by_one: bool) -> Tensors:
    """Return the outputs of the file as it was written, run by ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = [{name: array[at : at + 1] for name, array in feed.items()} for at in range(BATCH)]
    results = [map(_array, session.run(names, one)) for one in (feeds if one_by_one else [feed])]
    return {
        name: np.concatenate(parts) if one_by_one else parts[0]
        for name, *parts in zip(names, *results, strict=True)
    }


def _array(result: Any) -> NDArray[Any]:
    """Return an output as an array; scikit-learn's is a list with a dictionary for each row."""
    return np.array([list(row.values()) for row in result] if isinstance(result, list) else result)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_model_is_served_and_answers_right(server: Server, tmp_path: Path, name: str) -> None:
    path = FOREIGN[name](tmp_path / f"{name}.onnx")
    data = tmp_path / "data.json" if name in SAMPLES else None
    if data is not None:
        data.write_text(SAMPLES[name])
    model = settled(path, SHAPES.get(name, {}), tmp_path / "work", input_data=data).batching.model
    assert model.batched is (name not in UNBATCHED)
    rows = BATCH if model.batched else 1
    samples = given_samples(model, data, rows) or synthetic_samples(model, rows, seed=0)
    feed = samples.feeds(rows)[0]
    engine = onnxruntime_engine(model)
    server.load(
        ServingConfig(engine=engine, max_batch_size=8 if model.batched else 0, dynamic_batching=model.batched)
    )
    answer = inferred(server, engine, feed)
    right = expected(path, feed, one_by_one=model.batched)
    assert answer.keys() == right.keys()
    for output, values in right.items():
        if values.dtype == np.object_:
            assert [text.decode() for text in answer[output].ravel()] == values.ravel().tolist()
        else:
            np.testing.assert_allclose(answer[output], values.reshape(answer[output].shape), rtol=1e-2, atol=1e-3)
        assert answer[output].size == values.size > 0
