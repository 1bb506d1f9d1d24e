"""Data for starting one process of a job, the result of analyse(), and its assembly into arguments.

Limit: the existence of the program is checked where it runs (agent/preflight.py).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Run(str, enum.Enum):
    """How the shim runs the user's code."""

    SCRIPT = "script"
    MODULE = "module"
    RUN_PATH = "run-path"  # torchrun --run-path: runpy.run_path, whatever its name ends with
    CODE = "code"  # python -c
    STDIN = "stdin"  # python - with a here-document
    COMMAND = "command"  # no shim: exec as it is


@dataclass(frozen=True)
class JobSize:
    """Number of ranks that a job requests of its command."""

    workers: int
    processes: int
    """Per worker."""
    worlds_per_pod: bool = False
    """Whether a pod's launcher forms a world of its own, without other pods."""
    field: str = "spec.processesPerWorker, or else spec.gpusPerWorker"
    """Field that sets the number of processes; in a pod it is unknown which."""
    set_workers: str = "set spec.workers to"
    """How the user sets the number of workers, followed by the number."""

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return self.workers * self.processes


@dataclass(frozen=True)
class Rendezvous:
    """Rendezvous of the launchers of one world, for one of them."""

    node_rank: int
    address: str
    port: int
    """Port on node 0, where no process listens yet."""


@dataclass(frozen=True)
class Launch:
    """One process. With COMMAND `argv` is the full command, else `argv[0]` is the script, module or code."""

    run: Run = Run.COMMAND
    argv: tuple[str, ...] = ()
    python: str | None = None
    """Interpreter as named in the command. None: that of `program`, agentPython, or python3."""
    flags: tuple[str, ...] = ()
    """Flags of the interpreter."""
    per_pod: bool = False
    local_rank: str = ""
    """Flag that passes the local rank to the script, as its first argument. Empty: it is not passed."""
    joining: tuple[str, ...] = ()
    """Flags by which the launchers of all pods form one world, templates of Rendezvous's fields."""
    joining_at: int = 0
    """Index in `argv` where they are inserted."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that the command sets in front of the program."""
    cwd: str = ""
    """Directory where it starts, relative to the container's working directory."""
    wrapper: tuple[str, ...] = ()
    """`conda run` and the like, which provide interpreter and environment. With COMMAND it is in `argv`."""
    program: str = ""
    """The launcher or interpreter as named in the command. It need not run, but it must exist."""
    text: str = ""
    """Description for users."""

    def rank_argv(self, local_rank: int) -> tuple[str, ...]:
        """`argv` of one rank, with its local rank if the launcher would pass it. For a launch once per
        rank."""
        if not self.local_rank:
            return self.argv
        return (self.argv[0], f"{self.local_rank}={local_rank}", *self.argv[1:])

    def pod_argv(self, place: Rendezvous) -> tuple[str, ...]:
        """`argv` of the one process of a pod, with the flags by which it joins the world. For a launch once
        per pod."""
        words = (word.format(**vars(place)) for word in self.joining)
        return (*self.argv[: self.joining_at], *words, *self.argv[self.joining_at :])

    @property
    def forkable(self) -> bool:
        """Whether the shim runs it in Python, so that a zygote can fork its ranks."""
        return self.run is not Run.COMMAND
