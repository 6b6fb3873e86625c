"""Unit: processes that measure on one GPU take turns."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optimizer.engines.timing_child import in_turn


def test_measurements_with_one_folder_do_not_overlap(tmp_path: Path) -> None:
    folder, inside, most = tmp_path / "new", list[int](), list[int]()

    def measure(number: int) -> None:
        for _ in range(50):
            with in_turn(folder):
                inside.append(number)
                time.sleep(0.001)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(measure, range(4)))
    assert (len(most), max(most)) == (200, 1)
