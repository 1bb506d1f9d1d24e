"""Links of a page for the site of docs/: those that leave docs/ lead to the file on the forge.

Pages are written for the forge, where a relative link may lead anywhere in the repository. Pictures are not
touched: Sphinx copies them. Used by docs/conf.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FORGE = "https://github.com/ropeteam/ropeteam/blob/main"
_LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()([^)#\s]+)")


def absolute(text: str, folder: Path) -> str:
    """`text` of a page in `folder`, with links that leave docs/ made absolute."""

    def replaced(found: re.Match[str]) -> str:
        file = _outside(found[2], folder)
        return f"{found[1]}{FORGE}/{file.relative_to(ROOT)}" if file else found[0]

    return _LINK.sub(replaced, text)


def dead(text: str, folder: Path) -> Iterator[str]:
    """Targets outside docs/ that are not there. Those inside are Sphinx' to find."""
    for _, target in _LINK.findall(text):
        file = _outside(target, folder)
        if file and not file.exists():
            yield target


def _outside(target: str, folder: Path) -> Path | None:
    file = (folder / target).resolve()
    return None if ":" in target or file.is_relative_to(DOCS) else file
