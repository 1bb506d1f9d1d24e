"""Every small wrong line of the modules that decide, and two dozen of them drawn by a seed.

    python tools/mutants.py                   the draw: number, place and change of each
    python tools/mutants.py --write FOLDER    as patches that `git apply` takes (tools/seeded.py runs such)
    python tools/mutants.py --count           how many there are, by kind
    python tools/mutants.py --redraw 7        the draw as it would be without number 7

Order: parse each module -> edits of exact places in its text, sorted -> shuffled by SEED -> the first DRAWN
that are not in EQUIVALENT. Promise: the same tree gives the same draw, and every mutant drawn is another
program than the original. Limits: a mutant is one edit of one place. Left out is what nobody would miss or
what breaks at once: docstrings, type annotations, texts, what goes to a log, arguments of a command line, one
more of a size or a time (a number above MOST), an assignment that alone makes a name known, a tool that runs
before any job does. The draw belongs to the tree that it was drawn from (COMMIT): the patches are kept.
(cosmic-ray knows neither deleted statements nor dropped keywords, and keeps its draws in a data base.)
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_TRAINER = "trainer-image/ropeteam_trainer"
MODULES = (
    "operator/ropeteam/core",
    *(f"{_TRAINER}/{package}" for package in ("agent", "coordinator", "checkpoint")),
)
_BUILD_TOOLS = (f"{_TRAINER}/agent/pack.py",)
COMMIT = "c436723d9933a1cb6185f2d31c387330e3ec63f9"
SEED, DRAWN, MOST = 12, 24, 9
EQUIVALENT: dict[int, str] = {}
"""Numbers of the shuffled list that change no behaviour, and why. The next one steps in."""

_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_NEGATED = {
    **{ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
_ARITHMETIC = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+"},
    **{ast.BitOr: "&", ast.BitAnd: "|"},
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COPIES = ("replace", "changed")
"""Functions that give a copy in which the fields named by keywords differ."""
_LOGS = re.compile(r"((^|\.)_?(print|say|log\w*|debug|info|warning|exception)|\blog\.write\w*)$")
_NEUTRAL = {
    "bool": "False",
    "int": "0",
    "float": "0.0",
    "str": '""',
    "tuple": "()",
    "frozenset": "frozenset()",
}
_COMPARISON = re.compile(r"not\s+in\b|is\s+not\b|is\b|in\b|[<>=!]=|<|>")
_OPERATOR = re.compile(r"\*\*|//|<<|>>|[-+*/%|&^]")


class Mutant(NamedTuple):
    path: str
    begin: int
    end: int
    new: str
    kind: str


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="draw from this copy of the tree")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write each as a patch")
    parser.add_argument("--count", action="store_true", help="how many there are, by kind")
    parser.add_argument(
        "--redraw", type=int, action="append", default=[], metavar="N", help="without number N"
    )
    arguments = parser.parse_args(argv)
    if arguments.count:
        for kind, count in sorted(Counter(mutant.kind for mutant in mutants(arguments.tree)).items()):
            print(f"{count:6} {kind}")
        return 0
    for number, mutant in draw(arguments.tree, frozenset({*EQUIVALENT, *arguments.redraw})):
        text = patch(arguments.tree, mutant)
        print(f"{number}: {mutant.kind}\n{text}")
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            name = f"{number:02}-{Path(mutant.path).stem}-{mutant.kind.replace(' ', '-')}.patch"
            (arguments.write / name).write_text(f"drawn {number}: {mutant.kind} in {mutant.path}\n\n{text}")
    return 0


def draw(tree: Path, without: frozenset[int] = frozenset(EQUIVALENT)) -> list[tuple[int, Mutant]]:
    """By number in the shuffled list of all mutants."""
    found = mutants(tree)
    shuffled = enumerate(random.Random(SEED).sample(found, len(found)))
    wanted = ((number, mutant) for number, mutant in shuffled if number not in without)
    return list(islice((pair for pair in wanted if is_another_program(tree, pair[1])), DRAWN))


def is_another_program(tree: Path, mutant: Mutant) -> bool:
    old = (tree / mutant.path).read_text()
    try:
        return ast.dump(ast.parse(edited(old, mutant))) != ast.dump(ast.parse(old))
    except SyntaxError:
        return False


def mutants(tree: Path) -> list[Mutant]:
    paths = sorted(path for folder in MODULES for path in (tree / folder).rglob("*.py"))
    texts = {path.relative_to(tree).as_posix(): path.read_text() for path in paths}
    return [each for path, text in texts.items() if path not in _BUILD_TOOLS for each in of_text(path, text)]


def of_text(path: str, text: str) -> list[Mutant]:
    """All of one module, by place."""
    return sorted(set(_Finder(path, text).all()))


def edited(text: str, mutant: Mutant) -> str:
    return text[: mutant.begin] + mutant.new + text[mutant.end :]


def patch(tree: Path, mutant: Mutant) -> str:
    old = (tree / mutant.path).read_text()
    new = edited(old, mutant)
    names = f"a/{mutant.path}", f"b/{mutant.path}"
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names, n=1))


class _Finder:
    """Walks one module. `self._names`: how often each name is bound in the function around."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts, self._lines = starts, text.splitlines()

    def all(self) -> Iterator[Mutant]:
        for node in ast.parse(self._text).body:
            yield from self._below(node, None)

    def _below(
        self, node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef | None
    ) -> Iterator[Mutant]:
        if self._left_out(node, function):
            return
        if find := _KINDS.get(type(node)):
            yield from find(self, node)
        if function is not None:
            yield from self._deleted(node, function)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
        for child in ast.iter_child_nodes(node):
            if child not in annotations:
                yield from self._below(child, function)

    def _left_out(self, node: ast.AST, function: ast.AST | None) -> bool:
        if isinstance(node, ast.JoinedStr):
            return True
        if isinstance(node, ast.Call):
            return bool(_LOGS.search(ast.unparse(node.func))) or ast.unparse(node.func) == "isinstance"
        if isinstance(node, ast.FunctionDef):
            return node.name == "main" and self._path.endswith("__main__.py")
        if isinstance(node, ast.If):
            return ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        return isinstance(node, ast.BinOp) and (
            isinstance(node.op, ast.LShift) or (function is None and isinstance(node.op, ast.BitOr))
        )

    # ---- kinds of mutants; each is given the node it is registered for

    def compared(self, node: ast.Compare) -> Iterator[Mutant]:
        sides = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
            for kind, table in (("boundary", _BOUNDARY), ("negated comparison", _NEGATED)):
                if type(op) in table:
                    yield from self._between(left, right, _COMPARISON, table[type(op)], kind)

    def joined(self, node: ast.BoolOp) -> Iterator[Mutant]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from self._between(left, right, re.compile(rf"\b{old}\b"), new, "and or")

    def denied(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        if isinstance(node.op, ast.Not):
            begin = self._place(node)[0]
            found = re.compile(r"not\b\s*").match(self._text, begin)
            assert found is not None
            yield self._mutant(begin, found.end(), "", "dropped not")

    def conditional(self, node: ast.If | ast.IfExp) -> Iterator[Mutant]:
        for literal in ("True", "False"):
            yield self._mutant(*self._place(node.test), literal, "fixed condition")

    def filtered(self, node: ast.comprehension) -> Iterator[Mutant]:
        for condition in node.ifs:
            yield self._mutant(*self._place(condition), "True", "fixed condition")

    def counted(self, node: ast.Constant) -> Iterator[Mutant]:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool) and node.value <= MOST:
            for more in (1, -1):
                yield self._mutant(*self._place(node), f"{node.value + more!r}", "number off by one")

    def added(self, node: ast.BinOp) -> Iterator[Mutant]:
        if type(node.op) in _ARITHMETIC and not any(map(_is_row, (node.left, node.right))):
            yield from self._between(
                node.left, node.right, _OPERATOR, _ARITHMETIC[type(node.op)], "arithmetic"
            )

    def summed(self, node: ast.AugAssign) -> Iterator[Mutant]:
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.value, ast.Tuple):
            new = "-=" if isinstance(node.op, ast.Add) else "+="
            yield from self._between(node.target, node.value, re.compile(r"[-+]="), new, "arithmetic")

    def called(self, node: ast.Call) -> Iterator[Mutant]:
        name = ast.unparse(node.func)
        if name in _SWAPPED:
            yield self._mutant(*self._place(node.func), _SWAPPED[name], "min max any all")
        parts = [*node.args, *node.keywords]
        for before, keyword in pairwise(parts):
            if name in _COPIES and isinstance(keyword, ast.keyword) and keyword.arg:
                begin = self._text.index(",", self._place(before)[1])
                yield self._mutant(begin, self._place(keyword)[1], "", "dropped keyword")

    def _deleted(self, node: ast.AST, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        if isinstance(node, ast.Return) and node.value is not None:
            if (neutral := _neutral(function)) is not None:
                yield self._mutant(*self._place(node.value), neutral, "neutral return")
        elif isinstance(node, ast.Expr):
            called = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(called, ast.Call) and not self._left_out(called, function):
                yield self._mutant(*self._place(node), "pass", "deleted statement")
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign) and _known(node, function)):
            yield self._mutant(*self._place(node), "pass", "deleted statement")

    # ---- places

    def _place(self, node: Any) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """ast counts bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _between(
        self, left: ast.expr, right: ast.expr, old: re.Pattern[str], new: str, kind: str
    ) -> Iterator[Mutant]:
        """Where an operator stands between two operands."""
        found = old.search(self._text, self._place(left)[1], self._place(right)[0])
        assert found is not None
        yield self._mutant(*found.span(), new, kind)

    def _mutant(self, begin: int, end: int, new: str, kind: str) -> Mutant:
        return Mutant(self._path, begin, end, new, kind)


def _is_row(node: ast.expr) -> bool:
    """A text, tuple or list, which knows no arithmetic."""
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.Tuple | ast.List)


def _neutral(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """A value of its type that says nothing: its first argument as it came, None, 0, or an empty one."""
    returns = ast.unparse(function.returns) if function.returns else ""
    first = next(iter(function.args.args), None)
    given = ast.unparse(first.annotation) if first and first.annotation else ""
    if first and given == "State" and returns == "Stepped":
        return f"{first.arg}, ()"
    if "None" in returns.split(" | "):
        return "None"
    found = _NEUTRAL.get(returns.partition("[")[0])
    return first.arg if first and found is None and given == returns != "" else found


def _known(node: ast.Assign, function: ast.AST) -> bool:
    """Each name that it binds is bound elsewhere in the function too: without it the old value lives on."""
    arguments = (each.arg for each in ast.walk(function) if isinstance(each, ast.arg))
    bound = Counter([*_bound(function), *arguments])
    return all(bound[name] > 1 for name in _bound(node))


def _bound(node: ast.AST) -> list[str]:
    return [
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]


_KINDS: dict[type[ast.AST], Callable[[_Finder, Any], Iterator[Mutant]]] = {
    ast.Compare: _Finder.compared,
    ast.BoolOp: _Finder.joined,
    ast.UnaryOp: _Finder.denied,
    ast.If: _Finder.conditional,
    ast.IfExp: _Finder.conditional,
    ast.comprehension: _Finder.filtered,
    ast.Constant: _Finder.counted,
    ast.BinOp: _Finder.added,
    ast.AugAssign: _Finder.summed,
    ast.Call: _Finder.called,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
