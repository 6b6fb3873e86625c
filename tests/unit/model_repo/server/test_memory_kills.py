"""Tests that a server killed by the kernel for its memory is distinguished from one that died otherwise."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_repo.errors import ModelCrashed, ServerDied
from model_repo.server.hosts import Host
from model_repo.server.options import ServerOptions
from model_repo.server.process import WORDS, count_memory_kills
from model_repo.server.triton import Server
from model_repo.spec import Endpoint


class DeadHost(Host):
    """A server that is gone; see `model_repo.server.hosts.Host`."""

    endpoint = Endpoint(host="127.0.0.1", http_port=1, grpc_port=2, metrics_port=None)

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def alive(self) -> bool:
        return False

    def restart(self) -> None:
        """Do nothing: it stays dead."""

    def free(self, model_names: Sequence[str]) -> None:
        """Do nothing: nothing is loaded."""

    def count_instances(self, model_name: str) -> int | None:
        return 0


@pytest.mark.parametrize(
    ("kills", "said"),
    [((3, 4), True), ((3, 3), False), ((None, None), False), ((None, 2), False)],
)
def test_it_is_said_where_the_kernel_killed_anything_meanwhile(
    tmp_path: Path, kills: tuple[int | None, int | None], said: bool
) -> None:
    counts = iter(kills)
    server = Server(DeadHost(tmp_path), ServerOptions(run_dir=tmp_path), memory_kills=lambda: next(counts))
    with pytest.raises(ServerDied) as caught:
        server.check()
    assert (WORDS in str(caught.value)) is said
    assert len(str(caught.value).splitlines()) == 2


def test_a_model_that_died_of_we_know_not_what_is_not_called_out_of_memory() -> None:
    assert "out of memory" not in str(ModelCrashed("m"))
    assert "out of memory" in str(ModelCrashed("m", why=WORDS))


def test_the_kernels_counter_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, kills in (("oom_kill_memcg 7\noom_kill 12\nnr_free_pages 1\n", 12), ("nr_free_pages 1\n", None)):
        (tmp_path / "vmstat").write_text(text)
        with monkeypatch.context() as patched:
            patched.setattr("model_repo.server.process._COUNTERS", tmp_path / "vmstat")
            assert count_memory_kills() == kills
    found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    assert count_memory_kills() == (int(found[1]) if found else None)
