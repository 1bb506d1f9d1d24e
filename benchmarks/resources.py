"""Resources that a process and all below it hold, as the kernel lists them in /proc, for leaks.py.

Order: usage() now and then -> least() of some of them, at rest: what is held for a moment is no leak.

Memory is that of anonymous pages (RssAnon), which does not change when another process ends that shares them,
as PSS does. Only processes of this user are seen in full.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Name = Callable[[int], str]
"""Name of a process, the same each time it is seen; unique where one process is to be followed."""


@dataclass(frozen=True)
class Held:
    """Resources of one process."""

    pid: int
    threads: int
    sockets: int
    files: int
    """Other file descriptors: files, pipes, epoll and event descriptors."""
    shared: int
    """File descriptors of tensors that torch shares between processes, batches of a data loader for example:
    they come and go with Python's garbage collection."""
    kilobytes: int


Usage = dict[str, Held]
"""By name."""


def usage(root: int, name: Name) -> Usage:
    """The process `root` and all below it. One that ends meanwhile is left out."""
    found: Usage = {}
    names: Counter[str] = Counter()
    for pid in descendants(root):
        with suppress(OSError, KeyError):
            text = name(pid)
            held = held_by(pid)
            names[text] += 1
            found[text if names[text] == 1 else f"{text} ({names[text]})"] = held
    return found


def least(usages: Sequence[Usage]) -> Usage:
    """The processes that were there in all of them, each with the least that it held."""
    common = set.intersection(*({(name, held.pid) for name, held in each.items()} for each in usages))
    return {
        name: Held(
            pid,
            *(
                min(getattr(each[name], field) for each in usages)
                for field in ("threads", "sockets", "files", "shared", "kilobytes")
            ),
        )
        for name, pid in sorted(common)
    }


def held_by(pid: int) -> Held:
    """Raises OSError or KeyError if the process has ended."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    kinds = _descriptors(pid)
    sockets = sum(kind.startswith("socket:") for kind in kinds)
    shared = sum(kind.startswith("/dev/shm/torch_") for kind in kinds)
    files = len(kinds) - sockets - shared
    return Held(pid, int(status["Threads"]), sockets, files, shared, int(status["RssAnon"].split()[0]))


def _descriptors(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed since
            found.append(str(each.readlink()))
    return found


def descendants(root: int) -> list[int]:
    """`root` and all processes below it, by pid."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children[parent_of(int(entry.name))].append(int(entry.name))
    found, new = [root], [root]
    while new:
        new = [child for parent in new for child in children[parent]]
        found += new
    return sorted(found)


def parent_of(pid: int) -> int:
    """Raises OSError if the process has ended."""
    return int(_stat(pid)[1])


def session_of(pid: int) -> int:
    """Raises OSError if the process has ended."""
    return int(_stat(pid)[3])


def _stat(pid: int) -> list[str]:
    """Fields behind the command's name, which may have any content."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def slope(places: Sequence[float], values: Sequence[float]) -> float:
    """Of the line that fits the values best (least squares)."""
    middle, mean = sum(places) / len(places), sum(values) / len(values)
    spread = sum((place - middle) ** 2 for place in places)
    return sum((p - middle) * (v - mean) for p, v in zip(places, values, strict=True)) / spread
