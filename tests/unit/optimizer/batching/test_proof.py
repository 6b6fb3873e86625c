from typing import Any

import numpy as np
import pytest

from optimizer.batching.proof import PROOF_SAMPLES, Disproved, sample
from optimizer.model.onnx_model import ModelTensor
from optimizer.model.ort_child import difference


def tensor(datatype: str, *dims: Any, sample_dims: tuple[int | str, ...] | None = None) -> ModelTensor:
    return ModelTensor(name="x", datatype=datatype, dims=dims, sample_dims=sample_dims)


def test_equal_results_do_not_differ() -> None:
    values = np.array([[1, 2, np.nan, np.inf]], np.float32)
    assert difference(values, values.copy(), 1e-3) == ""


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (np.array([[1, 2.1]], np.float32), "off by 5.00%"),
        (np.array([[1, np.nan]], np.float32), "off by inf%"),
        (np.array([[1, 2, 3]], np.float32), "has shape (1, 3) instead of (1, 2)"),
    ],
)
def test_differences_are_said(actual: Any, words: str) -> None:
    assert words in difference(np.array([[1, 2]], np.float32), actual, 1e-3)


def test_the_tolerance_is_relative_to_the_largest_value() -> None:
    expected = np.array([[1000, 0]], np.float32)
    assert difference(expected, expected + np.float32(0.9), 1e-3) == ""
    assert difference(expected, expected + np.float32(1.1), 1e-3) != ""


def test_results_that_should_be_zero() -> None:
    zeros = np.zeros((1, 3), np.float32)
    assert difference(zeros, zeros, 1e-3) == ""
    assert difference(zeros, zeros + np.float32(1e-9), 1e-3) != ""


def test_few_classes_may_tip_over_and_many_may_not() -> None:
    classes = np.zeros((1, 10_000), np.int64)
    tipped = classes.copy()
    tipped[0, :5] = 1
    assert difference(classes, tipped, 1e-3) == ""
    tipped[0, :20] = 1
    assert "0.20%" in difference(classes, tipped, 1e-3)


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "INT64", "UINT8", "BOOL"])
def test_samples_differ_and_come_again(datatype: str) -> None:
    inputs = [tensor(datatype, "N", "t", sample_dims=("N", 50))]
    samples = [sample(inputs, seed, same_level=False)["x"] for seed in range(PROOF_SAMPLES)]
    assert all(each.shape == (1, 50) for each in samples)
    assert len({each.tobytes() for each in samples}) == PROOF_SAMPLES
    assert samples[2].tobytes() == sample(inputs, 2, same_level=False)["x"].tobytes()


def test_integers_are_valid_tokens_of_any_vocabulary() -> None:
    values = np.concatenate([sample([tensor("INT64", "N", 200)], seed, same_level=True)["x"] for seed in range(4)])
    assert set(values.ravel()) == {0, 1}


def test_inputs_that_cannot_be_made() -> None:
    with pytest.raises(Disproved, match="BF16"):
        sample([tensor("BF16", "N", 2)], 0, same_level=True)
