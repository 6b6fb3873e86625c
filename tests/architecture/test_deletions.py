"""Every place where the product deletes, renames or replaces something on a disk, and why it is ours to touch."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")

METHODS = {"rename", "rmdir", "rmtree", "unlink"}
OF_MODULES = {"os": {"remove", "removedirs", "rename", "renames", "replace", "truncate"}, "shutil": {"move"}}

REASONS: dict[str, str] = {}


def deletions():
    """`file::function call` for each, with the innermost named function or class that it stands in."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _in(ast.parse(path.read_text()), str(path.relative_to(ROOT)), [])


def _in(node, file, within):
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inside = [*within, child.name] if named else within
        if isinstance(child, ast.Call) and (name := _deletion(child)):
            yield f"{file}::{'.'.join(inside)} {name}"
        yield from _in(child, file, inside)


def _deletion(call):
    """What the call does to a disk: `Path.replace` has one argument, `str.replace` two."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name, module = call.func.attr, getattr(call.func.value, "id", None)
    is_ours = name in METHODS or name in OF_MODULES.get(module, ())
    is_path_replace = name == "replace" and len(call.args) == 1 and not call.keywords
    return name if is_ours or is_path_replace else None


def test_each_has_a_reason_and_each_reason_a_place():
    found = set(deletions())
    assert found - REASONS.keys() == set(), "say here why it can only be something that this run made"
    assert REASONS.keys() - found == set(), "gone from the code"


def test_what_it_looks_for_is_found():
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
