"""Tests of the cache of results: what is found again, what is not, and what is never believed."""

import os
import shutil
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from optimizer.cached import (
    ENTRY_FILE,
    NO_CACHE,
    SUM_FILE,
    Entry,
    ResultCache,
    get_file,
    put_file,
    result_cache,
    versions_digest,
)

KEY = {"model": "abc", "shapes": (3, 4)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(folder=tmp_path / "cache")


def entry_of(cache: ResultCache) -> Path:
    (entry,) = (cache.folder / "results").iterdir()
    return entry


def test_a_result_is_found_again_with_its_files(cache: ResultCache, source: Path) -> None:
    cache.put("variant", KEY, {"opset": 17}, {"model.onnx": source})
    found = cache.find("variant", {"shapes": [3, 4], "model": "abc"})
    assert found.value == {"opset": 17}
    assert found.files["model.onnx"].read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("export", KEY),
        ("variant", {**KEY, "model": "abd"}),
        ("variant", {**KEY, "shapes": (4, 3)}),
        ("variant", {"model": "abc"}),
        ("variant", {**KEY, "more": None}),
    ],
)
def test_any_other_key_is_another_result(cache: ResultCache, kind: str, key: dict[str, object]) -> None:
    cache.put("variant", KEY, 1)
    assert cache.find(kind, key) is None


def test_copies_may_be_changed(cache: ResultCache, source: Path, tmp_path: Path) -> None:
    cache.put("variant", KEY, None, {"model.onnx": source})
    copy = cache.find("variant", KEY).copied(tmp_path / "run")["model.onnx"]
    copy.write_bytes(b"changed")
    assert cache.find("variant", KEY).files["model.onnx"].read_bytes() == b"weights"
    assert copy.stat().st_nlink == 1


@pytest.mark.parametrize("damage", ["file", "text", "no file", "fifo", "more", "sparse", "sparse record", "link"])
def test_a_damaged_entry_is_removed(cache: ResultCache, source: Path, damage: str) -> None:
    cache.put("variant", KEY, None, {"model.onnx": source})
    entry = entry_of(cache)
    match damage:
        case "file":
            (entry / "model.onnx").write_bytes(b"weighty")
        case "text":
            (entry / ENTRY_FILE).write_text('{"key": ')
        case "no file":
            (entry / "model.onnx").unlink()
        case "fifo":
            (entry / "model.onnx").unlink()
            os.mkfifo(entry / "model.onnx")
        case "more":
            (entry / "weights-0.bin").write_bytes(b"")
        case "sparse":
            os.truncate(entry / "model.onnx", 2**40)
        case "sparse record":
            os.truncate(entry / ENTRY_FILE, 2**33)
            (entry / SUM_FILE).write_text("0" * 64)
        case "link":
            (entry / "model.onnx").unlink()
            (entry / "model.onnx").symlink_to(source)
    assert cache.find("variant", KEY) is None
    assert not entry.exists()


def test_no_flipped_bit_is_believed(cache: ResultCache, source: Path, tmp_path: Path) -> None:
    cache.put("variant", KEY, {"rows": 17}, {"model.onnx": source})
    shutil.copytree(entry_of(cache), tmp_path / "whole")
    for file in (tmp_path / "whole").iterdir():
        whole = file.read_bytes()
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            (entry_of(cache) / file.name).write_bytes(damaged)
            assert cache.find("variant", KEY) is None, (file.name, at)
            cache.put("variant", KEY, {"rows": 17}, {"model.onnx": source})
    assert cache.find("variant", KEY).value == {"rows": 17}


def test_a_private_model_stays_private(cache: ResultCache, source: Path) -> None:
    cache.put("variant", KEY, None, {"model.onnx": source})
    entry = entry_of(cache)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in entry.iterdir()} == {0o600}


@pytest.mark.parametrize("whose", ["others may write", "another user's"])
def test_an_entry_that_others_may_have_written_is_passed_by(cache: ResultCache, source: Path, whose: str) -> None:
    cache.put("variant", KEY, None, {"model.onnx": source})
    if whose == "others may write":
        entry_of(cache).chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(entry_of(cache), 65534, -1)
    else:
        pytest.skip("only root can give a file away")
    assert cache.find("variant", KEY) is None
    cache.put("variant", KEY, None, {"model.onnx": source})
    assert cache.find("variant", KEY) is not None, "it is replaced"


def test_a_single_file_is_believed_only_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "times" / "a.json"
    assert get_file(path) is None
    put_file(path, b"[1]")
    put_file(path, b"[2]")
    assert get_file(path) == b"[2]"
    path.write_bytes(b"[3]")
    assert get_file(path) is None
    assert not path.exists()
    checksum = path.with_name(f"{path.name}.{SUM_FILE}")
    for spoil in (os.mkfifo, lambda file: file.symlink_to("/dev/zero"), sparse):
        for file in (path, checksum):
            file.unlink(missing_ok=True)
            spoil(file)
            assert get_file(path) is None
            put_file(path, b"[4]")
            assert get_file(path) == b"[4]"
    path.chmod(0o666)
    assert get_file(path) is None, "others may have written it"


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def test_runs_that_write_the_same_at_once_leave_one_whole_entry(cache: ResultCache, source: Path) -> None:
    def write(_: int) -> Entry | None:
        cache.put("variant", KEY, [1], {"model.onnx": source})
        return cache.find("variant", KEY)

    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(write, range(24)))
    assert all(one is not None and one.value == [1] for one in found)
    assert entry_of(cache).is_dir()


def test_what_was_not_used_for_the_longest_time_makes_room(tmp_path: Path, source: Path) -> None:
    cache = ResultCache(folder=tmp_path / "cache", most_bytes=450)
    for number in range(2):
        cache.put("variant", {"number": number}, None, {"model.onnx": source})
        os.utime(max((tmp_path / "cache" / "results").iterdir(), key=os.path.getmtime), (number, number))
    assert cache.find("variant", {"number": 0}) is not None  # used now, so the other one is older
    for name in ("my-models", f"my-{'0' * 32}"):  # the folder of a cache may hold other things
        (tmp_path / "cache" / "results" / name).mkdir()
        (tmp_path / "cache" / "results" / name / "file").write_bytes(b"0" * 250)
    source.write_bytes(b"0" * 250)
    cache.put("variant", {"number": 2}, None, {"model.onnx": source})
    assert len(list((tmp_path / "cache" / "results").glob("my-*/file"))) == 2
    assert [cache.find("variant", {"number": number}) is not None for number in range(3)] == [True, False, True]


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    cache = ResultCache(folder=tmp_path / "cache")
    cache.put("variant", KEY, 1)
    assert cache.find("variant", KEY) is None


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert result_cache(tmp_path, {"TRITUNE_CACHE": "off"}) == NO_CACHE
    assert result_cache(tmp_path, {}).folder == tmp_path
    NO_CACHE.put("variant", KEY, 1)
    assert NO_CACHE.find("variant", KEY) is None


def test_the_version_of_any_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for name in ("some-1.0.dist-info", "some-1.1.dist-info"):
        (tmp_path / name / name).mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, str(tmp_path / name)])
            versions_digest.cache_clear()
            seen.append(versions_digest())
    versions_digest.cache_clear()
    assert len({*seen, versions_digest()}) == 3
