import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import small_cnn, token_classifier

from loadgen.errors import BadInput
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.samples import samples_from_data
from optimizer.model.shapes import with_shapes


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return read_model(small_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx", size=8))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = token_classifier(tmp_path_factory.mktemp("models") / "tokens.onnx")
    return with_shapes(read_model(path), {"ids": (5,)})


def images(count: int = 3, **changes: NDArray[np.float64]) -> dict[Any, Any]:
    return {"image": np.ones((count, 3, 8, 8), np.float32), **changes}


def written(folder: Path, arrays: dict[Any, Any]) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def test_an_npz(cnn: Model, tmp_path: Path) -> None:
    samples = samples_from_data(written(tmp_path, images()), cnn)
    assert (samples.count, samples.source) == (3, "given")
    assert samples.feeds(2)[0]["image"].shape == (2, 3, 8, 8)


def test_a_folder_of_npy(tokens: Model, tmp_path: Path) -> None:
    for name in ("ids", "mask"):
        np.save(tmp_path / f"{name}.npy", np.ones((4, 5), np.int32))
    samples = samples_from_data(tmp_path, tokens)
    assert samples.count == 4
    assert samples.arrays["ids"].dtype == np.int64


def test_doubles_are_fine(cnn: Model, tmp_path: Path) -> None:
    samples = samples_from_data(written(tmp_path, {"image": np.ones((1, 3, 8, 8))}), cnn)
    assert samples.arrays["image"].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"picture": np.ones((3, 3, 8, 8), np.float32)}, "sample 0 .* has no input image"),
        (images(other=np.ones(3)), "has the input other"),
        (images(count=0), "is empty"),
        ({"image": np.ones((3, 8, 8, 3), np.float32)}, r"shape \(8, 8, 3\), and the model takes \(3, 8, 8\)"),
        ({"image": np.full((2, 3, 8, 8), np.nan, np.float32)}, "sample 0 of image holds NaN"),
        (
            {"image": np.where(np.arange(3)[:, None, None, None] == 2, np.inf, np.ones((3, 3, 8, 8)))},
            "sample 2 of",
        ),
        ({"image": np.float32(1)}, "is empty"),
        ({}, "holds no samples"),
        ({"image": np.array([{"a": 1}], dtype=object)}, "holds no samples"),
        ({"image": np.full((1, 3, 8, 8), "x")}, "image is not FP32"),
    ],
)
def test_what_does_not_fit(cnn: Model, tmp_path: Path, arrays: dict[str, NDArray[Any]], words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        samples_from_data(written(tmp_path, arrays), cnn)
    assert caught.value.fix


def test_different_numbers_of_samples(tokens: Model, tmp_path: Path) -> None:
    arrays = {"ids": np.ones((4, 5), np.int64), "mask": np.ones((3, 5), np.int64)}
    with pytest.raises(BadInput, match="'ids': 4, 'mask': 3"):
        samples_from_data(written(tmp_path, arrays), tokens)


def test_fractions_are_no_tokens(tokens: Model, tmp_path: Path) -> None:
    arrays = {"ids": np.full((4, 5), 0.5), "mask": np.ones((4, 5))}
    with pytest.raises(BadInput, match="ids is not INT64"):
        samples_from_data(written(tmp_path, arrays), tokens)


def test_files_that_are_none(cnn: Model, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a file"):
        samples_from_data(tmp_path / "nowhere.npz", cnn)
    (tmp_path / "text.npz").write_text("not numpy")
    with pytest.raises(BadInput, match="holds no samples"):
        samples_from_data(tmp_path / "text.npz", cnn)
    cut = written(tmp_path, images())
    os.truncate(cut, cut.stat().st_size // 2)
    with pytest.raises(BadInput, match="holds no samples"):
        samples_from_data(cut, cnn)
    np.save(tmp_path / "image.npy", np.ones((2, 3, 8, 8), np.float32))
    with pytest.raises(BadInput, match="holds no samples"):
        samples_from_data(tmp_path / "image.npy", cnn)  # the file instead of its folder


def test_samples_of_several_shapes_and_lengths_are_not_for_calibration(tokens: Model, tmp_path: Path) -> None:
    several = [{"ids": [1] * size, "mask": [1] * size} for size in (5, 6)]
    (tmp_path / "data.json").write_text(json.dumps({"data": several}))
    (tmp_path / "lengths.txt").write_text("5\n6\n")
    for name in ("data.json", "lengths.txt"):
        with pytest.raises(BadInput, match=name):
            samples_from_data(tmp_path / name, tokens)
