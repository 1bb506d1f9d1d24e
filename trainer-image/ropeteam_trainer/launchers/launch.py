"""How to start one process of a job. What analyse() answers; data, and its words put together.

Limit: whether the program exists is found out where it runs (agent/preflight.py).
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
class Job:
    """How many ranks a job wants of its command."""

    workers: int
    processes: int
    """Per worker."""
    worlds_per_pod: bool = False
    """Launchers of pods join no others."""
    field: str = "spec.processesPerWorker, or else spec.gpusPerWorker"
    """What says how many processes; in a pod that is not known."""

    @property
    def ranks(self) -> int:
        return self.workers * self.processes


@dataclass(frozen=True)
class MeetingPlace:
    """Where the launchers of one world meet, seen from one of them."""

    node_rank: int
    address: str
    port: int
    """Of node 0, where nobody listens yet."""


@dataclass(frozen=True)
class Launch:
    """For COMMAND `argv` is all of it, else `argv[0]` is the script, module or code."""

    run: Run = Run.COMMAND
    argv: tuple[str, ...] = ()
    python: str | None = None
    """Interpreter as named in the command. None: that of `program`, agentPython, or python3."""
    flags: tuple[str, ...] = ()
    """Of the interpreter."""
    per_pod: bool = False
    local_rank: str = ""
    """The flag that tells the script its local rank, as its first argument. Empty: it is not told."""
    joining: tuple[str, ...] = ()
    """Flags by which the launchers of all pods form one world, with the names of a MeetingPlace in them."""
    joining_at: int = 0
    """Where in `argv`."""
    env: tuple[tuple[str, str], ...] = ()
    """What the command sets in front of the program."""
    cwd: str = ""
    """Where it starts, seen from the container's working directory."""
    wrapper: tuple[str, ...] = ()
    """`conda run` and its like: whose interpreter and environment count. For COMMAND it is in `argv`."""
    program: str = ""
    """The launcher or interpreter as named in the command. It need not run, but it must be there."""
    text: str = ""
    """For people."""

    def arguments(self, local_rank: int) -> tuple[str, ...]:
        """`argv` of one rank."""
        if not self.local_rank:
            return self.argv
        return (self.argv[0], f"{self.local_rank}={local_rank}", *self.argv[1:])

    def joined(self, place: MeetingPlace) -> tuple[str, ...]:
        """`argv` of the one process of a pod."""
        words = (word.format(**vars(place)) for word in self.joining)
        return (*self.argv[: self.joining_at], *words, *self.argv[self.joining_at :])

    @property
    def forkable(self) -> bool:
        return self.run is not Run.COMMAND
