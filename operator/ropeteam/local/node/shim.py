"""The parent process of one container: `python -I -S shim.py PARENT [MEMORY]`, and on stdin the output of
`request`. PARENT: process ID of the cluster.

Command and environment are not its own: a search for a container's processes by them finds only those.
It starts the command in a session of its own and answers on stdout: its pid, or the error of the start.
When the command exits, all remaining descendants are killed first, and its folder MEMORY in /dev/shm is
removed: a container's own /dev/shm would end with it. Then the shim exits as a container does: the command's
code, or 128 + signal. SIGTERM is forwarded. SIGINT kills at once; it is also sent when the cluster dies.
Standard library only, and few modules: its start delays each container.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


def request(log: str, folder: str, command: list[str], environment: dict[str, str]) -> bytes:
    """The request for the stdin of a shim: log file, working directory, command (its first item a path) and
    environment. No text may contain a NUL byte: exec does not accept one either."""
    fields = [log, folder, str(len(command)), *command, *(f"{k}={v}" for k, v in environment.items())]
    return b"\0".join(map(os.fsencode, fields))


def main(parent: int, memory: str = "") -> int:
    """Run the command. Returns the exit code of the container. Order: signals are blocked before the fork, so
    that none is lost; the death signal is set before the parent is compared, in case it died earlier."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl
        return 137
    started, failed = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exec_command(libc, failed)
    os.close(failed)
    error = os.read(started, 4096).decode(errors="replace")  # empty: exec closed the pipe
    os.write(1, f"error {error}\n".encode() if error else f"pid {pid}\n".encode())
    code = _forward_and_reap(pid)
    _kill_descendants()
    if memory and os.path.isdir(memory):  # noqa: PTH112 (pathlib costs 10 ms of each start)
        import shutil

        shutil.rmtree(memory, ignore_errors=True)
    return code


def _exec_command(libc: ctypes.CDLL, failed: int) -> None:
    """In the forked child: read the request and execute its command. Never returns; on an error it writes the
    text to the pipe `failed`, which a successful exec closes, and exits with 127."""
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with open(0, "rb", closefd=False) as stdin:
            log, folder, count, *rest = stdin.read().split(b"\0")
        command, environment = rest[: int(count)], rest[int(count) :]
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(folder)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; a container does not
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(command[0], command, dict(row.split(b"=", 1) for row in environment))
    except Exception as error:
        os.write(failed, str(error).encode())
    finally:
        os._exit(127)


def _forward_and_reap(pid: int) -> int:
    """Forward signals and reap children, also adopted ones, until the command has exited. Returns its exit
    code, or 128 + signal."""
    while True:
        signum = signal.sigwait(_HANDLED)
        if signum == signal.SIGTERM:
            os.kill(pid, signal.SIGTERM)
        elif signum == signal.SIGINT:
            kill_tree(pid)
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                return (
                    os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                )
            if ended == 0:
                break


def _kill_descendants() -> None:
    """Kill and reap all descendants. Orphans of killed processes become our children (subreaper), so loop
    until none is left."""
    while True:
        for child in children(os.getpid()):
            kill_tree(child)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants. The process is stopped first, so that it forks no more while its
    children are listed."""
    try:
        os.kill(pid, signal.SIGSTOP)
        for child in children(pid):
            kill_tree(child)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def children(pid: int) -> list[int]:
    """Process IDs of the children of all threads of a process; empty if it is gone."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (pathlib costs 10 ms of each start)
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
