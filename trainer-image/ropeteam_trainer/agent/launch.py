"""What does the user's command mean? Pure: a command line in, a Launch or a Problem out.

    python [flags] x.py ... | python -m x ...       once per rank, through our shim
    torchrun [flags] x.py ...                       the same: its flags are parsed, torchrun itself never runs
    deepspeed [flags] x.py ...                      the same; the script gets --local_rank=N first
    anything else (accelerate, a shell line)        once per pod, as it is
`spec.launcher` decides otherwise: PerRank starts any command once per rank, PerPod once per pod.
Limits: flags of the interpreter are understood, commands before it (`env`, `nice`) are not: that is "else".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ropeteam_trainer.contract.config import Launcher
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason


class Run(str, enum.Enum):
    """How the shim runs the user's code."""

    SCRIPT = "script"
    MODULE = "module"
    RUN_PATH = "run-path"  # torchrun --run-path: runpy.run_path, whatever its name ends with
    COMMAND = "command"  # no shim: exec as it is


@dataclass(frozen=True)
class Launch:
    """How to start one process. For COMMAND `argv` is all of it, else `argv[0]` is the script or module."""

    run: Run = Run.COMMAND
    argv: tuple[str, ...] = ()
    python: str | None = None
    """Interpreter as named in the command. None: torchrun's, agentPython, or python3."""
    flags: tuple[str, ...] = ()
    """Of the interpreter."""
    per_pod: bool = False
    tells_local_rank: bool = False
    """As the script's first argument."""
    text: str = ""
    """For people."""

    def arguments(self, local_rank: int) -> tuple[str, ...]:
        """`argv` of one rank."""
        if not self.tells_local_rank:
            return self.argv
        return (self.argv[0], f"--local_rank={local_rank}", *self.argv[1:])

    @property
    def forkable(self) -> bool:
        return self.run is not Run.COMMAND


_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?|pypy3?")
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_TORCHRUN_MODULES = ("torch.distributed.run",)


@dataclass(frozen=True)
class _Launcher:
    """The command line of a launcher whose work we do. What is in neither list is refused by name."""

    name: str
    count: str
    """The flag that says how many ranks a worker has."""
    values: frozenset[str]
    switches: frozenset[str]
    aliases: Mapping[str, str]


_TORCHRUN = _Launcher(
    "torchrun",
    "nproc-per-node",
    frozenset({
        "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
        "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
        "local-ranks-filter", "node-rank", "master-addr", "master-port", "local-addr", "logs-specs",
        "numa-binding", "shutdown-timeout", "signals-to-handle", "duplicate-stdout-filters",
        "duplicate-stderr-filters",
    }),
    frozenset({"standalone", "no-python", "module", "run-path", "virtual-local-rank"}),
    {"-m": "module", "-r": "redirects", "-t": "tee"},
)  # fmt: skip
_DEEPSPEED = _Launcher(
    "deepspeed",
    "num-gpus",
    frozenset({
        "hostfile", "num-nodes", "num-gpus", "master-port", "master-addr", "node-rank",
        "launcher", "launcher-args", "log-level", "ssh-port",
    }),
    frozenset({"module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "quiet"}),
    {"-H": "hostfile", "-q": "quiet", "--num_accelerators": "num-gpus"},
)  # fmt: skip
_ANY_COUNT = ("gpu", "cpu", "auto", "xpu")


def analyse(command: tuple[str, ...], launcher: Launcher, processes: int) -> Launch | Problem:
    """`processes`: ranks per worker, which `--nproc-per-node` must not contradict."""
    if launcher is Launcher.PER_POD:
        return Launch(Run.COMMAND, command, per_pod=True, text="PerPod (as asked)")
    name = command[0].rpartition("/")[2]
    found: Launch | Problem | None = None
    if name == _TORCHRUN.name:
        found = _launched(_TORCHRUN, command[1:], None, (), processes)
    elif name == _DEEPSPEED.name:
        found = _launched(_DEEPSPEED, command[1:], None, (), processes)
    elif _PYTHON.fullmatch(name):
        found = _python(command, processes)
    if found is not None:
        return found
    if launcher is Launcher.PER_RANK:
        return Launch(Run.COMMAND, command, text="PerRank (as asked)")
    return Launch(Run.COMMAND, command, per_pod=True, text=f"PerPod ({name})")


def _python(command: tuple[str, ...], processes: int) -> Launch | Problem:
    """`python [flags] (script | -m module | -c code) ...`"""
    python, rest, flags = command[0], list(command[1:]), []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c", "-m"):
        flags.append(rest.pop(0))
        if flags[-1] in _FLAGS_WITH_VALUE and rest:
            flags.append(rest.pop(0))
    if rest[:1] == ["-m"] and len(rest) > 1:
        if rest[1] in _TORCHRUN_MODULES:
            return _launched(_TORCHRUN, tuple(rest[2:]), python, tuple(flags), processes)
        return Launch(Run.MODULE, tuple(rest[1:]), python, tuple(flags), text="PerRank (python -m)")
    if rest and not rest[0].startswith("-"):
        return Launch(Run.SCRIPT, tuple(rest), python, tuple(flags), text="PerRank (python)")
    return Launch(Run.COMMAND, command, python, text="PerRank (python)")


def _launched(
    launcher: _Launcher, args: tuple[str, ...], python: str | None, flags: tuple[str, ...], processes: int
) -> Launch | Problem:
    options, rest = _options(launcher, args)
    if isinstance(rest, Problem):
        return rest
    count = options.get(launcher.count)
    if count is not None and count not in _ANY_COUNT and count != str(processes):
        return _refused(
            f"the command says --{launcher.count} {count}, the job has {processes} processes per worker:"
            f" set spec.processesPerWorker to {count} or leave the flag out"
        )
    if not rest:
        return _refused(f"{launcher.name} was given no script")
    text = f"PerRank ({launcher.name} flags parsed)"
    tells = launcher is _DEEPSPEED and "no-local-rank" not in options
    if "no-python" in options:
        return Launch(Run.COMMAND, rest, python, tells_local_rank=tells, text=text)
    run = Run.MODULE if "module" in options else Run.RUN_PATH if "run-path" in options else Run.SCRIPT
    return Launch(run, rest, python, flags, tells_local_rank=tells, text=text)


def _options(launcher: _Launcher, args: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...] | Problem]:
    """The launcher's own options, and what follows them."""
    options: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        flag, has_value, value = rest.pop(0).partition("=")
        name = launcher.aliases.get(flag) or flag.lstrip("-").replace("_", "-")
        if flag == "--":
            break
        if name in launcher.switches:
            options[name] = ""
        elif name not in launcher.values:
            return {}, _refused(f"{launcher.name} flag {flag} is not known here: leave it out of the command")
        elif not has_value and not rest:
            return {}, _refused(f"{launcher.name} flag {flag} needs a value")
        else:
            options[name] = value if has_value else rest.pop(0)
    return options, tuple(rest)


def _refused(message: str) -> Problem:
    return Problem(FailReason.LAUNCHER_REFUSED, message)
