"""Contents of a disk after a power cut: each prefix of a recording, without some of what was not synced.

Model: an operation is durable once its file was synced (content) or every folder whose names it changed;
until then any of them may be lost, alone, whatever came later. A content that is lost is what was there
before, its first half, or as many zeros. A rename is done or not done. After Pillai et al., "All
File Systems Are Not Created Equal" (OSDI 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.recording import Named, Noted, Operation, Synced, Wrote

MOST_LOST = 3
_RETAINED, _LOST, _HALF, _ZEROS = range(4)
Tree = dict[str, bytes | None]
"""By path. None: a folder."""


class PowerLoss(NamedTuple):
    after: int
    """So many operations were begun."""
    noted: tuple[Any, ...]
    tree: Tree
    lost: tuple[int, ...]


def power_losses(operations: Sequence[Operation], before: int, most: int = MOST_LOST) -> Iterator[PowerLoss]:
    """Every disk that differs, or of which more had been reported, once."""
    seen = set()
    for end in range(before, len(operations) + 1):
        begun = operations[:end]
        noted = tuple(op.note for op in begun if isinstance(op, Noted))
        if end > before and isinstance(begun[-1], Synced):
            continue  # nothing that was not possible before
        for lost in losses(begun, before, most):
            tree = disk(begun, lost)
            key = hash((len(noted), frozenset(tree.items())))
            if key not in seen:
                seen.add(key)
                yield PowerLoss(end, noted, tree, tuple(sorted(lost)))


def losses(begun: Sequence[Operation], before: int, most: int) -> Iterator[dict[int, int]]:
    """Operations that are lost, and how: none, up to `most` of them, and all that can be."""
    open_ = [number for number in range(before, len(begun)) if is_open(begun, number)]
    for count in range(min(most, len(open_)) + 1):
        for chosen in combinations(open_, count):
            ways = [(_LOST, _HALF, _ZEROS) if isinstance(begun[n], Wrote) else (_LOST,) for n in chosen]
            for way in product(*ways):
                yield dict(zip(chosen, way, strict=True))
    yield dict.fromkeys(open_, _LOST)


def is_open(begun: Sequence[Operation], number: int) -> bool:
    """Whether the operation may still be lost."""
    operation = begun[number]
    synced = {each.what for each in begun[number + 1 :] if isinstance(each, Synced)}
    if isinstance(operation, Wrote):
        return operation.what not in synced
    return isinstance(operation, Named) and not {entry[0] for entry, _ in operation.changes} <= synced


def disk(begun: Sequence[Operation], lost: dict[int, int]) -> Tree:
    names: dict[int, dict[str, int]] = {0: {}}
    contents: dict[int, bytes] = {}
    for number, operation in enumerate(begun):
        how = lost.get(number, _RETAINED)
        if isinstance(operation, Wrote):
            new = operation.content
            torn = {_RETAINED: new, _HALF: new[: len(new) // 2], _ZEROS: bytes(len(new))}
            contents[operation.what] = torn.get(how, contents.get(operation.what, b""))
        elif isinstance(operation, Named):
            if operation.made is not None and operation.is_folder:
                names.setdefault(operation.made, {})
            for (folder, name), what in operation.changes if how == _RETAINED else ():
                names[folder].pop(name, None)
                if what is not None:
                    names[folder][name] = what
    tree: Tree = {}
    _walk(names, contents, 0, "", tree)
    return tree


def _walk(
    names: dict[int, dict[str, int]], contents: dict[int, bytes], folder: int, path: str, tree: Tree
) -> None:
    for name, what in names[folder].items():
        tree[path + name] = None if what in names else contents.get(what, b"")
        if what in names:
            _walk(names, contents, what, f"{path}{name}/", tree)


def write(tree: Tree, root: Path) -> None:
    """Into an empty folder."""
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
