"""A bundle replaces an unchanged bundle, and nothing else is ever lost."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundles import on_disk

from deploy.bundle import Bundle, bundle_from_recommendation, write_bundle
from deploy.render import MANIFEST_FILE
from loadgen.errors import BadInput


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_from_recommendation(*on_disk(tmp_path_factory.mktemp("model")), targets=("compose",))  # type: ignore[arg-type]


def files(folder: Path) -> dict[Any, Any]:
    return {
        path.relative_to(folder).as_posix(): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_the_manifest_lists_every_file_with_its_hash(rendered: Bundle, tmp_path: Path) -> None:
    assert write_bundle(rendered, tmp_path / "bundle") is None
    written = files(tmp_path / "bundle")
    listed = json.loads(written.pop(MANIFEST_FILE))["files"]
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in written.items()}
    assert set(listed) == {*rendered.texts, *rendered.data, *rendered.copies}


def _foreign_file(folder: Any) -> str:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")
    return ".git/HEAD"


def _changed(folder: Any) -> str:
    (folder / "compose.yaml").write_text("mine")
    return "compose.yaml"


def _no_manifest(folder: Any) -> str:
    (folder / MANIFEST_FILE).unlink()
    return MANIFEST_FILE


def _broken_manifest(folder: Any) -> str:
    (folder / MANIFEST_FILE).write_text("{" * 200_000)
    return MANIFEST_FILE


def _fifo(folder: Any, name: str = "compose.yaml") -> str:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    return name


DAMAGES = (_foreign_file, _changed, _no_manifest, _broken_manifest, _fifo, partial(_fifo, name=MANIFEST_FILE))


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_an_unchanged_bundle_is_named_and_stays(
    rendered: Bundle, tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    folder = tmp_path / "bundle"
    write_bundle(rendered, folder)
    named = damage(folder)
    before = files(folder)
    with pytest.raises(BadInput) as caught:
        write_bundle(rendered, folder)
    assert named in caught.value.what
    assert "--force" in caught.value.fix
    assert files(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_force_keeps_it_every_time_under_a_name_of_its_own(
    rendered: Bundle, tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    folder = tmp_path / "bundle"
    write_bundle(rendered, folder)
    damage(folder)
    before = files(folder)
    (tmp_path / "bundle.old").write_text("somebody's")
    (tmp_path / "bundle.old-2").symlink_to("nowhere")
    assert write_bundle(rendered, folder, force=True) == tmp_path / "bundle.old-3"
    assert files(tmp_path / "bundle.old-3") == before
    assert write_bundle(rendered, folder, force=True) == tmp_path / "bundle.old-4"
    assert (tmp_path / "bundle.old").read_text() == "somebody's"
    assert write_bundle(rendered, folder) is None
    assert len(list(tmp_path.iterdir())) == 5


def test_a_bundle_with_files_missing_is_replaced(rendered: Bundle, tmp_path: Path) -> None:
    write_bundle(rendered, tmp_path / "bundle")
    whole = files(tmp_path / "bundle")
    (tmp_path / "bundle" / "compose.yaml").unlink()
    assert write_bundle(rendered, tmp_path / "bundle") is None
    assert files(tmp_path / "bundle") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_through_a_link_the_folder_behind_it_is_replaced(rendered: Bundle, tmp_path: Path) -> None:
    write_bundle(rendered, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    write_bundle(rendered, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / MANIFEST_FILE).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
