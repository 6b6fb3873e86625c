"""Every place where the product deletes, renames or replaces something on a disk, and why it is ours to touch."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")

METHODS = {"rename", "rmdir", "rmtree", "unlink"}
OF_MODULES = {"os": {"remove", "removedirs", "rename", "renames", "replace", "truncate"}, "shutil": {"move"}}

REASONS = {
    "deploy/bundle.py::write_bundle rename": "its own draft, and the bundle that it put aside itself",
    "deploy/bundle.py::_step_aside rmdir": "an empty folder",
    "deploy/bundle.py::_step_aside rename": "keeps what was there under a name that is free",
    "deploy/manifest.py::remove_listed unlink": "files of a bundle of ours, unchanged by their checksums",
    "deploy/manifest.py::remove_listed rmdir": "folders of such a bundle that are empty",
    "loadgen/files.py::remove_drafts unlink": "drafts by their name, in a run's directory, which is locked",
    "loadgen/files.py::write_atomically replace": "the file that is to be written: the caller names it",
    "loadgen/files.py::write_atomically unlink": "its own draft",
    "loadgen/files.py::whole_file replace": "the file that is to be written: the caller names it",
    "loadgen/judges/mlperf.py::loadgen_in replace": "LoadGen's logs, in a folder that the caller names",
    "loadgen/processes.py::scratch_folder rmtree": "its own folder",
    "loadgen/processes.py::_remove_if_dead rmtree": "a scratch folder: marked, of this user, and its lock is free",
    "loadgen/processes.py::_remove_if_dead rmdir": "the same, empty by then",
    "loadgen/sending/shared_memory.py::_write_file unlink": "its own file",
    "loadgen/sending/shared_memory.py::remove_leftovers unlink": "ours by name, of this user; its process is gone",
    "model_repo/server/hosts.py::ProcessHost.close rmtree": "the folder that this server made, its name its own",
    "model_repo/server/launchers.py::_link_backends unlink": "a link in the server's own folder",
    "model_repo/repository/write.py::write_repository rmtree": "its own draft",
    "model_repo/repository/write.py::rewrite_config replace": "the config of a model that this server has loaded",
    "model_repo/repository/write.py::remove_model rmtree": "a model that this server has written: Server._claim",
    "model_repo/repository/write.py::replace_folder rename": "a model that this server or run has written",
    "model_repo/repository/write.py::replace_folder rmtree": "the same, put aside",
    "model_repo/server/python_home.py::write_python_home unlink": "a link in the server's own folder",
    "model_repo/server/supervisor.py::_clean_up unlink": "its own lock",
    "model_repo/server/supervisor.py::remove_leftovers unlink": "the lock of a killed supervisor of this user",
    "model_repo/server/supervisor.py::remove_shared_memory rmtree": "a folder by one server's random token",
    "model_repo/server/supervisor.py::remove_shared_memory unlink": "a file with the same",
    "optimizer/batching/dynamic_batch.py::_proven_or_not unlink": "unused rewritten copies in the run's directory",
    "optimizer/cached.py::ResultCache.find rmtree": "a damaged entry of the cache, named by the hash of its key",
    "optimizer/cached.py::ResultCache.remove rmtree": "an entry of the cache, named by the hash of its key",
    "optimizer/cached.py::ResultCache._make_room rmtree": "entries of the cache: named by a hash, with entry.json",
    "optimizer/cached.py::put_whole rename": "its own draft",
    "optimizer/engines/cache.py::EngineCache.find rmtree": "a damaged entry of the cache, by its checksum",
    "optimizer/precision/quantize.py::int8_to_fp8 unlink": "a draft in a scratch folder",
    "optimizer/model/weights.py::save_whole rmtree": "a variant in the run's own directory, which has no links",
    "optimizer/model/weights.py::save_whole rename": "its own draft",
    "search/simulator/service_times_file.py::put_aside rename": "the run's own profile",
}


def deletions() -> Iterator[Any]:
    """`file::function call` for each, with the innermost named function or class that it stands in."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _in(ast.parse(path.read_text()), str(path.relative_to(ROOT)), [])


def _in(node: ast.AST, file: str, within: Any) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inside = [*within, child.name] if named else within  # type: ignore[attr-defined]
        if isinstance(child, ast.Call) and (name := _deletion(child)):
            yield f"{file}::{'.'.join(inside)} {name}"
        yield from _in(child, file, inside)


def _deletion(call: ast.Call) -> str | None:
    """What the call does to a disk: `Path.replace` has one argument, `str.replace` two."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name, module = call.func.attr, getattr(call.func.value, "id", None)
    is_ours = name in METHODS or name in OF_MODULES.get(module, ())
    is_path_replace = name == "replace" and len(call.args) == 1 and not call.keywords
    return name if is_ours or is_path_replace else None


def test_each_has_a_reason_and_each_reason_a_place() -> None:
    found = set(deletions())
    assert found - REASONS.keys() == set(), "say here why it can only be something that this run made"
    assert REASONS.keys() - found == set(), "gone from the code"


def test_what_it_looks_for_is_found() -> None:
    """Those that a look at the source would find."""
    code = """
import os, shutil
def f(path, text):
    shutil.rmtree(path); path.unlink(); os.remove(path); path.replace(path); shutil.move(path, path)
    text.replace("a", "b"); [].remove(path)
class C:
    def g(self):
        self.path.rename("x")
"""
    found = [place.split("::")[1] for place in _in(ast.parse(code), "file", [])]
    assert found == ["f rmtree", "f unlink", "f remove", "f replace", "f move", "C.g rename"]
