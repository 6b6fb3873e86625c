"""The faults that are put into a module: one changed place each, by the operators of mutmut and two more.

mutmut's own runner is not used: it leaves out every decorated function (all of `batcher`, each property) and
all constants and defaults, and it collects the tests anew for each fault.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_number, operator_string


def another_number(node: cst.BaseNumber) -> Iterator[cst.CSTNode]:
    """Small ones off by one, others doubled: 50,000,001 ns are not a fault that a test has to see."""
    if isinstance(node, cst.Integer | cst.Float):
        value = node.evaluated_value
        small = isinstance(value, int) and value <= 16
        yield cst.parse_expression(repr(value + 1 if small or not value else 2 * value))


_OTHERS = (operator_number, operator_string)
OPERATORS = (
    *((kind, operator) for kind, operator in mutation_operators if operator not in _OTHERS),
    (cst.BaseNumber, another_number),
)
"""None changes words: goldens compare the words."""

LEFT_ALONE = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise, cst.Assert)
"""Types, messages and what narrows types."""

LEFT_ALONE_CALLS = ("cast", "TypeVar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`before` and `after` are the lines that differ; `first` to `last` is the place that changed."""

    number: int
    function: str  # or class; "" outside of both
    at_import: bool  # no test comes by the line: a constant, or what is given where an argument is not
    first: int
    last: int
    before: str
    after: str
    source: str

    @property
    def said(self) -> str:
        return f"`{self.function or '-'}`: `{self.before}` → `{self.after}`"


def mutants(source: str) -> list[Mutant]:
    """All faults of a module, in the order of their places. None is the module itself or another one's double."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    lines = wrapper.resolve(PositionProvider)
    spans = wrapper.resolve(WhitespaceInclusivePositionProvider)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    made: dict[str, Mutant] = {}
    for node, function, at_import, condition in _places(wrapper.module, "", True):
        span, place = spans[node], lines[node]
        begin, end = (starts[at.line - 1] + at.column for at in (span.start, span.end))
        for changed in _changes(node, condition):
            text = source[:begin] + wrapper.module.code_for_node(changed) + source[end:]
            if text == source or text in made or not _compiles(text):
                continue
            before, after = _differing(source, text)
            made[text] = Mutant(
                number=len(made), function=function, at_import=at_import,
                first=place.start.line, last=place.end.line, before=before, after=after, source=text,
            )  # fmt: skip
    return list(made.values())


def _places(
    node: cst.CSTNode, function: str, at_import: bool, condition: bool = False
) -> Iterator[tuple[cst.CSTNode, str, bool, bool]]:
    """Every node that may change, its function, whether it runs at import, and whether it is a condition."""
    if isinstance(node, LEFT_ALONE) or _left_alone(node):
        return
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        function = f"{function}.{node.name.value}".lstrip(".")
    yield node, function, at_import, condition
    test = node.test if isinstance(node, cst.If | cst.While) else None
    body = node.body if isinstance(node, cst.FunctionDef) else None
    for child in node.children:
        yield from _places(child, function, at_import and child is not body, child is test)


def _left_alone(node: cst.CSTNode) -> bool:
    match node:
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
        case cst.Assign(value=cst.Subscript(value=cst.Name(value="Literal"))):
            return True
        case cst.Call(func=cst.Name(value=name)):
            return name in LEFT_ALONE_CALLS
    return False


def _changes(node: cst.CSTNode, condition: bool) -> Iterator[cst.CSTNode]:
    if condition:
        inner = cast(cst.BaseExpression, node).with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield cst.UnaryOperation(cst.Not(), inner)
    for kind, operator in OPERATORS:
        if isinstance(node, kind):
            yield from operator(node)
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):  # done only for its effect
        yield cst.Pass(semicolon=node.semicolon)


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _differing(source: str, text: str) -> tuple[str, str]:
    """The lines that differ, in one line each."""
    old, new = source.splitlines(), text.splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] != "equal"]
    low, high, new_low, new_high = changed[0][1], changed[-1][2], changed[0][3], changed[-1][4]
    return _one_line(old[low:high]), _one_line(new[new_low:new_high])


def _one_line(lines: list[str]) -> str:
    return " ".join(re.sub(r"  # .*", "", line).strip() for line in lines)
