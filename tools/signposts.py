"""Names of files in comments, docstrings and docs lead somewhere.

    python tools/signposts.py      say each that names no file; exit status 1 if there is one

Checked is what ends in `.py`, alone (`view.py`) or with folders (`seen/view.py`): the last parts of a path
in the repository. Fenced code in Markdown is not: tests run it. What others' files are called stands in
OF_OTHERS. Limits: decision records and CHANGELOG.md say what was; names of functions are not looked up.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_OTHERS = {"train", "x", "y", "t", "script", "glue", "rank", "zygote", "sitecustomize", "main_run"}
HISTORY = ("CHANGELOG.md", "docs/decisions/")
_FILE = re.compile(r"(?<![\w./$-])((?:[\w-]+/)*)([\w-]+)\.py\b(?!\w)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


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


def prose_of(text: str) -> Iterator[str]:
    """Comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and token.string.startswith('"""')
        ):
            yield token.string


if __name__ == "__main__":
    sys.exit(main())
