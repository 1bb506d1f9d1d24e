"""Processes of this machine, found by their environment, as a person with `ps` would find them."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path


def die_with_parent() -> None:
    """A killed test run leaves no cluster behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def process_of(uid: str, variable: str, argument: bytes) -> int:
    """The process with this command line argument whose environment variable speaks of `uid`."""
    for pid, env in environments():
        if uid in env.get(variable, ""):
            arguments = arguments_of(pid)
            if argument in arguments and b"ropeteam.local.node.shim" not in arguments:
                return pid
    raise AssertionError(f"no process {argument!r} of {uid}")


def arguments_of(pid: int) -> list[bytes]:
    """None of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """(pid, environment) of every process we may read; zombies have none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            pairs = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        env = dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)
        if env:
            yield int(entry.name), env
