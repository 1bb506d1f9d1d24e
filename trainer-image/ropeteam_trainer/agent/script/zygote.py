"""A process of the job's interpreter that has torch imported and forks: ranks that start at once, and stores.

    4-byte length | JSON    both ways on the inherited socket; a byte before a request carries descriptors
Requests are answered in order: {"pid": N} for `rank` and `store`, {} for `warm`, {"error": "..."} when the
zygote must not fork. It has one thread, no CUDA context and no open /dev/nvidia*, asserted before every fork:
with one of these a fork is invalid. A child is orphaned on purpose, so that the agent (a subreaper) is its
parent: it waits for that before it does anything, and dies with the agent. Limits: settings that the script
would change before `import torch` (threads apart) are fixed when the zygote starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import types
from dataclasses import dataclass
from typing import Any, NoReturn

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""At 1 while the zygote imports: a pool of threads would not survive the fork."""
_OURS = "ropeteam_trainer"
_LIBRARY = ("joining", "job", "strategies.wrap", "checkpoint.saving")
"""Modules with which a script imports all that it needs of the library: 80, in a fifth of a second."""


@dataclass(frozen=True)
class Child:
    """The request that a forked child serves, and its descriptors."""

    request: dict[str, Any]
    """Keys "op" ("store" or "rank") and "agent" (its pid). For a rank also "kind",
    "argv" (rankmain.py), "env" and "cwd"."""
    fds: list[int]
    """One: the listening socket of a store, or the stdout and stderr of a rank."""


def main(root: str, fd: int) -> NoReturn:
    """Serve requests on socket `fd` until the agent closes it. In a child: become the requested rank or
    store. `root`: the folder or zip that holds our package."""
    child = _serve(socket.socket(fileno=fd), root)
    if child is None:
        sys.exit(0)
    if child.request["op"] == "store":
        _run_store(child)
    from ropeteam_trainer.agent.script import rankmain

    _become_rank(child)
    rankmain.main(root, child.request["kind"], child.request["argv"])


def _serve(agent: socket.socket, root: str) -> Child | None:
    """Import torch, send the first message, then answer requests. Returns None when the agent has closed the
    socket, and in each forked child its Child. Hooks come first: they wait for torch to be imported."""
    from ropeteam_trainer.agent.script import childhooks

    childhooks.install()
    import torch.distributed  # noqa: F401  the purpose of the zygote

    send(agent, {})
    while (received := _receive(agent)) is not None:
        request, fds = received
        answer: dict[str, Any] = {}
        if request["op"] == "warm":
            _import_rest(root)
        elif problem := _fork_obstacle():
            answer = {"error": problem}
        else:
            pid = _fork_orphan(request["agent"])
            if pid == 0:
                agent.close()  # the zygote's end: the agent would not see the zygote's exit
                return Child(request, fds)
            answer = {"pid": pid}
        for fd in fds:
            os.close(fd)
        send(agent, answer)
    return None


def _import_rest(root: str) -> None:
    """Import what `torch.optim` and DistributedDataParallel import later, which takes as long as torch, and
    the library."""
    import gc

    import torch._dynamo  # noqa: F401

    from ropeteam_trainer.agent.script import rankmain

    rankmain.library = _imported_library(root)
    gc.freeze()  # a collection would write to pages that children share


def _imported_library(root: str) -> dict[str, types.ModuleType]:
    """Modules of the library that a script would import: that of the image, or ours. Neither sys.path nor the
    modules of our package that this process uses are changed. A library that cannot be imported here fails in
    the script, where people see it; one of another release may have other modules."""
    import importlib

    from ropeteam_trainer.agent.script import rankmain

    path, own = [*sys.path], _modules_of_ours()
    rankmain.prepare_imports(root)
    try:
        importlib.import_module(_OURS)
        for name in _LIBRARY:
            with contextlib.suppress(Exception):
                importlib.import_module(f"{_OURS}.{name}")
        return _modules_of_ours()
    except Exception:
        return {}
    finally:
        for name in _modules_of_ours():
            del sys.modules[name]
        sys.modules.update(own)
        sys.path[:] = path


def _modules_of_ours() -> dict[str, types.ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _OURS}


def _fork_obstacle() -> str:
    """Reason why a fork would be invalid now (see above); "": none."""
    import torch

    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    if len(threads) > 1:
        return f"the zygote has {len(threads)} threads"
    if torch.cuda.is_initialized():
        return "the zygote has a CUDA context"
    files = os.listdir("/proc/self/fd")  # noqa: PTH208
    if any(_target(fd).startswith("/dev/nvidia") for fd in files):
        return "the zygote has a GPU device open"
    return ""


def _target(fd: str) -> str:
    """Path or name of what a descriptor of this process refers to; "" if it is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    except FileNotFoundError:
        return ""  # the descriptor that listed the others


def _fork_orphan(agent: int) -> int:
    """Fork a child whose parent is the agent, and return its pid; 0 in the child.

    Order: the zygote forks an intermediate -> that forks the child, writes its pid and exits, so that the
    child becomes the agent's -> the zygote reaps the intermediate and writes "g" -> the child, whose parent
    is the agent now, sets its parent-death signal and returns. If the zygote dies before, the child
    exits: it would start without an answer to the agent.
    """
    go_read, go_write = os.pipe()
    pid_read, pid_write = os.pipe()
    intermediate = os.fork()
    if intermediate == 0:
        pid = os.fork()
        if pid:
            os.write(pid_write, str(pid).encode())
            os._exit(0)
        os.close(go_write)
        if os.read(go_read, 1) != b"g":
            os._exit(1)
        _die_with_agent(agent)
        for fd in (go_read, pid_read, pid_write):
            os.close(fd)
        return 0
    os.close(pid_write)
    pid = int(os.read(pid_read, 20))
    os.waitpid(intermediate, 0)
    os.write(go_write, b"g")
    for fd in (go_read, go_write, pid_read):
        os.close(fd)
    return pid


def _die_with_agent(agent: int) -> None:
    """As proc.die_with_parent, which imports more than a rank needs: exits at once if the agent is dead."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != agent:
        os._exit(1)


# ---- children


def _run_store(child: Child) -> NoReturn:
    """Run the store of one world, on the socket that the agent has bound, until killed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    (fd,) = child.fds
    listener = socket.socket(fileno=fd)
    host, port = listener.getsockname()
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    while store:  # referenced: without it the store would be closed
        signal.pause()
    sys.exit(0)


def _become_rank(child: Child) -> None:
    """Set what a rank that is started by exec has from its start: session, output, environment, folders,
    threads, random numbers. stdin is the zygote's: empty."""
    request = child.request
    os.setsid()
    (output,) = child.fds
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])

    from multiprocessing import process

    import torch

    from ropeteam_trainer.agent.script import childhooks

    childhooks.use_folder(process)
    torch.set_num_threads(int(request["env"].get("OMP_NUM_THREADS", "1")))
    torch.default_generator.seed()  # every process has its own, until the script seeds it
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


# ---- messages on the socket


def send(peer: socket.socket, message: dict[str, Any]) -> None:
    """Send one message. Raises OSError."""
    body = json.dumps(message).encode()
    peer.sendall(struct.pack(">I", len(body)) + body)


def _receive(agent: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive one request with its descriptors; None when the agent has closed the socket. Raises
    ConnectionError if it did so inside a request."""
    mark, fds, _, _ = socket.recv_fds(agent, 1, 8)
    if not mark:
        return None
    (size,) = struct.unpack(">I", _receive_exactly(agent, 4))
    return json.loads(_receive_exactly(agent, size)), fds


def _receive_exactly(agent: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises ConnectionError at the end of the stream."""
    data = b""
    while len(data) < size:
        more = agent.recv(size - len(data))
        if not more:
            raise ConnectionError("the zygote ends: the agent closed the socket inside a request")
        data += more
    return data
