"""Analysis of the user's command. Pure: a command line in, a Launch or a Problem out.

    python [flags] x.py | -m x | -c CODE            once per rank, through our shim
    a launcher of table.py                          once per rank, flags parsed; or per pod, flags added
    anything else (a shell script)                  once per pod, unchanged
`spec.launcher` overrides this: PerRank starts any command once per rank, PerPod once per pod, unchanged.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropeteam_trainer.contract.config import Launcher as Field
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.launchers.interpreter import python_command
from ropeteam_trainer.launchers.launch import JobSize, Launch, Run
from ropeteam_trainer.launchers.parsing import LaunchError, Parsed, parse
from ropeteam_trainer.launchers.table import MODULES, OF_OTHER_HOSTS, PROGRAMS, Arguments, KnownLauncher
from ropeteam_trainer.launchers.wrappers import Inner, name_of, unwrapped

_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?|pypy3?")


def analyse(command: Arguments, launcher: Field, job: JobSize) -> Launch | Problem:
    """Launch of `command`, which is not empty, in each pod of `job`; or the Problem that prevents it."""
    name = name_of(command[0])
    if launcher is Field.PER_POD:
        return Launch(Run.COMMAND, command, per_pod=True, program=command[0], text="PerPod (as specified)")
    try:
        inner = unwrapped(command)
        found = _launch_of_known(inner, job, launcher)
    except LaunchError as error:
        return Problem(FailReason.LAUNCHER_REFUSED, str(error))
    if found is not None:
        python = _resolved(found.python, inner.cwd) if found.python else None
        program = _resolved(found.program, inner.cwd)
        return replace(found, env=inner.env, cwd=inner.cwd, python=python, program=program)
    if inner.is_uv_script and launcher is Field.AUTO:
        return Launch(Run.COMMAND, command, program=command[0], text="PerRank (uv run)")
    if launcher is Field.PER_RANK:
        return Launch(Run.COMMAND, command, program=command[0], text="PerRank (as specified)")
    return Launch(Run.COMMAND, command, per_pod=True, program=command[0], text=f"PerPod ({name})")


def _resolved(program: str, cwd: str) -> str:
    """Path of a program; one that is not a bare name is resolved against `cwd`."""
    return posixpath.join(cwd, program) if "/" in program else program


@functools.lru_cache(maxsize=512)
def processes_of(command: Arguments, launcher: Field, workers: int) -> int | None:
    """Number of ranks that the command itself requests on each of `workers` workers. None: none given, or
    the command is refused for another reason."""
    if launcher is Field.PER_POD or not command:
        return None
    try:
        found = _known_command(unwrapped(command))
        if found is None or found.launcher is None or (found.launcher.join and launcher is Field.PER_RANK):
            return None
        given = parse(found.launcher.name, found.launcher.options, found.arguments)
        return found.launcher.processes(given, workers)
    except LaunchError:
        return None


@dataclass(frozen=True)
class _KnownCommand:
    """Command with a known program."""

    launcher: KnownLauncher | None
    arguments: Arguments
    """Arguments of the launcher; without one the script, module or code, and its arguments."""
    run: Run = Run.COMMAND
    """How to run it without a launcher."""
    python: str | None = None
    flags: Arguments = ()


def _known_command(inner: Inner) -> _KnownCommand | None:
    is_python = _PYTHON.fullmatch(inner.name)
    found = _python(inner) if is_python else _lookup(PROGRAMS, inner.words)
    is_read = found is not None and found.run is Run.STDIN
    return None if inner.stdin is not None and not is_read else found


def _lookup(names: Mapping[Arguments, KnownLauncher], words: Arguments) -> _KnownCommand | None:
    names_called = (name_of(words[0]), *words[1:])
    matches = ((name, each) for name, each in names.items() if names_called[: len(name)] == name)
    return next((_KnownCommand(each, words[len(name) :]) for name, each in matches), None)


def _python(inner: Inner) -> _KnownCommand:
    call, python = python_command(inner.words), inner.words[0]
    if not call.rest:
        return _KnownCommand(None, inner.words, python=python)
    known = None if call.kind == "-c" else _lookup({"-m": MODULES}.get(call.kind, PROGRAMS), call.rest)
    if known:
        return replace(known, python=python, flags=call.flags)
    if call.rest[0] == "-" and not call.kind:
        if inner.stdin is None:
            return _KnownCommand(None, inner.words, python=python)
        return _KnownCommand(None, (inner.stdin, *call.rest[1:]), Run.STDIN, python, call.flags)
    return _KnownCommand(None, call.rest, _RUNS[call.kind], python, call.flags)


_RUNS = {"-m": Run.MODULE, "-c": Run.CODE, "": Run.SCRIPT}


def _launch_of_known(inner: Inner, job: JobSize, field: Field) -> Launch | None:
    """Launch of a known command. None: unknown, or started unchanged. Raises LaunchError."""
    if inner.name in OF_OTHER_HOSTS and field is Field.AUTO:
        raise LaunchError(
            f"{inner.name} starts processes in other pods, which is not allowed; write the command that it"
            " starts (spec.launcher PerRank starts any command once per rank), or torchrun and the script"
        )
    found = _known_command(inner)
    if found is None:
        return None
    launcher = found.launcher
    if launcher is None:
        how = "PerRank (python -m)" if found.run is Run.MODULE else "PerRank (python)"
        launch = Launch(found.run, found.arguments, found.python, found.flags, text=how)
        return replace(launch, wrapper=inner.wrapper, program=inner.words[0])
    if launcher.join and field is Field.PER_RANK:
        return None
    parsed = parse(launcher.name, launcher.options, found.arguments)
    launcher.check_against(parsed, job)
    return _per_pod(inner, found, parsed, job) if launcher.join else _per_rank(inner, found, parsed)


def _per_pod(inner: Inner, found: _KnownCommand, parsed: Parsed, job: JobSize) -> Launch:
    argv = (*inner.wrapper, *inner.words)
    assert found.launcher is not None
    assert found.launcher.join is not None
    world = replace(job, workers=1) if job.worlds_per_pod else job
    joining = found.launcher.join(parsed, world) if world.ranks > 1 else ()
    return Launch(
        Run.COMMAND,
        argv,
        per_pod=True,
        joining=joining,
        joining_at=len(argv) - len(found.arguments),
        program=argv[0],
        text=f"PerPod ({found.launcher.name}{', flags added' if joining else ''})",
    )


def _per_rank(inner: Inner, found: _KnownCommand, parsed: Parsed) -> Launch:
    launcher, given = found.launcher, parsed.given
    assert launcher is not None
    if "run-path" in given:
        run = Run.RUN_PATH
    elif "no-python" in given:
        run = Run.COMMAND
    else:
        run = Run.MODULE if "module" in given else Run.SCRIPT
    return Launch(
        run,
        parsed.rest,
        found.python,
        found.flags if run is not Run.COMMAND else (),
        local_rank="" if launcher.unless in given else launcher.local_rank,
        wrapper=inner.wrapper,
        program=inner.words[0],
        text=f"PerRank ({launcher.name} flags parsed)",
    )
