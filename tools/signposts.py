"""Names of files in comments, docstrings and docs lead somewhere, and so do imports in programs kept as text.

    python tools/signposts.py      print each that leads nowhere; exit status 1 if there is one

Checked is what ends in `.py`, alone (`view.py`) or with folders (`seen/view.py`): the last parts of a path
in the repository. In Markdown a name may follow that the file binds: `seen/view.py:build_view`. Fenced code
in Markdown is not checked: tests run it. Names of others' files are in OF_OTHERS. Imports of our packages
(`from ropeteam_trainer.agent import main`) are looked up wherever they stand, in string literals too, where
no type checker sees them. Limits: decision records and CHANGELOG.md say what was; names of functions that
stand alone are not looked up.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_OTHERS = {"train", "x", "y", "t", "script", "glue", "rank", "zygote", "sitecustomize", "main_run"}
SHIPPED = ("operator/", "trainer-image/")
HISTORY = ("CHANGELOG.md", "docs/decisions/")
_FILE = re.compile(r"(?<![\w./$-])((?:[\w-]+/)*)([\w-]+)\.py\b(?!\w)")
_IMPORT = re.compile(r"\bfrom (ropeteam(?:_trainer)?(?:\.\w+)*) import (\w+(?:, \w+)*)")
_SYMBOL = re.compile(_FILE.pattern + r":([^\W\d]\w*)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def main() -> int:
    paths = tracked()
    known = set(ends(paths))
    lost = [
        f"{name}: {sign} is no file here"
        for name in paths
        if name.endswith((".py", ".md")) and not name.startswith(HISTORY)
        for sign in signs((ROOT / name).read_text(), name.endswith(".md"))
        if sign not in known and sign.rpartition("/")[2].removesuffix(".py") not in OF_OTHERS
    ]
    packages = Packages({name for name in paths if name.startswith(SHIPPED)})
    lost += [
        f"{name}: there is no {module}.{attribute}"
        for name in paths
        if name.endswith(".py")
        for module, attribute in imports((ROOT / name).read_text())
        if not packages.has(module, attribute)
    ]
    lost += [
        f"{name}: there is no {symbol} in {sign}"
        for name in paths
        if name.endswith(".md") and not name.startswith(HISTORY)
        for sign, symbol in symbols((ROOT / name).read_text())
        if not packages.binds(sign, symbol)
    ]
    print("\n".join(lost) or f"signposts of {len(paths)} files lead somewhere")
    return 1 if lost else 0


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listing.stdout.split()


def ends(paths: list[str]) -> Iterator[str]:
    """Each path, with one folder more left out at a time."""
    for path in paths:
        parts = path.split("/")
        yield from ("/".join(parts[begin:]) for begin in range(len(parts)))


def signs(text: str, is_markdown: bool) -> Iterator[str]:
    for prose in [_FENCE.sub("", text)] if is_markdown else prose_of(text):
        yield from (found[0] for found in _FILE.finditer(prose))


def symbols(page: str) -> Iterator[tuple[str, str]]:
    """Files of a page, each with the name that follows it."""
    for found in _SYMBOL.finditer(_FENCE.sub("", page)):
        yield f"{found[1]}{found[2]}.py", found[3]


def imports(text: str) -> Iterator[tuple[str, str]]:
    for found in _IMPORT.finditer(text):
        yield from ((found[1], attribute) for attribute in found[2].split(", "))


class Packages:
    """Importable names of our packages: modules, and every name that a module binds at any place."""

    def __init__(self, paths: set[str]) -> None:
        self._files = {
            path.partition("/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
            for path in paths
            if path.endswith(".py")
        }
        self._bound: dict[str, set[str]] = {}

    def has(self, module: str, attribute: str) -> bool:
        return f"{module}.{attribute}" in self._files or attribute in self._names(module)

    def binds(self, sign: str, name: str) -> bool:
        """Whether a file whose path ends so binds the name."""
        modules = [module for module, path in self._files.items() if f"/{path}".endswith(f"/{sign}")]
        return any(name in self._names(module) for module in modules)

    def _names(self, module: str) -> set[str]:
        if module not in self._bound and module in self._files:
            nodes = list(ast.walk(ast.parse((ROOT / self._files[module]).read_text())))
            made = {node.name for node in nodes if isinstance(node, Defined)}
            stored = {node.id for node in nodes if isinstance(node, ast.Name)}
            imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
            self._bound[module] = made | stored | imported
        return self._bound.get(module, set())


def prose_of(text: str) -> Iterator[str]:
    """Comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.string.startswith('"""')
        ):
            yield token.string


if __name__ == "__main__":
    sys.exit(main())
