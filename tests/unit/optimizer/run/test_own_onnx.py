"""Which models of a user's repository the embedded server takes, and what is read from an ONNX file for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from own_repositories import BACKENDS, engines_of, fingerprint, own_config, python_model, refused, written

from model_repo.repository.own_model import parse_own
from optimizer.config import OptimizeConfig
from optimizer.run.own_model import own_engines
from search.trials import events

CNN = """\
# agreed with the shop
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""
GROUP = "instance_group [ { count: 3 kind: KIND_CPU } ]\n"
PARAMETER = 'parameters {{ key: "{}" value: {{ string_value: "1" }} }}\n'


def cnn(root: Path, text: str | None, *, file: str = "1/model.onnx", batch: int | str = "N") -> OptimizeConfig:
    folder = written(root / "repository", "cnn", text, {f"{Path(file).parent}/.keep": ""})
    small_cnn(folder / file, batch=batch)
    return own_config(root, "cnn", server="embedded")


def no_server(_engine: Any) -> Mapping[str, Any]:
    raise AssertionError("a server was asked, which takes seconds")


@pytest.mark.parametrize("kind", ["tensorrt_plan", "pytorch_libtorch", "fil", "vllm"])
def test_a_backend_that_the_embedded_server_lacks_is_refused_at_once_and_the_same_in_a_plan(
    tmp_path: Path, kind: str
) -> None:
    name, text = BACKENDS[kind]
    folder = written(tmp_path / "repository", name, text, {"1/model.bin": ""})
    config = own_config(tmp_path, name, server="embedded")
    error = refused(config, no_server)
    assert str(error) == str(refused(config, None))
    assert kind.partition("_")[0].removesuffix("torch") in error.what
    assert "--server docker" in error.fix
    assert not (tmp_path / "run").exists()
    backend = parse_own(text).backend or parse_own(text).platform
    (folder / "1" / f"libtriton_{backend}.so").touch()  # a backend that the model brings along
    assert engines_of(config, on_gpu=True)[0].model_name == name


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("model.plan", "tensorrt"),
        ("model.pt", "pytorch"),
        ("model.savedmodel", "tensorflow"),
        ("model.graphdef", "tensorflow"),
    ],
)
def test_without_a_configuration_the_backend_is_that_of_the_file(tmp_path: Path, file: str, kind: str) -> None:
    written(tmp_path / "repository", "scorer", None, {f"1/{file}": ""})
    assert kind in refused(own_config(tmp_path, server="embedded"), no_server).what


def test_a_member_without_its_backend_is_refused_too(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    written(tmp_path / "repository", "forest", BACKENDS["fil"][1], {"1/xgboost.json": ""})
    config = own_config(tmp_path, server="embedded", calls=("forest",))
    assert "fil" in refused(config, no_server).what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CNN + GROUP, None),
        (CNN, {"instance_group": [("KIND_CPU", 2)]}),
        (CNN + "instance_group { kind: KIND_CPU }\ninstance_group { count: 5 }\n", {"counts": (2, 5)}),
        (CNN.replace("16", "0").replace("[ 3,", "[ 1, 3,").replace("[ 10", "[ 1, 10") + GROUP, None),
        ('backend: "onnxruntime"\nmax_batch_size: 1\n' + GROUP, {"max_batch_size": 1, "batcher": False}),
        ('backend: "onnxruntime"\nmax_batch_size: 9\n' + GROUP, {"max_batch_size": 9, "batcher": True}),
        (None, {"max_batch_size": 4, "batcher": True, "instance_group": [("KIND_CPU", 2)]}),
    ],
    ids=["complete", "no group", "no count", "no batch", "batch 1", "batch 9", "no configuration"],
)
def test_what_triton_completes_is_read_from_the_file_alike_in_run_and_plan(
    tmp_path: Path, text: str | None, expected: dict[str, Any] | None
) -> None:
    """Triton's rules: docs of its auto-completion, and `SetDefaultInstanceCount` in its core."""
    config = cnn(tmp_path, text)
    (planned,) = engines_of(config, None)
    (engine,) = engines_of(config)
    assert engine.own is not None
    assert planned.own is not None
    assert (planned.own.text, planned.inputs, planned.batched) == (engine.own.text, engine.inputs, engine.batched)
    assert (engine.own.text == text) == (expected is None)
    assert engine.own.text.startswith((text or "").partition("instance_group")[0])
    message, given = parse_own(engine.own.text), expected or {}
    assert [tensor.name for tensor in (*message.input, *message.output)] == ["image", "logits"]
    assert list(message.input[0].dims)[-3:] == [3, 32, 32]
    assert message.max_batch_size == given.get("max_batch_size", message.max_batch_size)
    assert message.HasField("dynamic_batching") == given.get("batcher", False)
    groups = [(group.Kind.Name(group.kind), group.count) for group in message.instance_group]
    assert groups == given.get("instance_group", groups)
    assert engine.own.counts == given.get("counts", engine.own.counts)


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("1/ranker.onnx", 'default_model_filename: "ranker.onnx"\n'),
        ("1/model.onnx/model.onnx", ""),
        ("20/model.onnx", ""),
        ("3/model.onnx", "version_policy { specific { versions: [ 3 ] } }\n"),
    ],
)
def test_the_file_of_the_version_that_is_served_is_read(tmp_path: Path, file: str, more: str) -> None:
    config = cnn(tmp_path, f'backend: "onnxruntime"\n{more}', file=file)
    for other in {"20/model.onnx": "3", "3/model.onnx": "9"}.get(file, ""):
        written(tmp_path / "repository", "cnn", None, {f"{other}/model.onnx": "not the one"})
    (engine,) = engines_of(config, None)
    assert [spec.shape for spec in engine.inputs] == [(3, 32, 32)]


@pytest.mark.parametrize(
    ("text", "batch", "word"),
    [
        (CNN, 1, "max_batch_size"),
        (CNN.replace('"image"', '"picture"'), "N", "picture"),
        (CNN.replace('"logits" data_type: TYPE_FP32', '"logits" data_type: TYPE_FP16'), "N", "logits FP16"),
        (CNN + 'default_model_filename: "ranker.onnx"\n', "N", "ranker.onnx"),
    ],
)
def test_what_does_not_fit_the_file_is_refused_alike_in_run_and_plan(
    tmp_path: Path, text: str, batch: int | str, word: str
) -> None:
    config = cnn(tmp_path, text, batch=batch)
    error = refused(config, no_server)
    assert word in error.what
    assert str(error) == str(refused(config, None))


def test_the_difference_of_the_backend_is_noted_with_what_has_no_effect(tmp_path: Path) -> None:
    unread = f"{PARAMETER.format('execution_mode')}optimization {{ graph {{ level: 1 }} }}\n"
    config = cnn(tmp_path, CNN + GROUP + PARAMETER.format("intra_op_thread_count") + unread)
    before, seen = fingerprint(tmp_path), list[Any]()
    record, _ = own_engines(config, tmp_path, on_gpu=False, ask=None, on_event=seen.append)
    (note,) = seen
    assert "optimization" in note.text
    assert "execution_mode" in note.text
    assert "intra_op_thread_count" not in note.text
    assert "ONNX Runtime" in record.batching  # which report and plan show
    python_model(tmp_path / "repository")
    assert fingerprint(tmp_path) != before
    record, _ = own_engines(
        own_config(tmp_path, server="embedded", calls=("cnn",)),
        tmp_path / "kept",
        on_gpu=False,
        ask=None,
        on_event=events.ignore,
    )
    assert "ONNX Runtime" in record.batching


def test_only_threads_of_onnx_runtime_are_varied(tmp_path: Path) -> None:
    config = cnn(tmp_path, CNN + GROUP)
    for path in ("parameters.execution_mode", "optimization.graph.level"):
        varied = own_config(tmp_path, "cnn", server="embedded", vary=((path, ("1",)),))
        assert path in refused(varied, no_server).what
    threads = (("parameters.intra_op_thread_count", ("1", "2")), ("instance_group.0.kind", ("KIND_CPU",)))
    assert len(engines_of(own_config(tmp_path, "cnn", server="embedded", vary=threads))) == 3
    assert len(engines_of(config)) == 1


def test_numpy_2_is_refused_of_python_models_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded Triton misreads its arrays; our own backend passes tensors in another way."""
    newer = tmp_path / "packages" / "numpy-2.2.6.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.2.6\n")
    python_model(tmp_path / "repository")
    onnx, python = cnn(tmp_path, CNN + GROUP), own_config(tmp_path, server="embedded")
    assert engines_of(python)
    monkeypatch.syspath_prepend(newer.parent)
    assert "NumPy 2.2.6" in refused(python, no_server).what
    assert engines_of(own_config(tmp_path))  # in a container
    assert engines_of(onnx)
