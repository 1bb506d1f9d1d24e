"""Checks before anything is started: Problems that name what to change.

Transient errors (a stale mount, a slow node) are retried for half a minute; if they last, the Problem is
marked (`transient`), and another pod is requested. Limit: SIGTERM is not handled meanwhile.
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
from ropeteam_trainer.launchers import JobSize, Launch, Run, analyse
from ropeteam_trainer.system.folders import Folder, Location, location

_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_PRINT_PLACE = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
_WRAPPER_SECONDS = 600
"""Limit of `uv run` and the like, which may install packages first."""
_TORCH_TIMEOUTS = (60, 120)
"""Seconds for an interpreter to find torch, per attempt: a cold or busy node is slow, not wrong."""
_RETRY_PAUSES = (0.5, 1, 2, 4, 8, 15)
"""Seconds between attempts, for transient errors."""
_PERMANENT = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOEXEC,
    errno.EISDIR,
    errno.ELOOP,
}
"""Errors that the next attempt would give, too."""

_ROOT_WITHOUT_CAPABILITIES = (
    ": without capabilities root cannot write files of other users. To allow it, set securityContext: "
    "{capabilities: {drop: []}} for the container trainer in spec.template"
)


def plan_launch(
    command: tuple[str, ...], settings: WorkerConfig, environ: Mapping[str, str]
) -> tuple[Launch, str, Problem | None]:
    """The launch of ranks, its interpreter, and the problem that prevents it, if there is one."""
    python = settings.agent_python or "python3"
    if not command:
        return Launch(), python, Problem(FailReason.COMMAND_NOT_FOUND, "the container has no command")
    job = JobSize(settings.workers, settings.processes, settings.worlds_per_pod)
    launch = analyse(command, settings.launcher, job)
    if isinstance(launch, Problem):
        return Launch(), python, launch
    launch = _with_wrapper(_with_bash_env(launch, command[0], environ), environ)
    if isinstance(launch, Problem):
        return Launch(), python, launch
    environ = {**environ, **dict(launch.env)}
    python = launch.python or _script_interpreter(launch.program, environ) or python
    problem = _command_problem(launch, environ) or _checkpoint_problem(settings)
    if problem is None and environ.get(STORE) != "none" and not launch.per_pod:  # its Python is unknown
        problem = _torch_problem(python, environ)
    return launch, python, problem


def signer(settings: WorkerConfig, identity: PodIdentity) -> tuple[PodIdentity, Problem | None]:
    """The identity with the keys that the job names, if any, and the problem of using them, if any. With a
    Problem nothing is ever written, so nothing is signed with another key instead."""
    try:
        named = seals.read_named(settings.checkpoint.signing) if settings.checkpoint else ()
    except (OSError, ValueError) as error:
        return identity, Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"checkpoints cannot be signed: {error}")
    return replace(identity, keys=named + identity.keys), None


def _with_bash_env(launch: Launch, program: str, environ: Mapping[str, str]) -> Launch:
    """The launch with $BASH_ENV read, as bash would: its command was parsed here instead of run."""
    is_parsed = Path(program).name == "bash" and launch.argv[:1] != (program,)
    if not is_parsed or not environ.get("BASH_ENV"):
        return launch
    return replace(launch, wrapper=(program, "-c", 'exec "$0" "$@"', *launch.wrapper))


def _with_wrapper(launch: Launch, environ: Mapping[str, str]) -> Launch | Problem:
    """The launch with the environment and folder that its wrapper (`uv run`, a login shell) sets."""
    if not launch.wrapper:
        return launch
    environment = {**environ, **dict(launch.env)}
    try:
        done = subprocess.run(
            [*launch.wrapper, sys.executable, "-I", "-c", _PRINT_PLACE],
            env=environment,
            cwd=launch.cwd or None,
            timeout=_WRAPPER_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
        )
        shown, folder = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or [""]
        text = f"{' '.join(launch.wrapper)} fails: {lines[-1]}; correct spec.command or spec.image"
        return Problem(FailReason.COMMAND_NOT_FOUND, text, isinstance(error, subprocess.TimeoutExpired))
    changes = {name: value for name, value in shown.items() if environment.get(name) != value and name != "_"}
    return replace(launch, env=(*launch.env, *changes.items()), cwd=folder)


def _command_problem(launch: Launch, environ: Mapping[str, str]) -> Problem | None:
    # torchrun itself is never run, but it names the interpreter.
    program = launch.argv[0] if launch.run is Run.COMMAND else launch.program
    if shutil.which(program, path=environ.get("PATH")) is None:
        fix = "correct spec.command or spec.image"
        if program.endswith(".py"):
            fix = f"begin spec.command with a program, as in [torchrun, {program}]"
        text = f"{program} is not in the image; {fix} (PATH is {environ.get('PATH')})"
        return Problem(FailReason.COMMAND_NOT_FOUND, text)
    folder = Path.cwd() / launch.cwd
    if launch.run in (Run.SCRIPT, Run.RUN_PATH) and not (folder / launch.argv[0]).exists():
        return Problem(
            FailReason.COMMAND_NOT_FOUND,
            f"{launch.argv[0]} is not a file in {folder}; correct spec.command or spec.workingDir",
        )
    return None


def _script_interpreter(program: str, environ: Mapping[str, str]) -> str | None:
    """The interpreter of a console script such as torchrun."""
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        return None
    with open(path, "rb") as file:
        first, second = file.readline(512), file.readline(512)
    arguments = shlex.split(first[2:].decode(errors="replace")) if first.startswith(b"#!") else []
    if arguments and arguments[0].endswith("/sh") and second.startswith(b"'''exec'"):
        arguments = shlex.split(
            second.decode(errors="replace").removeprefix("'''exec'")
        )  # pip, for long paths
    return next((argument for argument in arguments if Path(argument).name.startswith("python")), None)


def _checkpoint_problem(settings: WorkerConfig) -> Problem | None:
    if settings.checkpoint is None:
        return None
    folder = settings.checkpoint.directory
    where = location(folder, settings.checkpoint.volume)
    error = _retry(lambda: _write_in(where))
    if error is None:
        return None
    reason = f"{folder} cannot be written: {error.strerror or error}"
    if error.errno not in _PERMANENT:
        fix = "Check spec.checkpoint.volume, and its mount on this node"
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"{reason}. {fix}", transient=True)
    if error.errno == errno.ELOOP:  # the message of folders.py names what to change
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, reason)
    text = f"{reason}. Make spec.checkpoint.volume writable for the user of the container (uid {os.getuid()})"
    if os.getuid() == 0 and error.errno == errno.EACCES:
        text += _ROOT_WITHOUT_CAPABILITIES
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text)


def _write_in(where: Location) -> None:
    with Folder.at(where, make=True), tempfile.TemporaryFile(dir=str(where)):
        pass  # if a link was put there between the two, the file had no name


def _retry(action: Callable[[], None]) -> OSError | None:
    """Retry an action; its last error, or None if it succeeded."""
    for pause in (*_RETRY_PAUSES, None):
        try:
            action()
        except OSError as error:
            if error.errno in _PERMANENT or pause is None:
                return error
            time.sleep(pause)
        else:
            break
    return None


def _torch_problem(python: str, environ: Mapping[str, str]) -> Problem | None:
    reason, transient = "", False
    for seconds in _TORCH_TIMEOUTS:
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
            reason, transient = f"cannot be started: {error}", getattr(error, "errno", None) not in _PERMANENT
            if transient:
                continue
        else:
            reason, transient = "" if done.returncode == 0 else "cannot import torch", False
        break
    if not reason:
        return None
    text = f"{python} {reason}; use an image or a command whose Python has torch, or set spec.agentPython"
    return Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text, transient)
