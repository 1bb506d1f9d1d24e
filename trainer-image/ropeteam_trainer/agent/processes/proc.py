"""Processes of Linux: trees in /proc, signals, subreaper, parent-death signals, OOM kills, interfaces.

The agent is a subreaper: every orphan of a rank becomes the agent's child, so every process that a rank ever
started is found below the agent. Limits: a process in uninterruptible sleep cannot be killed; the agent waits
for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_SIOCGIFADDR = 0x8915
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FLAGS, _EXIT_CODE = 6, 49
"""Fields of /proc/PID/stat (man 5 proc_pid_stat), counted from the one after the name."""
_PF_EXITING = 0x4
"""Flag of a process that the kernel is ending."""


@dataclass(frozen=True)
class Process:
    """Pids of a process, of its parent and of its session's leader."""

    pid: int
    parent: int
    session: int
    state: str
    """Letter of man 5 proc: "R", "S", "D" ..."""


def become_subreaper() -> None:
    """Orphans below this process become its children. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Let the kernel SIGKILL this process when `parent` dies; at once if it is dead already. Call it in the
    child, before exec. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def living_processes() -> dict[int, Process]:
    """All living processes by pid, without zombies. Raises OSError if no descriptor is left."""
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  a Path per process would double the time of a scan
        if name.isdigit() and (found := _read_process(int(name))):
            table[found.pid] = found
    return table


def _read_process(pid: int) -> Process | None:
    """None: it has exited, or is a zombie. Raises OSError for any error that does not mean that."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before ")" may contain spaces and parentheses.
    state, parent, _, session = stat[stat.rindex(b")") + 2 :].split(None, 4)[:4]
    if state in (b"Z", b"X"):
        return None
    return Process(pid, int(parent), int(session), state.decode())


def deadly_signal(pid: int) -> int | None:
    """The signal that is killing this process: the kernel is freeing its memory now, or has done so.

    None: it lives, exits by itself, or is gone. Its parent gets SIGCHLD only when all of its memory is
    freed: 60 ms for a process with torch, more with a GPU. Before that `flags` in /proc/PID/stat has
    PF_EXITING, and `exit_code` the signal.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    is_dying = int(fields[_FLAGS]) & _PF_EXITING
    return (int(fields[_EXIT_CODE]) & 0x7F or None) if is_dying else None


def descendants(roots: Iterable[int], table: dict[int, Process]) -> set[int]:
    """Pids of all descendants of `roots`. A root is included only if it descends from another root."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def environment_variable(pid: int, name: str) -> str:
    """A variable of the environment that this process was started with. "": it has none, is gone, or belongs
    to another user. Later changes of the environment are not seen.

    May block for as long as the process hangs in the kernel, which locks its memory. Raises OSError if no
    descriptor is left.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    start = f"{name}=".encode()
    return next((os.fsdecode(each.removeprefix(start)) for each in environment if each.startswith(start)), "")


def send_signal(pid: int, signum: int = signal.SIGKILL) -> str:
    """Send a signal to a process, or to the group -`pid`; the reason if that fails, as text. "": it was sent,
    or the process has exited."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return ""
    except OSError as error:  # the process runs as root and the agent does not
        return str(error)
    return ""


def has_signal_handler(pid: int, signum: int) -> bool:
    """Whether this process has a handler for that signal, and so is not killed by it. False if it is gone."""
    fields = _read_text(f"/proc/{pid}/status").partition("SigCgt:")[2].split()
    return bool(fields) and bool(int(fields[0], 16) >> (signum - 1) & 1)


def interface_of(address: str) -> str | None:
    """Name of the network interface with this IP address; any of 127.0.0.0/8 is the loopback's. None: no
    interface has it. Raises OSError for text that is no IP address."""
    if ":" in address:
        return _interface_of_ipv6(address)
    wanted = socket.inet_aton("127.0.0.1" if address.startswith("127.") else address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if found[20:24] == wanted:
                    return name
    return None


def _interface_of_ipv6(address: str) -> str | None:
    """As `interface_of`, for an IPv6 address: SIOCGIFADDR knows IPv4 only."""
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    rows = (line.split() for line in _read_text("/proc/net/if_inet6").splitlines())
    return next((row[-1] for row in rows if row[0] == wanted), None)


def oom_kill_count() -> int:
    """Number of processes that the OOM killer killed, as far as this container can see; 0: no file is
    readable. Only growth is meaningful: several files may count the same kill."""
    texts = [_read_text(path) for path in _oom_count_files(_read_text("/proc/self/cgroup"))]
    lines = [line for text in texts for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _oom_count_files(cgroups: str) -> Iterator[str]:
    """Paths of the files that may hold the count, of cgroup v2 and v1. `cgroups`: text of /proc/self/cgroup.
    A container sees its own cgroup as the root."""
    yield "/sys/fs/cgroup/memory.events"
    yield "/sys/fs/cgroup/memory/memory.oom_control"
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield f"/sys/fs/cgroup{path}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"/sys/fs/cgroup/memory{path}/memory.oom_control"


def _read_text(path: str) -> str:
    """Content of a file; "" if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
