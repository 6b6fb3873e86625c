"""PyTorch models become ONNX that gives the same; each export is a process with PyTorch of its own."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optimizer.cached import ResultCache
from optimizer.errors import ExportFailed
from optimizer.model.export import export_model
from optimizer.model.onnx_model import read_model
from optimizer.model.ort_child import run_model

pytestmark = [pytest.mark.system, pytest.mark.long]

FACTORIES = """
import torch

class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 8)
        self.linear = torch.nn.Linear(8, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, ids, mask):
        states = self.table(ids) * mask.unsqueeze(-1)
        return {"scores": self.linear(self.drop(states.sum(1))), "states": states}

def by_name():
    ids = torch.randint(0, 50, (1, 6))
    return Scores(), {"ids": ids, "mask": torch.ones(1, 6)}, {"ids": {1: "tokens"}, "mask": {1: "tokens"}}

def by_position():
    return torch.nn.Linear(4, 2), (torch.randn(1, 4),)

def normalized():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.rand(4), 1 + torch.rand(4)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU()), (torch.rand(1, 3, 8, 8),)

def no_module():
    return 3

def raises():
    raise ValueError("no weights here")

def leaves():
    import sys
    sys.exit("the weights are not installed")

def takes_arguments(size):
    return torch.nn.Linear(size, size), (torch.randn(1, size),)

not_callable = 3

class Says(torch.nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)

def text():
    return Says(lambda x: "text"), (torch.randn(1, 4),)

def a_number_beside_a_tensor():
    return Says(lambda x: {"y": x + 1, "n": 3}), (torch.randn(1, 4),)

def nothing():
    return Says(lambda x: None), (torch.randn(1, 4),)

def brain_floats():
    return Says(lambda x: x.bfloat16()), (torch.randn(1, 4),)

def does_not_run():
    return Says(lambda x: x @ x.new_ones(5, 5)), (torch.randn(1, 4),)

def a_lone_tensor():
    return torch.nn.Linear(4, 2), torch.randn(1, 4)

def too_many_inputs():
    return torch.nn.Linear(4, 2), (torch.randn(1, 4), torch.randn(1, 4))

def another_name():
    return torch.nn.Linear(4, 2), {"pixels": torch.randn(1, 4)}

def axis_beyond():
    return torch.nn.Linear(4, 2), (torch.randn(1, 4),), {"input": {2: "tokens"}}

def axes_as_a_list():
    return torch.nn.Linear(4, 2), (torch.randn(1, 4),), {"input": [1]}

def an_unknown_input():
    return torch.nn.Linear(4, 2), (torch.randn(1, 4),), {"x": {1: "tokens"}}

def depends_on_the_batch():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x + x.new_tensor([float(i) for i in range(int(x.shape[0]))])[:, None]
    return Fixed(), (torch.randn(2, 4),)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch", reason="needs the extra torch")
    pytest.importorskip("onnxscript", reason="needs the extra torch")
    (tmp_path / "my_models.py").write_text(FACTORIES)
    (tmp_path / "broken_module.py").write_text("def made(:")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_factory_with_inputs_by_name(factories: Any) -> None:
    model = read_model(export_model("my_models:by_name", factories / "out").path)
    assert [(tensor.name, tensor.dims) for tensor in model.all_inputs] == [
        ("ids", ("batch", "tokens")),
        ("mask", ("batch", "tokens")),
    ]
    feed = {"ids": np.zeros((7, 3), np.int64), "mask": np.ones((7, 3), np.float32)}
    assert next(iter(run_model(model.path, [feed])[0].values())).shape == (7, 3)  # type: ignore[list-item]


def test_a_factory_with_inputs_by_position(factories: Any) -> None:
    model = read_model(export_model("my_models:by_position", factories / "out").path)
    assert [tensor.dims for tensor in model.all_inputs] == [("batch", 4)]


def test_a_batch_normalization_becomes_part_of_the_layer_before_it(factories: Any) -> None:
    """Else casts to fp16 would be around it. `export_model` has compared the results."""
    exported = export_model("my_models:normalized", factories / "out")
    assert {node.op_type for node in onnx.load(exported.path).graph.node} == {"Conv", "Relu"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("my_models:no_module", "returned int"),
        ("my_models:nowhere", "no attribute 'nowhere'"),
        ("no_such_module:made", "No module named 'no_such_module'"),
        ("broken_module:made", r"importing broken_module raised SyntaxError"),
        ("my_models:raises", r"raised ValueError: no weights here \(my_models.py, line \d+\)"),
        ("my_models:leaves", "raised SystemExit: the weights are not installed"),
        ("my_models:takes_arguments", "raised TypeError: .*missing 1 required positional argument"),
        ("my_models:not_callable", "is int, not a callable"),
        ("my_models:text", "returns str, and only tensors"),
        ("my_models:a_number_beside_a_tensor", "returns int, and only tensors"),
        ("my_models:nothing", "returns nothing"),
        ("my_models:brain_floats", "returns bfloat16"),
        ("my_models:does_not_run", "does not run on its example inputs at batch 1: RuntimeError"),
        ("my_models:a_lone_tensor", "inputs are not tensors"),
        ("my_models:too_many_inputs", "forward does not take the example inputs: too many"),
        ("my_models:another_name", "forward does not take the example inputs: .*'input'"),
        ("my_models:axis_beyond", "input has no axis 2"),
        ("my_models:axes_as_a_list", "not a dict of dicts"),
        ("my_models:an_unknown_input", "no input is called 'x'"),
        ("my_models:depends_on_the_batch", "cannot export|was to vary|does not run|differs from PyTorch"),
    ],
)
def test_factories_that_cannot_be_exported(factories: Any, spec: Path | str, words: str) -> None:
    with pytest.raises(ExportFailed, match=words) as caught:
        export_model(spec, factories / "out")
    assert caught.value.fix
    assert len(str(caught.value).splitlines()) <= 2


HUGGING_FACE = """
from pathlib import Path

def states():
    import torch
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(
        Path(__file__).parent / "folder", attn_implementation="eager", local_files_only=True
    )

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids, attention_mask):
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.randint(0, 90, (2, 6))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return States(), inputs, {name: {1: "sequence"} for name in inputs}
"""


def test_a_folder_of_hugging_face_by_way_of_a_factory(factories: Any) -> None:
    """Its weights are random: config.json and model.safetensors are what matters."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.BertConfig(
        vocab_size=90, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(factories / "folder")
    assert {path.name for path in (factories / "folder").iterdir()} == {"config.json", "model.safetensors"}
    (factories / "hugging_face.py").write_text(HUGGING_FACE)
    model = read_model(export_model("hugging_face:states", factories / "out").path)
    assert [(tensor.name, tensor.dims) for tensor in model.all_inputs] == [
        ("input_ids", ("batch", "sequence")),
        ("attention_mask", ("batch", "sequence")),
    ]


def test_an_exported_program(factories: Any) -> None:
    import torch

    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, factories / "linear.pt2")
    model = read_model(export_model(factories / "linear.pt2", factories / "out").path)
    assert model.batch == "dynamic"


def test_a_pt2_that_would_run_code(factories: Any) -> None:
    """A pickle that would write a file, in the place of an archive: it is refused and nothing is written."""
    import pickle

    class Evil:
        def __reduce__(self) -> str | tuple[Any, ...]:
            return os.system, (f"touch {factories / 'owned'}",)

    (factories / "evil.pt2").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ExportFailed, match="not an ExportedProgram"):
        export_model(factories / "evil.pt2", factories / "out")
    assert not (factories / "owned").exists()


CACHED = """
import json, torch
from pathlib import Path

class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.scale = [scale]  # in no state dict, and no plain attribute

    def forward(self, x):
        return self.linear(x) * self.scale[0]

def model():
    torch.manual_seed(0)
    return Scaled(json.loads(Path("scale.json").read_text())), (torch.randn(2, 8),)

def other_weights():
    torch.manual_seed(1)
    return Scaled(json.loads(Path("scale.json").read_text())), (torch.randn(2, 8),)
"""


def test_an_export_is_kept_by_content_and_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept_models.py").write_text(CACHED)
    (tmp_path / "scale.json").write_text("2.0")
    cache = ResultCache(folder=tmp_path / "cache")

    def once(name: str, factory: str = "model") -> tuple[bool, bytes]:
        read: list[bytes] = []
        done = export_model(
            f"kept_models:{factory}",
            tmp_path / name,
            cache=cache,
            meanwhile=lambda path: read.append(path.read_bytes()),
        )
        assert read[-1] == done.path.read_bytes()
        return done.cached, read[-1]

    first, second = once("first"), once("second")
    assert (first[0], second[0]) == (False, True)
    assert second[1] == first[1]
    assert not once("weights", "other_weights")[0]
    # A file that the factory reads is not in the key: the check notices, and the model is exported anew.
    (tmp_path / "scale.json").write_text("3.0")
    assert not once("file")[0]
    assert once("again")[0]
