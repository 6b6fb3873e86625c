from typing import Any

import pytest
from engines import plain_engine as engine

from model_repo.repository.config_pbtxt import (
    graph_batch_sizes,
    parse_config_pbtxt,
    render_config_pbtxt,
)
from model_repo.spec import ServingConfig, TensorSpec


def parsed(runtime: Any = "python", **changes: Any) -> Any:
    given: dict[str, Any] = {"engine": engine(), "max_batch_size": 8}
    return parse_config_pbtxt(render_config_pbtxt(ServingConfig(**{**given, **changes}), runtime=runtime))


def test_no_dynamic_batching_unless_asked_for() -> None:
    assert parsed().HasField("dynamic_batching")
    assert not parsed(dynamic_batching=False).HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("batched", "dims"), [(True, [-1, 3, 8]), (False, [3, 8])], ids=["batch axis not Triton's", "no batch axis"]
)
def test_without_batching_requests_carry_whole_tensors(batched: bool, dims: list[int]) -> None:
    message = parsed(engine=engine(batched=batched), max_batch_size=0, dynamic_batching=False)
    assert list(message.input[0].dims) == dims


def test_one_number_a_request_is_reshaped() -> None:
    x = TensorSpec(name="x", datatype="FP32", shape=())
    message = parsed(engine=engine(inputs=(x,)))
    assert list(message.input[0].dims) == [1]
    assert list(message.input[0].reshape.shape) == []
    assert message.input[0].HasField("reshape")
    assert list(message.model_warmup[0].inputs["x"].dims) == [1]


def test_warm_up_sends_every_input_in_every_size() -> None:
    ids = TensorSpec(name="ids", datatype="INT64", shape=(-1,), sample_shape=(16,))
    mask = TensorSpec(name="mask", datatype="INT64", shape=(-1,), sample_shape=(16,))
    message = parsed(engine=engine(inputs=(ids, mask)), max_batch_size=4)
    assert [sample.batch_size for sample in message.model_warmup] == [1, 2, 4]
    for sample in message.model_warmup:
        assert {name: list(tensor.dims) for name, tensor in sample.inputs.items()} == {"ids": [16], "mask": [16]}


def test_no_warm_up_where_no_shape_is_known() -> None:
    assert not parsed(engine=engine(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1,)),))).model_warmup


def test_no_native_backend_for_tensorrt_rtx() -> None:
    with pytest.raises(ValueError, match="no backend for tensorrt_rtx"):
        parsed(engine=engine(backend="tensorrt_rtx"), runtime="native")


def test_the_sizes_of_a_smaller_maximum_are_among_those_of_a_larger_one() -> None:
    assert graph_batch_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert graph_batch_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert graph_batch_sizes(4) == (1, 2, 4)
    assert graph_batch_sizes(1) == (1,)
    assert graph_batch_sizes(0) == ()


def test_a_native_graph_needs_every_size() -> None:
    ids = TensorSpec(name="ids", datatype="INT64", shape=(-1,))
    on_gpu = engine(backend="tensorrt", device="gpu", inputs=(ids,))
    with pytest.raises(ValueError, match="needs the size of every dimension"):
        parsed(engine=on_gpu, runtime="native", cuda_graph_batch_sizes=(4,))


def test_strings_have_their_own_name_in_triton() -> None:
    words = TensorSpec(name="words", datatype="BYTES", shape=(1,))
    message = parsed(engine=engine(inputs=(words,)))
    assert message.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name[
        "TYPE_STRING"
    ].number == (message.input[0].data_type)


def test_parse_refuses_what_is_no_config() -> None:
    with pytest.raises(ValueError, match=r"not a config\.pbtxt"):
        parse_config_pbtxt("max_batch_size: many")
