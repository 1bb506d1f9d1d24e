"""Hold the house numbers: sizes that keep every piece readable in one look; and the language (dialect.py).

    python tools/house.py           print each piece that is over a limit; exit status 1 if there is one
    python tools/house.py --pure    print the files of the pure packages, for the tools that hold them to more

Limits: file 400 lines, function 50 (90 of 100 functions: 30), test function 40, parameters 5 in pure packages
and 7 elsewhere (self and cls not counted), a docstring on every module. A package that is shipped has 16
modules and packages at most, and the docstring of its `__init__` names each. In the trainer only
background.py makes tasks: a loop holds them weakly, and an exception that nobody awaits is lost. Outside of
what is shipped only lab/waiting.py polls: its wait says what did not come, and what was last seen. The pure
packages, which alone of what is shipped call themselves Pure, and the exceptions, each with its reason, are
in pyproject.toml under [tool.house]. Ruff holds the line length.
Limits of this tool: it counts lines as they are written, docstrings and comments too.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import dialect

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("operator", "trainer-image", "lab", "tests", "tools", "benchmarks", "examples")
SHIPPED = ("operator", "trainer-image")
MAX_MODULES = 16
MAX_FILE, MAX_FUNCTION, MAX_TEST, P90_FUNCTION = 400, 50, 40, 30
MAX_PARAMETERS_PURE, MAX_PARAMETERS = 5, 7
MAKES_TASKS = "trainer-image/ropeteam_trainer/system/background.py"
WAITS = "lab/waiting.py"
A_WAIT = re.compile(r"_?(until|eventually|wait_for|wait_until)(_async)?")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Breach(NamedTuple):
    """`name` is what an exception would be listed under: `path` or `path:function`."""

    name: str
    text: str


class Sizes(NamedTuple):
    breaches: list[Breach]
    function_lines: list[int]


def main(arguments: list[str]) -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]
    pure = {path for pattern in settings["pure"] for path in ROOT.glob(pattern)}
    if arguments == ["--pure"]:
        print("\n".join(sorted(str(path.relative_to(ROOT)) for path in pure)))
        return 0
    sizes = [
        measure(path, path in pure) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    breaches = [breach for size in sizes for breach in size.breaches]
    breaches += [
        breach
        for folder in SHIPPED
        for index in sorted((ROOT / folder).rglob("__init__.py"))
        for breach in of_package(index)
    ]
    empty = [pattern for pattern in settings["pure"] if not any(ROOT.glob(pattern))]
    breaches += [Breach(pattern, "a pure package without a file") for pattern in empty]
    breaches += tail([lines for size in sizes for lines in size.function_lines])
    problems = problems_of(breaches, settings["exceptions"]) + dialect.problems(settings["dialect"])
    print("\n".join(problems) or f"house numbers hold in {len(sizes)} files")
    return 1 if problems else 0


def problems_of(breaches: list[Breach], exceptions: dict[str, str]) -> list[str]:
    """Pieces over a limit that no exception lists, and exceptions that nothing needs any more."""
    names = {breach.name for breach in breaches}
    stale = [
        f"{name}: no longer over a limit; remove its exception" for name in exceptions if name not in names
    ]
    return [f"{breach.name}: {breach.text}" for breach in breaches if breach.name not in exceptions] + stale


def measure(path: Path, pure: bool) -> Sizes:
    name, text = str(path.relative_to(ROOT)), path.read_text()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Sizes([Breach(name, f"line {error.lineno}: not Python: {error.msg}")], [])
    breaches = [] if ast.get_docstring(tree) else [Breach(name, "no module docstring")]
    shipped = name.split("/")[0] in SHIPPED
    if shipped and not pure and re.search(r"\bPure\b", ast.get_docstring(tree) or ""):
        breaches.append(Breach(name, "claims to be Pure, but [tool.house] pure does not list it"))
    lines = len(text.splitlines())
    if lines > MAX_FILE:
        breaches.append(Breach(name, f"{lines} lines, the limit is {MAX_FILE}"))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    for function in functions:
        breaches += [Breach(f"{name}:{function.name}", excess) for excess in too_big(function, pure)]
    if name.startswith("trainer-image/") and name != MAKES_TASKS:
        breaches += [Breach(name, text) for text in stray_tasks(tree)]
    if name.startswith(("lab/", "tests/", "benchmarks/", "tools/")) and name != WAITS:
        breaches += [Breach(name, text) for text in other_waits(tree)]
    is_test = name.startswith("tests/")
    return Sizes(breaches, [] if is_test else [length(function) for function in functions])


def of_package(index: Path) -> Iterator[Breach]:
    """How many modules and packages a package has, and whether its index names them."""
    name = str(index.parent.relative_to(ROOT))
    listed = ast.get_docstring(ast.parse(index.read_text())) or ""
    modules = {path.name for path in index.parent.glob("*.py")} - {"__init__.py", "__main__.py"}
    modules_and_packages = modules | {f"{path.parent.name}/" for path in index.parent.glob("*/__init__.py")}
    if len(modules_and_packages) > MAX_MODULES:
        yield Breach(name, f"{len(modules_and_packages)} modules and packages, the limit is {MAX_MODULES}")
    for each in sorted(modules_and_packages):
        if not re.search(rf"(?<![\w/]){re.escape(each)}", listed):
            yield Breach(f"{name}/{each}", "is not named in the docstring of its package")


def stray_tasks(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
            yield f"line {node.lineno}: {node.attr}: use start_task() of {MAKES_TASKS}"


def other_waits(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, Function) and A_WAIT.fullmatch(node.name):
            yield f"line {node.lineno}: {node.name}: use wait_until of {WAITS}"
    for call in ast.walk(tree):
        if isinstance(call, ast.Attribute) and ast.unparse(call) == "asyncio.wait_for":
            yield f"line {call.lineno}: asyncio.wait_for: use within() of {WAITS}"


def too_big(function: Function, pure: bool) -> Iterator[str]:
    limit = MAX_TEST if function.name.startswith("test_") else MAX_FUNCTION
    if length(function) > limit:
        yield f"{length(function)} lines, the limit is {limit}"
    limit = MAX_PARAMETERS_PURE if pure else MAX_PARAMETERS
    if not function.name.startswith("test_") and parameters(function) > limit:
        yield f"{parameters(function)} parameters, the limit is {limit}"


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameters(function: Function) -> int:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in every)


def tail(lines: list[int]) -> list[Breach]:
    """Long functions must stay the exception: nine of ten are short."""
    ninth = sorted(lines)[len(lines) * 9 // 10] if lines else 0
    return (
        [Breach("p90", f"of function length is {ninth}, the limit is {P90_FUNCTION}")]
        if ninth > P90_FUNCTION
        else []
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
