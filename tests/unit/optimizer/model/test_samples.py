from pathlib import Path

import numpy as np
import pytest
from onnx_models import small_cnn, token_classifier

from optimizer.model.onnx_model import read_model
from optimizer.model.samples import Samples, synthetic_samples
from optimizer.model.shapes import with_shapes


def counted(count: int, *, batched: bool = True) -> Samples:
    return Samples(arrays={"x": np.arange(count)[:, None]}, source="given", batched=batched)


def test_feeds() -> None:
    assert [feed["x"].ravel().tolist() for feed in counted(5).feeds(2)] == [[0, 1], [2, 3], [4]]
    assert [feed["x"].tolist() for feed in counted(2, batched=False).feeds(8)] == [[0], [1]]


def test_parts_have_nothing_in_common() -> None:
    first, second = counted(9).parted(every=4)
    assert second.arrays["x"].ravel().tolist() == [0, 4, 8]
    assert first.arrays["x"].ravel().tolist() == [1, 2, 3, 5, 6, 7]


def test_inputs_must_agree_on_their_number() -> None:
    with pytest.raises(ValueError, match="equally many"):
        Samples(arrays={"a": np.zeros(2), "b": np.zeros(3)}, source="given", batched=True)


def test_tokens_come_from_the_whole_vocabulary(tmp_path: Path) -> None:
    model = with_shapes(read_model(token_classifier(tmp_path / "m.onnx", vocabulary=50)), {"ids": (16,)})
    samples = synthetic_samples(model, 64, seed=0)
    assert samples.source == "synthetic"
    assert samples.arrays["ids"].shape == (64, 16)
    assert set(np.unique(samples.arrays["ids"])) == set(range(50))
    assert set(np.unique(samples.arrays["mask"])) == {0, 1}


def test_the_same_seed_gives_the_same_samples(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "m.onnx", size=8))
    first, again, other = (synthetic_samples(model, 2, seed=seed).arrays["image"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
