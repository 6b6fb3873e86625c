"""A model of a user's own repository on a real Triton: completed, served with changes, and left as it is."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime
import pytest
from infer import get, infer
from onnx_models import small_cnn
from own_repositories import MODEL, PYTHON, ensemble, fingerprint, may_not_write, python_model, written
from server_kinds import docker_on_path, tritonserver_on_path
from waiting import wait_until

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.slo_test import certify
from model_repo.errors import ModelLoadFailed
from model_repo.repository.write import write_final_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.options import DEFAULT_IMAGE, ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Engine
from optimizer.config import OptimizeConfig
from optimizer.run.bundle import winner_of
from optimizer.run.own_model import own_engines
from optimizer.run.prepare import prepare, read_inputs
from optimizer.run.serving import completed_configs, serving_bench
from optimizer.run_file import slo_of
from optimizer.space_options import with_models_from_texts
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_outcome
from search.space import default_config
from search.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

OPTIMIZE = str(Path(sys.executable).with_name("optimize"))


VARY = (("parameters.factor", ("3",)), ("optimization.input_pinned_memory.enable", ("false",)))


def config_for(root: Path, **changes: object) -> OptimizeConfig:
    (root / "run").mkdir()
    given = {"limits": (LatencyLimit(limit_ms=50.0),), "repository": root / "users", "model": "scorer", **changes}
    return OptimizeConfig(output=root / "run", **given)  # type: ignore[arg-type]


def read(config: OptimizeConfig) -> tuple[Engine, ...]:
    folder = config.output.parent / "kept"
    ask = partial(completed_configs, config)
    return own_engines(config, folder, on_gpu=False, ask=ask, on_event=print)[1]


@pytest.mark.parametrize(
    ("text", "protocol"), [(PYTHON, "http"), (None, "grpc")], ids=["as written", "without a configuration"]
)
def test_a_model_is_completed_and_served_with_changes(tmp_path: Path, text: str | None, protocol: str) -> None:
    python_model(tmp_path / "users", config=text)
    python_model(tmp_path / "users", "neighbour")
    may_not_write(tmp_path / "users")
    before = fingerprint(tmp_path / "users")
    config = config_for(tmp_path, protocol=protocol, vary=VARY)
    engines = read(config)
    as_it_is, varied = (default_config(engine) for engine in engines)
    assert as_it_is.dynamic_batching  # the model itself asks for it
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        for served, factor in (
            (as_it_is, 2 if text else 1),
            (replace(as_it_is, instance_count=3), 2 if text else 1),
            (replace(varied, max_batch_size=4, max_queue_delay_us=500, preferred_batch_sizes=()), 3),
        ):
            server.load(served)
            server.check()
            (y,) = infer(server.endpoint, "scorer", {"x": x}).values()
            np.testing.assert_array_equal(y, factor * x + 1)
        loaded = get(server.endpoint, "/v2/models/scorer/config")
        assert loaded["max_batch_size"] == 4
        assert not loaded["optimization"].get("input_pinned_memory", {"enable": True})["enable"]
        assert loaded["dynamic_batching"]["max_queue_delay_microseconds"] == 500
    assert fingerprint(tmp_path / "users") == before


def test_a_named_configuration_for_a_gpu_is_served_on_the_cpu_if_vary_says_so(tmp_path: Path) -> None:
    python_model(tmp_path / "users", config=None)
    given = PYTHON.replace('"2"', '"5"').replace("KIND_CPU }", "KIND_GPU gpus: 0 }", 1)
    written(tmp_path / "users", "scorer", None, {"configs/h100.pbtxt": given})
    before = fingerprint(tmp_path / "users")
    config = config_for(tmp_path, model_config_name="h100")
    with pytest.raises(BadInput, match="KIND_GPU"):
        read(config)
    (engine,) = read(replace(config, vary=(("instance_group.0.kind", ("KIND_CPU",)),)))
    write_final_repository(tmp_path / "final", default_config(engine))
    with serve_repository(tmp_path / "final", ServerOptions(run_dir=tmp_path / "run")) as server:
        (y,) = infer(server.endpoint, "scorer", {"x": np.ones((1, 4), np.float32)}).values()
        groups = get(server.endpoint, "/v2/models/scorer/config")["instance_group"]
    np.testing.assert_array_equal(y, np.full((1, 4), 6, np.float32))
    assert [(group["kind"], group["count"]) for group in groups] == [("KIND_CPU", 1)] * 2
    assert fingerprint(tmp_path / "users") == before


@pytest.mark.parametrize(
    ("more", "code", "reason"),
    [
        ("", "raise ValueError('no license for this host')\n", "no license for this host"),
        ("from_the_future { knob: 3 }\n", "", 'has no field named "from_the_future"'),
        ('name: "another"\n', "", "another"),
    ],
)
def test_a_model_that_does_not_load_is_quoted_and_stays_as_it_is(
    tmp_path: Path, more: str, code: str, reason: str
) -> None:
    written(tmp_path / "users", "scorer", PYTHON + more, {"1/model.py": code})
    before = fingerprint(tmp_path / "users")
    config = config_for(tmp_path)
    with pytest.raises(BadInput) as raised:
        read(config)
    assert reason in raised.value.what
    assert fingerprint(tmp_path / "users") == before


ONNX = """\
# Ask the vision team before you change it.
platform: "onnxruntime_onnx"
default_model_filename: "cnn.onnx"
max_batch_size: 8
dynamic_batching { }   # the jobs at night need it
optimization { graph { level: 1 } }
"""


@pytest.mark.parametrize("text", [ONNX, None], ids=["as written", "without a configuration"])
def test_an_onnx_model_is_served_from_the_users_text_by_a_server_without_its_backend(
    tmp_path: Path, text: str | None
) -> None:
    """The wheel's Triton has no such backend: it is ours, of the same name, so nothing of the text changes."""
    folder = written(tmp_path / "users", "cnn", text, {"7/.keep": ""})
    file = small_cnn(folder / "7" / ("cnn.onnx" if text else "model.onnx"))
    may_not_write(tmp_path / "users")
    before = fingerprint(tmp_path / "users")
    vary = (("parameters.intra_op_thread_count", ("1",)),)
    config = config_for(tmp_path, model="cnn", vary=vary)
    (planned, _), (_, varied) = (
        own_engines(config, tmp_path / "kept", on_gpu=False, ask=ask, on_event=print)[1]
        for ask in (None, partial(completed_configs, config))
    )
    as_it_is = replace(default_config(planned), engine=read(config)[0])
    assert planned.own.text == as_it_is.engine.own.text
    assert (as_it_is.max_batch_size, as_it_is.instance_count) == (8 if text else 4, 2)
    images = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(file).run(None, {"image": images})
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        for served in (
            as_it_is,
            replace(as_it_is, instance_count=3),
            replace(default_config(varied), max_batch_size=3),
        ):
            server.load(served)
            server.check()
            (logits,) = infer(server.endpoint, "cnn", {"image": images}).values()
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        loaded = get(server.endpoint, "/v2/models/cnn/config")
        assert loaded["parameters"] == {"intra_op_thread_count": {"string_value": "1"}}
        assert (loaded["backend"], loaded["max_batch_size"]) == ("onnxruntime", 3)
    final = write_final_repository(tmp_path / "final", replace(as_it_is, instance_count=1))
    assert (final / "config.pbtxt").read_text().startswith(text or "")
    assert sorted(path.name for path in (final / "7").iterdir()) == sorted([".keep", file.name])  # no code of ours
    with serve_repository(tmp_path / "final", ServerOptions(run_dir=tmp_path / "run")) as static:
        (logits,) = infer(static.endpoint, "cnn", {"image": images}).values()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert fingerprint(tmp_path / "users") == before


def test_a_run_ends_with_the_users_text_and_a_bundle_that_is_served(tmp_path: Path) -> None:
    """The promise is easy; whether this machine kept it now, the record and the exit code say alike."""
    given = f'{PYTHON}parameters {{ key: "wait_s" value {{ string_value: "0.02" }} }}\n'
    python_model(tmp_path / "users", config=given)
    before = fingerprint(tmp_path / "users")
    easy = "--p90 200ms --confidence 0.8 --max-send-lag 1s --despite-noise --time-budget 20s"
    own = ("--repository", str(tmp_path / "users"), "--model", "scorer", "--output", str(tmp_path / "run"))
    done = subprocess.run(
        [OPTIMIZE, *own, *easy.split(), "--json"], capture_output=True, text=True, timeout=500, check=False
    )
    assert fingerprint(tmp_path / "users") == before
    found = read_outcome(tmp_path / "run")
    assert json.loads(done.stdout)["status"] == found.status
    assert done.returncode == found.exit_code, done.stderr
    if not isinstance(found, RecommendationRecord):
        assert found.status in ("violated", "inconclusive", "untrustworthy"), done.stderr
        return
    bundle = tmp_path / "run" / "bundle"
    text = (bundle / "model_repository" / "scorer" / "config.pbtxt").read_text()
    assert text.startswith(PYTHON.partition("\n")[0])
    assert (text == given) == (not found.config_diff)
    (tmp_path / "served").mkdir()
    with serve_repository(bundle / "model_repository", ServerOptions(run_dir=tmp_path / "served")) as server:
        (y,) = infer(server.endpoint, "scorer", {"x": np.ones((1, 4), np.float32)}).values()
        loaded = get(server.endpoint, "/v2/models/scorer/config")
    np.testing.assert_array_equal(y, np.full((1, 4), 3, np.float32))
    winner = winner_of(tmp_path / "run", found)
    assert sum(group["count"] for group in loaded["instance_group"]) == winner.instance_count
    assert ("dynamic_batching" in loaded) == winner.dynamic_batching


def test_an_ensemble_is_served_with_changes_of_its_members(tmp_path: Path) -> None:
    ensemble(tmp_path / "users", second="dynamic_batching { }\n")
    before = fingerprint(tmp_path / "users")
    (engine,) = read(config_for(tmp_path, model="pair", protocol="grpc"))
    assert [member.model_name for member in engine.members] == ["first", "second"]
    as_it_is = default_config(engine)
    first, second = as_it_is.members
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        for members in (
            (first, second),
            (first, replace(second, instance_count=3)),
            (replace(first, max_batch_size=2, preferred_batch_sizes=()), replace(second, max_queue_delay_us=500)),
        ):
            server.load(replace(as_it_is, members=members))
            server.check()
            (y,) = infer(server.endpoint, "pair", {"x": x}).values()
            np.testing.assert_array_equal(y, 2 * (2 * x + 1) + 1)
            counts = [
                get(server.endpoint, f"/v2/models/{name}/config")["instance_group"] for name in ("first", "second")
            ]
            assert [sum(group["count"] for group in groups) for groups in counts] == [
                one.instance_count for one in members
            ]
        loaded = [(server.repository / name / "notes.txt").read_text() for name in ("first", "second")]
        assert loaded == ["loaded\n" * one.instance_count for one in members]  # each process once
        assert get(server.endpoint, "/v2/models/pair/config")["max_batch_size"] == 2  # as many as `first` takes
        server.unload()
        assert not any(server.repository.iterdir())
    assert fingerprint(tmp_path / "users") == before


CALLER = MODEL.replace(
    "        found =",
    """        asked = pb_utils.InferenceRequest(
            model_name="inner",
            requested_output_names=["y"],
            inputs=[pb_utils.get_input_tensor_by_name(requests[0], "x")],
        )
        answer = asked.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        y = pb_utils.get_output_tensor_by_name(answer, "y").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])]
        found =""",
)


def test_a_model_that_a_member_calls_is_served_with_the_ensemble_and_changed(tmp_path: Path) -> None:
    ensemble(tmp_path / "users")
    written(tmp_path / "users", "first", None, {"1/model.py": CALLER})
    python_model(tmp_path / "users", "inner", PYTHON.replace('"2"', '"5"'))
    (engine,) = read(config_for(tmp_path, model="pair", calls=("inner",)))
    config = default_config(engine)
    *steps, inner = config.members
    x = np.ones((1, 4), np.float32)
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        for called in (inner, replace(inner, instance_count=3), replace(inner, max_queue_delay_us=9)):
            server.load(replace(config, members=(*steps, called)))
            server.check()
            (y,) = infer(server.endpoint, "pair", {"x": x}).values()
            np.testing.assert_array_equal(y, 2 * (5 * x + 1) + 1)
            groups = get(server.endpoint, "/v2/models/inner/config")["instance_group"]
            assert sum(group["count"] for group in groups) == called.instance_count
            notes = [(server.repository / one.engine.model_name / "notes.txt").read_text() for one in steps]
            assert notes == ["loaded\n" * one.instance_count for one in steps]
        server.unload()
        assert not any(server.repository.iterdir())


def test_a_member_that_does_not_load_is_named_and_nothing_stays(tmp_path: Path) -> None:
    ensemble(tmp_path / "users")
    (engine,) = read(config_for(tmp_path, model="pair"))
    config = default_config(engine)
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        for model_file in (tmp_path / "kept").rglob("second/**/model.py"):
            model_file.write_text("raise ValueError('no license for this host')\n")
        with pytest.raises(ModelLoadFailed) as raised:
            server.load(config)
        assert raised.value.reason == "second: ValueError: no license for this host"
        assert not any(server.repository.iterdir())
        assert server.alive()


def test_a_repository_with_an_ensemble_is_served_whatever_its_order(tmp_path: Path) -> None:
    ensemble(tmp_path / "users")
    (engine,) = read(config_for(tmp_path, model="pair"))
    write_final_repository(tmp_path / "final", default_config(engine))
    with serve_repository(tmp_path / "final", ServerOptions(run_dir=tmp_path / "run")) as server:
        assert [path.name for path in server.models] == ["first", "pair", "second"]  # which the ensemble needs
        (y,) = infer(server.endpoint, "pair", {"x": np.ones((1, 4), np.float32)}).values()
    np.testing.assert_array_equal(y, np.full((1, 4), 7, np.float32))


def test_a_model_beside_it_gets_its_load_and_is_judged(tmp_path: Path) -> None:
    for name in ("scorer", "words"):
        python_model(tmp_path / "users", name)
    limit = LatencyLimit(limit_ms=500.0, quantile=0.5)
    with_models = with_models_from_texts(["words:p50=500ms,rate=40"])
    config = config_for(tmp_path, limits=(limit,), with_models=with_models, most_send_lag_ms=5_000.0)
    prepared = prepare(
        config, read_inputs(config, work_dir=tmp_path / "kept"), ask_server=partial(completed_configs, config)
    )
    with serving_bench(config, prepared, Workload()) as bench:
        bench.load(prepared.space.baseline())
        probe = bench.measure(20.0, 3.0, seed=1)
        assert bench.saturate(2, 1.0, seed=1).members == {}
    others = (probe.log.colocated or {})["words"]
    assert len(others) > 0
    assert not probe.log.failed.any()
    assert not others.failed.any()
    assert all(certify(probe.log, limit).n > 0 for limit in slo_of(config).tested)


def test_an_ensemble_that_is_busy_makes_room_for_the_next_configuration(tmp_path: Path) -> None:
    """Triton keeps it until its members have answered: one that never does is not waited for."""
    ensemble(tmp_path / "users")
    busy = MODEL.replace("time.sleep(self.wait_s)", 'NOTES.write_text("called"); time.sleep(1e6)')
    written(tmp_path / "users", "second", None, {"1/model.py": busy})
    (engine,) = read(config_for(tmp_path, model="pair"))
    config = default_config(engine)
    options = ServerOptions(run_dir=tmp_path / "run", load_timeout_s=60.0)
    with serve(options) as server, ThreadPoolExecutor() as pool:
        server.load(config)
        answer = pool.submit(infer, server.endpoint, "pair", {"x": np.ones((1, 4), np.float32)})
        notes = server.repository / "second" / "notes.txt"
        wait_until(lambda: notes.read_text() == "called")
        server.load(replace(config, members=(config.members[0], replace(config.members[1], max_queue_delay_us=9))))
        server.check()
        assert answer.exception() is not None


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_server_that_is_not_embedded_completes_and_serves_an_ensemble(
    tmp_path: Path, kind: Literal["local", "docker"]
) -> None:
    ensemble(tmp_path / "users", second="dynamic_batching { }\n")
    before = fingerprint(tmp_path / "users")
    folder = tmp_path / "server"
    path = docker_on_path(folder, DEFAULT_IMAGE) if kind == "docker" else tritonserver_on_path(folder)
    with path:
        (engine,) = read(config_for(tmp_path, model="pair", server=kind))
        config = default_config(engine)
        first, second = config.members
        smaller = replace(first, max_batch_size=2, preferred_batch_sizes=())
        with serve(ServerOptions(run_dir=tmp_path / "run", kind=kind)) as server:
            for members in (
                (first, second),
                (smaller, replace(second, instance_count=3)),
            ):
                server.load(replace(config, members=members))
                server.check()
                (y,) = infer(server.endpoint, "pair", {"x": np.ones((1, 4), np.float32)}).values()
                np.testing.assert_array_equal(y, np.full((1, 4), 7, np.float32))
            groups = get(server.endpoint, "/v2/models/second/config")["instance_group"]
    assert sum(group["count"] for group in groups) == 3
    assert fingerprint(tmp_path / "users") == before
