"""What can be known to fail before anything is started: Problems that name what to change.

What may pass by itself (a stale mount, a slow node) is tried again for half a minute; if it lasts, the
Problem says so (`passing`), and another pod is asked for. Limit: SIGTERM is not heard meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.config import STORE, PodIdentity, WorkerConfig
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.launchers import Job, Launch, Run, analyse
from ropeteam_trainer.system.folders import Folder, Location, location

_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_SHOW_PLACE = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
_WRAPPER_SECONDS = 600
"""For `uv run` and its like, which may install packages first."""
_PATIENCES = (60, 120)
"""Seconds for an interpreter to look for torch: a cold or busy node is slow, not wrong."""
_PAUSES = (0.5, 1, 2, 4, 8, 15)
"""Seconds between tries of what may pass by itself."""
_FINAL = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOEXEC,
    errno.EISDIR,
    errno.ELOOP,
}
"""What the next try will say, too."""

_ROOT_IS_NOT_ALMIGHTY = (
    ": without capabilities root may write no files of others. To let it, set securityContext: "
    "{capabilities: {drop: []}} for the container trainer in spec.template"
)


def plan_launch(
    command: tuple[str, ...], settings: WorkerConfig, environ: Mapping[str, str]
) -> tuple[Launch, str, Problem | None]:
    """How to start ranks, with which interpreter, and why that cannot work, if it cannot."""
    python = settings.agent_python or "python3"
    if not command:
        return Launch(), python, Problem(FailReason.COMMAND_NOT_FOUND, "the container has no command")
    job = Job(settings.workers, settings.processes, settings.worlds_per_pod)
    launch = analyse(command, settings.launcher, job)
    if isinstance(launch, Problem):
        return Launch(), python, launch
    launch = _inside(_with_bash_env(launch, command[0], environ), environ)
    if isinstance(launch, Problem):
        return Launch(), python, launch
    environ = {**environ, **dict(launch.env)}
    python = launch.python or _shebang(launch.program, environ) or python
    problem = _command(launch, environ) or _checkpoint(settings)
    if problem is None and environ.get(STORE) != "none" and not launch.per_pod:  # whose Python we do not know
        problem = _torch(python, environ)
    return launch, python, problem


def signer(settings: WorkerConfig, identity: PodIdentity) -> tuple[PodIdentity, Problem | None]:
    """With the keys that the job names, if it names any, and why they cannot be used. With a Problem nothing
    is ever written, so nothing is signed with another key instead."""
    try:
        named = seals.read_named(settings.checkpoint.signing) if settings.checkpoint else ()
    except (OSError, ValueError) as error:
        return identity, Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"checkpoints cannot be signed: {error}")
    return replace(identity, keys=named + identity.keys), None


def _with_bash_env(launch: Launch, program: str, environ: Mapping[str, str]) -> Launch:
    """A bash that we read instead of running it would have read this file."""
    is_read = Path(program).name == "bash" and launch.argv[:1] != (program,)
    if not is_read or not environ.get("BASH_ENV"):
        return launch
    return replace(launch, wrapper=(program, "-c", 'exec "$0" "$@"', *launch.wrapper))


def _inside(launch: Launch, environ: Mapping[str, str]) -> Launch | Problem:
    """With what its wrapper (`uv run`, a login shell) makes of environment and folder."""
    if not launch.wrapper:
        return launch
    given = {**environ, **dict(launch.env)}
    try:
        done = subprocess.run(
            [*launch.wrapper, sys.executable, "-I", "-c", _SHOW_PLACE],
            env=given,
            cwd=launch.cwd or None,
            timeout=_WRAPPER_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
        )
        shown, folder = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or [""]
        text = f"{' '.join(launch.wrapper)} fails: {said[-1]}: correct spec.command or spec.image"
        return Problem(FailReason.COMMAND_NOT_FOUND, text, isinstance(error, subprocess.TimeoutExpired))
    made = {name: value for name, value in shown.items() if given.get(name) != value and name != "_"}
    return replace(launch, env=(*launch.env, *made.items()), cwd=folder)


def _command(launch: Launch, environ: Mapping[str, str]) -> Problem | None:
    # torchrun itself is never run, but it names the interpreter.
    program = launch.argv[0] if launch.run is Run.COMMAND else launch.program
    if shutil.which(program, path=environ.get("PATH")) is None:
        fix = "correct spec.command or spec.image"
        if program.endswith(".py"):
            fix = f"a script is no program, begin spec.command with what runs it: [torchrun, {program}]"
        text = f"{program} is not in the image: {fix} (PATH is {environ.get('PATH')})"
        return Problem(FailReason.COMMAND_NOT_FOUND, text)
    folder = Path.cwd() / launch.cwd
    if launch.run in (Run.SCRIPT, Run.RUN_PATH) and not (folder / launch.argv[0]).exists():
        return Problem(
            FailReason.COMMAND_NOT_FOUND,
            f"{launch.argv[0]} is not a file in {folder}: correct spec.command or spec.workingDir",
        )
    return None


def _shebang(program: str, environ: Mapping[str, str]) -> str | None:
    """The interpreter of a console script such as torchrun."""
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        return None
    with open(path, "rb") as file:
        first, second = file.readline(512), file.readline(512)
    words = shlex.split(first[2:].decode(errors="replace")) if first.startswith(b"#!") else []
    if words and words[0].endswith("/sh") and second.startswith(b"'''exec'"):
        words = shlex.split(second.decode(errors="replace").removeprefix("'''exec'"))  # pip, for long paths
    return next((word for word in words if Path(word).name.startswith("python")), None)


def _checkpoint(settings: WorkerConfig) -> Problem | None:
    if settings.checkpoint is None:
        return None
    folder = settings.checkpoint.directory
    where = location(folder, settings.checkpoint.volume)
    error = _tried(lambda: _write_in(where))
    if error is None:
        return None
    why = f"{folder} cannot be written: {error.strerror or error}"
    if error.errno not in _FINAL:
        fix = "See to spec.checkpoint.volume, and to its mount on this node"
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"{why}. {fix}", passing=True)
    if error.errno == errno.ELOOP:  # folders.py says what to change
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, why)
    text = f"{why}. Give spec.checkpoint.volume to the user that the container runs as (uid {os.getuid()})"
    if os.getuid() == 0 and error.errno == errno.EACCES:
        text += _ROOT_IS_NOT_ALMIGHTY
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text)


def _write_in(where: Location) -> None:
    with Folder.at(where, make=True), tempfile.TemporaryFile(dir=str(where)):
        pass  # if a link has come between the two, it was a file without a name


def _tried(action: Callable[[], None]) -> OSError | None:
    """The error that stays; None: it went well in the end."""
    for pause in (*_PAUSES, None):
        try:
            action()
        except OSError as error:
            if error.errno in _FINAL or pause is None:
                return error
            time.sleep(pause)
        else:
            break
    return None


def _torch(python: str, environ: Mapping[str, str]) -> Problem | None:
    why, passing = "", False
    for seconds in _PATIENCES:
        try:
            done = subprocess.run(
                [python, "-c", _FIND_TORCH],
                env=environ,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why, passing = f"cannot be started: {error}", getattr(error, "errno", None) not in _FINAL
            if passing:
                continue
        else:
            why, passing = "" if done.returncode == 0 else "cannot import torch", False
        break
    if not why:
        return None
    text = f"{python} {why}: use an image or a command whose Python has torch, or set spec.agentPython"
    return Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text, passing)
