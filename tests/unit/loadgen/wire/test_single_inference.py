"""One inference outside the load: its outputs, or the reason why there are none."""

from typing import Any

import numpy as np
import pytest
from strange_servers import Strange, grpc_answer, http_answer, serving

from loadgen.errors import TargetRefused
from loadgen.spec.target import Target
from loadgen.wire.questions import infer, read_model_info

REQUEST = {"x": np.zeros((1, 4), np.float32)}
REFUSED: dict[str, Any] = {
    "http": http_answer(b'{"error": "no key"}', status="403 Forbidden"),
    "grpc": grpc_answer(None, b"7", b"no key"),
}


@pytest.mark.parametrize("scheme", REFUSED)
def test_outputs_are_arrays_by_their_name(scheme: str) -> None:
    with serving(Strange(name="right", scheme=scheme)) as url:
        target = Target(url=url, model_name="m")
        outputs = infer(target, read_model_info(target), REQUEST)
    assert {name: (values.shape, values.dtype) for name, values in outputs.items()} == {"y": ((1, 2), np.float32)}


@pytest.mark.parametrize("scheme", REFUSED)
def test_a_refusal_is_an_error_and_no_answer_without_outputs(scheme: str) -> None:
    with serving(Strange(name="refuses", scheme=scheme, answers={"infer": REFUSED[scheme]})) as url:
        target = Target(url=url, model_name="m")
        info = read_model_info(target)
        with pytest.raises(TargetRefused):
            infer(target, info, REQUEST)
