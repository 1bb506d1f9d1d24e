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
from ropeteam_trainer.launchers.interpreter import parse_python_command
from ropeteam_trainer.launchers.launch import JobSize, Launch, Run
from ropeteam_trainer.launchers.parsing import LaunchError, Parsed, parse
from ropeteam_trainer.launchers.table import MODULES, OF_OTHER_HOSTS, PROGRAMS, Arguments, KnownLauncher
from ropeteam_trainer.launchers.wrappers import Inner, program_name, unwrapped

_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?|pypy3?")


def analyse(command: Arguments, launcher: Field, job: JobSize) -> Launch | Problem:
    """Launch of `command`, which is not empty, in each pod of `job`; or the Problem that prevents it.
    `launcher`: spec.launcher.

    First match wins: PerPod as specified; a known command (python, a launcher); uv with a script; PerRank as
    specified; anything else once per pod.
    """
    name = program_name(command[0])
    if launcher is Field.PER_POD:
        return Launch(Run.COMMAND, command, per_pod=True, program=command[0], text="PerPod (as specified)")
    try:
        inner = unwrapped(command)
        found = _launch_of_known(inner, job, launcher)
    except LaunchError as error:
        return Problem(FailReason.LAUNCHER_REFUSED, str(error))
    if found is not None:
        python = _resolved_path(found.python, inner.cwd) if found.python else None
        program = _resolved_path(found.program, inner.cwd)
        return replace(found, env=inner.env, cwd=inner.cwd, python=python, program=program)
    if inner.is_uv_script and launcher is Field.AUTO:
        return Launch(Run.COMMAND, command, program=command[0], text="PerRank (uv run)")
    if launcher is Field.PER_RANK:
        return Launch(Run.COMMAND, command, program=command[0], text="PerRank (as specified)")
    return Launch(Run.COMMAND, command, per_pod=True, program=command[0], text=f"PerPod ({name})")


def _resolved_path(program: str, cwd: str) -> str:
    """Path of a program relative to the container's working directory, if the command changes to `cwd`
    before. A bare name is returned as it is: PATH finds it."""
    return posixpath.join(cwd, program) if "/" in program else program


@functools.lru_cache(maxsize=512)
def requested_processes(command: Arguments, launcher: Field, workers: int) -> int | None:
    """Number of ranks that the command itself requests on each of `workers` workers. None: it requests none,
    it is no known launcher's, or it is refused (analyse() gives the reason)."""
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
    """Command with a known program. None: unknown, or it reads a here-document that no launcher of ours
    passes on."""
    is_python = _PYTHON.fullmatch(inner.name)
    found = _known_python_command(inner) if is_python else _known_launcher_command(PROGRAMS, inner.words)
    is_read = found is not None and found.run is Run.STDIN
    return None if inner.stdin is not None and not is_read else found


def _known_launcher_command(
    names: Mapping[Arguments, KnownLauncher], words: Arguments
) -> _KnownCommand | None:
    """Command of the launcher in `names` whose name `words` begin with. None: there is none."""
    names_called = (program_name(words[0]), *words[1:])
    matches = ((name, each) for name, each in names.items() if names_called[: len(name)] == name)
    return next((_KnownCommand(each, words[len(name) :]) for name, each in matches), None)


def _known_python_command(inner: Inner) -> _KnownCommand:
    """Command of a Python interpreter: a launcher that it runs, or else a script, module, code or text on
    stdin. Without any of these it is started as it is."""
    call, python = parse_python_command(inner.words), inner.words[0]
    if not call.rest:
        return _KnownCommand(None, inner.words, python=python)
    known = (
        None
        if call.kind == "-c"
        else _known_launcher_command({"-m": MODULES}.get(call.kind, PROGRAMS), call.rest)
    )
    if known:
        return replace(known, python=python, flags=call.flags)
    if call.rest[0] == "-" and not call.kind:
        if inner.stdin is None:
            return _KnownCommand(None, inner.words, python=python)
        return _KnownCommand(None, (inner.stdin, *call.rest[1:]), Run.STDIN, python, call.flags)
    return _KnownCommand(None, call.rest, _RUNS[call.kind], python, call.flags)


_RUNS = {"-m": Run.MODULE, "-c": Run.CODE, "": Run.SCRIPT}


def _launch_of_known(inner: Inner, job: JobSize, field: Field) -> Launch | None:
    """Launch of a known command. None: unknown, or to be started unchanged, as `field` (spec.launcher) says.
    Raises LaunchError for a command that contradicts the job."""
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
    return (
        _launch_per_pod(inner, found, parsed, job)
        if launcher.join
        else _launch_per_rank(inner, found, parsed)
    )


def _launch_per_pod(inner: Inner, found: _KnownCommand, parsed: Parsed, job: JobSize) -> Launch:
    """Launch of a launcher that runs once per pod, with flags by which all of them form one world. None are
    added where the world has one rank."""
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


def _launch_per_rank(inner: Inner, found: _KnownCommand, parsed: Parsed) -> Launch:
    """Launch of a launcher that never runs: what it would start, once per rank."""
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
