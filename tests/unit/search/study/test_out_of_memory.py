"""What counts as out of memory: only then are larger configurations of the same kind left out."""

import pytest

from model_repo.errors import ModelCrashed, ModelLoadFailed, ServerDied
from model_repo.server.process import WORDS
from search.study.trial_runner import ran_out_of_memory


@pytest.mark.parametrize(
    "reason",
    [
        str(ModelCrashed("m", why=WORDS)),
        str(ModelLoadFailed("m", f"its process died while it loaded. {WORDS}")),
        "std::bad_alloc",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.31 GiB",
        "OSError: [Errno 12] Cannot allocate memory",
        "[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 805306368",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "IExecutionContext: Error Code 2: OutOfMemory (Requested size was 8589934592 bytes.)",
        "Requested amount of GPU memory (8589934592 bytes) could not be allocated.",
        "CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_every_library_says_it_in_its_own_words(reason: str) -> None:
    assert ran_out_of_memory(reason)


@pytest.mark.parametrize(
    "reason",
    [
        str(ModelCrashed("m")),
        str(ServerDied("The embedded Triton server has died.\nSee its last log lines.")),
        "m answered without data",
        "failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned",
    ],
)
def test_what_died_of_something_else_says_nothing_of_larger_ones(reason: str) -> None:
    assert not ran_out_of_memory(reason)
