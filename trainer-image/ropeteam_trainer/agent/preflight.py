"""Checks before anything is started, in the container and with the environment of the job: Problems that name
what to change.

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

from ropeteam_trainer.checkpoint.directory import checkpoint_directory
from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.config import STORE, PodIdentity, WorkerConfig
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.launchers import JobSize, Launch, Run, analyse
from ropeteam_trainer.system.folders import Folder, Location

_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_PRINT_CONTEXT = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
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
    """The launch of ranks, its interpreter, and the problem that prevents it, if there is one.

    Order, the first problem wins: the command is parsed -> its wrapper is run, which may install packages ->
    the program and the script exist -> the checkpoint folder is writable -> the interpreter finds torch. If
    the command cannot be parsed, or its wrapper fails, the launch is empty. The interpreter: the command's;
    that of its program, a console script; spec.agentPython; python3.
    """
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


def with_named_keys(settings: WorkerConfig, identity: PodIdentity) -> tuple[PodIdentity, Problem | None]:
    """The identity with the user's own keys added, first, if the job names any; and the problem of reading
    them. With a Problem nothing is ever written, so nothing is signed with another key instead."""
    try:
        named = seals.read_secret_keys(settings.checkpoint.signing) if settings.checkpoint else ()
    except (OSError, ValueError) as error:
        return identity, Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"checkpoints cannot be signed: {error}")
    return replace(identity, keys=named + identity.keys), None


def _with_bash_env(launch: Launch, program: str, environ: Mapping[str, str]) -> Launch:
    """The launch with a bash in front that reads $BASH_ENV, if `program` is a bash whose command line was
    parsed, and so is not run: the image may set up its environment there."""
    is_parsed = Path(program).name == "bash" and launch.argv[:1] != (program,)
    if not is_parsed or not environ.get("BASH_ENV"):
        return launch
    return replace(launch, wrapper=(program, "-c", 'exec "$0" "$@"', *launch.wrapper))


def _with_wrapper(launch: Launch, environ: Mapping[str, str]) -> Launch | Problem:
    """The launch with the environment and folder that its wrapper (`uv run`, a login shell) sets: the wrapper
    is run once here, around a Python that prints both. A Problem if it fails."""
    if not launch.wrapper:
        return launch
    environment = {**environ, **dict(launch.env)}
    try:
        done = subprocess.run(
            [*launch.wrapper, sys.executable, "-I", "-c", _PRINT_CONTEXT],
            env=environment,
            cwd=launch.cwd or None,
            timeout=_WRAPPER_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        variables, folder = json.loads(done.stdout.splitlines()[-1])  # the wrapper may print lines before it
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        lines = (output or str(error)).strip().splitlines() or [""]
        text = f"{' '.join(launch.wrapper)} fails: {lines[-1]}; correct spec.command or spec.image"
        return Problem(FailReason.COMMAND_NOT_FOUND, text, isinstance(error, subprocess.TimeoutExpired))
    changed = (item for item in variables.items() if environment.get(item[0]) != item[1] and item[0] != "_")
    return replace(launch, env=(*launch.env, *changed), cwd=folder)


def _command_problem(launch: Launch, environ: Mapping[str, str]) -> Problem | None:
    """The problem of a program that is not in PATH, or of a script that does not exist. A launcher such as
    torchrun must exist, although it is never run: it names the interpreter."""
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
            f"{launch.argv[0]} does not exist in {folder}; correct spec.command or spec.workingDir",
        )
    return None


def _script_interpreter(program: str, environ: Mapping[str, str]) -> str | None:
    """The interpreter that a console script such as torchrun names in its first line, or in the second, as
    pip writes it. None: `program` is not found, cannot be read or parsed, or names no Python."""
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            first, second = file.readline(512), file.readline(512)
        arguments = shlex.split(first[2:].decode(errors="replace")) if first.startswith(b"#!") else []
        if arguments and arguments[0].endswith("/sh") and second.startswith(b"'''exec'"):
            # pip writes the interpreter into a second line if the first would be too long for the kernel.
            arguments = shlex.split(second.decode(errors="replace").removeprefix("'''exec'"))
    except (OSError, ValueError):  # not readable, or a quote without its end
        return None
    return next((argument for argument in arguments if Path(argument).name.startswith("python")), None)


def _checkpoint_problem(settings: WorkerConfig) -> Problem | None:
    """The problem of writing into the checkpoint folder, which is created; transient if another attempt or
    another node may succeed. None also for a job without checkpoints."""
    if settings.checkpoint is None:
        return None
    folder = settings.checkpoint.directory
    where = checkpoint_directory(settings.checkpoint)
    error = _retry(lambda: _try_to_write(where))
    if error is None:
        return None
    reason = f"the checkpoint folder {folder} cannot be written: {error.strerror or error}"
    if error.errno not in _PERMANENT:
        fix = "Check spec.checkpoint.volume, and its mount on this node"
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, f"{reason}. {fix}", transient=True)
    if error.errno == errno.ELOOP:  # the message of folders.py names what to change
        return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, reason)
    text = f"{reason}. Make spec.checkpoint.volume writable for the user of the container (uid {os.getuid()})"
    if os.getuid() == 0 and error.errno == errno.EACCES:
        text += _ROOT_WITHOUT_CAPABILITIES
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text)


def _try_to_write(where: Location) -> None:
    """Create the folder, and a file without a name in it, which is gone at once. Raises OSError."""
    with Folder.at(where, make=True), tempfile.TemporaryFile(dir=str(where)):
        pass  # if a link was put there between the two, the file had no name


def _retry(action: Callable[[], None]) -> OSError | None:
    """Call `action` until it succeeds, with pauses; None then. Else its error: the first that is permanent,
    or the last."""
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
    """The problem of an interpreter that cannot be started, or has no torch; torch itself is not imported. A
    transient error, such as a time-out, is tried once more, and marked as transient."""
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
