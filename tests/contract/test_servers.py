"""What every kind of server must do: embedded, local, docker (its command, without a container), remote."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from engines import broken_engine, cnn_engine, doubler_engine, echo_engine, fixed_batch_engine, token_engine
from infer import InferenceRefused, get, infer
from server_kinds import docker_on_path, open_server, tritonserver_on_path

from model_repo.errors import ModelLoadFailed, RepositoryWriteFailed
from model_repo.server.control import is_model_ready
from model_repo.server.options import DEFAULT_IMAGE, ServerOptions
from model_repo.server.triton import Server, serve
from model_repo.spec import Engine, ServingConfig

pytestmark = pytest.mark.system


def without_blank(folder: Path) -> Path:
    """A name beside the folder: the paths of a server's backends cannot hold blanks."""
    return folder.with_name(folder.name.replace(" ", "-"))


@contextmanager
def embedded(folder: Path) -> Iterator[Server]:
    with serve(ServerOptions(run_dir=folder, exit_grace_s=0.1)) as server:
        yield server


@contextmanager
def local(folder: Path) -> Iterator[Server]:
    options = ServerOptions(run_dir=folder, kind="local", runtime="python", exit_grace_s=0.1)
    with tritonserver_on_path(without_blank(folder)), serve(options) as server:
        yield server


@contextmanager
def docker(folder: Path) -> Iterator[Server]:
    options = ServerOptions(run_dir=folder, kind="docker", runtime="python", exit_grace_s=0.1)
    with docker_on_path(without_blank(folder), DEFAULT_IMAGE), serve(options) as server:
        yield server


@contextmanager
def over_grpc(folder: Path) -> Iterator[Server]:
    """Measured over gRPC, so that control requests go over HTTP; with HTTP it is the other way round."""
    with serve(ServerOptions(run_dir=folder, protocol="grpc", exit_grace_s=0.1)) as server:
        yield server


@contextmanager
def remote(folder: Path) -> Iterator[Server]:
    """A server that somebody else started: the embedded program, open to whoever reaches it."""
    with open_server(folder) as (endpoint, repository):
        options = ServerOptions(
            run_dir=folder, kind="remote", runtime="python", remote=endpoint, repository=repository
        )
        with serve(options) as server:
            yield server


KINDS = {"embedded": embedded, "over grpc": over_grpc, "local": local, "docker": docker, "remote": remote}


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # A blank in the path: users have them.
    folder = tmp_path_factory.mktemp(f"{request.param} server")
    with KINDS[request.param](folder) as server:
        yield server


def expected(engine: Engine, inputs: dict[Any, Any]) -> dict[Any, Any]:
    """What ONNX Runtime says, run here on the same file."""
    session = onnxruntime.InferenceSession(dict(engine.files)["model.onnx"], providers=["CPUExecutionProvider"])
    names = [spec.name for spec in engine.outputs]
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_serves(server: Any, engine: Engine, inputs: dict[Any, Any]) -> None:
    answer = infer(server.endpoint, engine.model_name, inputs)
    wanted = expected(engine, inputs)
    assert answer.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(answer[name], array, rtol=1e-4, atol=1e-5)


IMAGES = np.random.default_rng(1).standard_normal((5, 3, 32, 32)).astype(np.float32)


@pytest.mark.parametrize(
    ("make", "largest", "rows"), [(cnn_engine, 4, 3), (fixed_batch_engine, 0, 1), (cnn_engine, 0, 5)]
)
def test_serves_what_the_model_computes(server: Any, tmp_path: Path, make: Any, largest: int, rows: int) -> None:
    engine = make(tmp_path)
    server.load(ServingConfig(engine=engine, max_batch_size=largest, dynamic_batching=largest > 0))
    assert_serves(server, engine, {"image": IMAGES[:rows]})
    server.check()


def test_serves_several_int64_inputs_with_a_dynamic_axis(server: Any, tmp_path: Path) -> None:
    engine = token_engine(tmp_path)
    server.load(ServingConfig(engine=engine, max_batch_size=4))
    for tokens in (3, 40):
        ids = np.random.default_rng(tokens).integers(0, 100, (2, tokens))
        assert_serves(server, engine, {"ids": ids, "mask": (ids % 2)})


def test_says_what_it_takes_where_it_can_be_seen(server: Any, tmp_path: Path) -> None:
    server.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4))
    assert (server.memory_bytes() is not None) == server.is_our_process
    if server.is_our_process:
        assert server.start_s > 0
        assert 20e6 < server.memory_bytes() < 20e9


def test_serves_one_number_a_request(server: Any, tmp_path: Path) -> None:
    server.load(ServingConfig(engine=doubler_engine(tmp_path), max_batch_size=4))
    answer = infer(server.endpoint, "doubler", {"x": np.array([[3.0], [5.0]], np.float32)})
    assert answer["doubled"].ravel().tolist() == [6.0, 10.0]


def test_serves_text(server: Any, tmp_path: Path) -> None:
    server.load(ServingConfig(engine=echo_engine(tmp_path), max_batch_size=4))
    words = np.array([["one", "zwölf"], ["", "b'3'"]], object)
    assert infer(server.endpoint, "echo", {"words": words})["echoed"].tolist() == words.tolist()


def test_a_model_of_somebody_else_in_the_repository_stays(server: Any, tmp_path: Path) -> None:
    server.unload()
    engine = cnn_engine(tmp_path)
    theirs = server.repository / "theirs" / "1" / "model.onnx"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    with pytest.raises(RepositoryWriteFailed, match="not of this run"):
        server.load(ServingConfig(engine=replace(engine, model_name="theirs"), max_batch_size=4))
    server.load(ServingConfig(engine=engine, max_batch_size=4))
    server.forget()
    assert [path.name for path in server.repository.iterdir()] == ["theirs"]
    assert theirs.read_text() == "precious"
    shutil.rmtree(theirs.parents[1])


def test_one_model_replaces_the_other(server: Any, tmp_path: Path) -> None:
    first, second = cnn_engine(tmp_path), token_engine(tmp_path)
    server.load(ServingConfig(engine=first, max_batch_size=4))
    server.load(ServingConfig(engine=second, max_batch_size=4))
    assert is_model_ready(server.endpoint, "tokens")
    assert not is_model_ready(server.endpoint, "cnn")
    assert not (server.repository / "cnn").exists()


def test_a_changed_configuration_takes_effect(server: Any, tmp_path: Path) -> None:
    engine = cnn_engine(tmp_path)
    server.load(ServingConfig(engine=engine, max_batch_size=2))
    with pytest.raises(InferenceRefused, match="<= 2"):
        infer(server.endpoint, "cnn", {"image": np.ones((4, 3, 32, 32), np.float32)})
    server.load(ServingConfig(engine=engine, max_batch_size=4))
    assert_serves(server, engine, {"image": np.ones((4, 3, 32, 32), np.float32)})


def test_more_and_fewer_instances(server: Any, tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2)
    for count in (1, 3, 2):
        server.load(replace(config, instance_count=count))
        server.check()
        assert_serves(server, config.engine, {"image": np.ones((2, 3, 32, 32), np.float32)})


def test_a_model_that_does_not_load_says_why_and_leaves_the_server_well(server: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="NoSuchOperator") as caught:
        server.load(ServingConfig(engine=broken_engine(tmp_path), max_batch_size=4))
    assert caught.value.model_name == "broken"
    assert len(str(caught.value).splitlines()) == 2
    assert server.alive()
    assert not is_model_ready(server.endpoint, "broken")
    server.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4))
    server.check()


def test_unload_leaves_nothing_to_ask(server: Any, tmp_path: Path) -> None:
    server.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4))
    server.unload()
    server.unload()
    assert not is_model_ready(server.endpoint, "cnn")
    with pytest.raises(InferenceRefused):
        infer(server.endpoint, "cnn", {"image": np.ones((1, 3, 32, 32), np.float32)})
    assert list(server.repository.iterdir()) == []
    server.check()


def test_restart_forgets_the_model_and_can_load_again(server: Any, tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4)
    server.load(config)
    server.restart()
    assert server.alive()
    assert not is_model_ready(server.endpoint, "cnn")
    server.load(config)
    server.check()


def executed_batch_sizes(endpoint: Any, model_name: str) -> list[Any]:
    answer = get(endpoint, f"/v2/models/{model_name}/stats")
    return [row["batch_size"] for row in answer["model_stats"][0]["batch_stats"]]


def test_a_bad_request_fails_alone(server: Any, tmp_path: Path) -> None:
    """Both travel in one batch; only the one with the impossible id may fail."""
    engine = token_engine(tmp_path)
    # The delay lets the requests meet in one batch, which leaves when it is full.
    server.load(
        ServingConfig(engine=engine, max_batch_size=4, max_queue_delay_us=20_000_000, preferred_batch_sizes=(4,))
    )
    good, bad = np.zeros((1, 4), np.int64), np.full((1, 4), 1000)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(infer, server.endpoint, "tokens", {"ids": ids, "mask": good})
            for ids in (good, bad, good, good)
        ]
    assert 4 in executed_batch_sizes(server.endpoint, "tokens")
    errors = [future.exception() for future in asked]
    assert [error is not None for error in errors] == [False, True, False, False]
    assert "indices" in str(errors[1])


def test_links_are_not_needed(server: Any, tmp_path: Path) -> None:
    """Engine files that have gone after the load do not matter to the loaded model."""
    engine = cnn_engine(tmp_path / "engine")
    server.load(ServingConfig(engine=engine, max_batch_size=4))
    wanted = expected(engine, {"image": np.ones((1, 3, 32, 32), np.float32)})
    shutil.rmtree(tmp_path / "engine")
    answer = infer(server.endpoint, "cnn", {"image": np.ones((1, 3, 32, 32), np.float32)})
    np.testing.assert_allclose(answer["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
