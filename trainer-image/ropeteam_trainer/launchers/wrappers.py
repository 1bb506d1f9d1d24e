"""Wrappers: commands in front of a launcher, and their effects on it.

    env A=b, exec, nohup, nice, time     removed, except for the variables
    bash -c LINE                         removed, if the line is simple (shell.py)
    conda run, uv run, poetry run        kept as `wrapper`: they provide interpreter and environment
Limits: `env` with flags is not unwrapped. `nice` and `time` have no effect here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ropeteam_trainer.launchers.options import OPTIONS, Options
from ropeteam_trainer.launchers.parsing import LaunchError, parse
from ropeteam_trainer.launchers.shell import parse_simple_line, shell_line

_ENVIRONMENT_OF_SHELL = 'exec "$0" "$@"'
"""Shell line that runs the arguments after it, once the shell has read its startup files."""
_CONDA = Options(
    "conda 25.9",
    "-n|--name -p|--prefix --cwd",
    "-v|--verbose --dev --debug-wrapper-scripts --no-capture-output|--live-stream",
)
"""From conda/cli/main_run.py; it is in no index."""


@dataclass(frozen=True)
class Inner:
    """A command without its wrappers."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    wrapper: tuple[str, ...] = ()
    stdin: str | None = None
    is_uv_script: bool = False
    """`uv run x.py`: uv creates an environment from the metadata in the script."""

    @property
    def name(self) -> str:
        return program_name(self.words[0])


def program_name(program: str) -> str:
    """Last part of a program's path."""
    return program.rpartition("/")[2]


def unwrapped(command: tuple[str, ...]) -> Inner:
    """Command without its wrappers, as far as they are known; their effects are in the other fields. Raises
    nothing: a wrapper with unknown flags stays in front."""
    inner = Inner(command)
    while (
        not inner.is_uv_script and (next_one := _without_first_wrapper(inner)) is not None and next_one.words
    ):
        inner = next_one
    return inner


def _without_first_wrapper(inner: Inner) -> Inner | None:
    """Command without its first wrapper. None: no known wrapper is in front."""
    strip = _STRIP.get(inner.name)
    return strip(inner) if strip else None


def _strip_prefix(flags: str) -> Callable[[Inner], Inner | None]:
    """Function that strips a program which only runs its arguments. `flags`: pattern of the flags that it may
    have; with any other flag it is not stripped (None)."""

    def strip(inner: Inner) -> Inner | None:
        rest = list(inner.words[1:])
        while rest and re.fullmatch(flags, rest[0]):
            rest.pop(0)
        return None if rest[:1] and rest[0].startswith("-") else replace(inner, words=tuple(rest))

    return strip


def _strip_env(inner: Inner) -> Inner | None:
    """Strip `env A=b`. None: it has flags."""
    rest, env = list(inner.words[1:]), list(inner.env)
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        env.append((name, value))
    return None if rest[:1] and rest[0].startswith("-") else replace(inner, words=tuple(rest), env=tuple(env))


def _strip_shell(inner: Inner) -> Inner | None:
    """Strip `bash -c LINE`. None: the line needs a shell, or changes the folder inside of a wrapper. A login
    shell stays as a wrapper: its startup files set the environment."""
    found = shell_line(inner.words)
    command = parse_simple_line(found[0]) if found else None
    if found is None or command is None or (command.cwd and inner.wrapper):
        return None
    files = (inner.words[0], "-lc", _ENVIRONMENT_OF_SHELL) if found[1] else ()
    return replace(
        inner,
        words=command.words,
        env=inner.env + command.env,
        cwd=posixpath.join(inner.cwd, command.cwd),
        wrapper=inner.wrapper + files,
        stdin=command.stdin,
    )


def _strip_runner(options: Options) -> Callable[[Inner], Inner | None]:
    """Function that makes `NAME run [options]` a wrapper of the command after it. It returns None where the
    options are unknown, and marks `uv run x.py`, in which uv chooses the environment by the script."""

    def strip(inner: Inner) -> Inner | None:
        if inner.words[1:2] != ("run",) or not inner.words[2:]:
            return None
        try:
            parsed = parse(f"{inner.name} run", options, inner.words[2:])
        except LaunchError:
            return None  # a flag of a newer release: it runs unchanged
        is_script = parsed.rest[0].endswith(".py") or {"module", "script", "gui-script"} & parsed.given.keys()
        if is_script or parsed.rest[0] == "-":
            return replace(inner, is_uv_script=True)
        at = 2 + parsed.at
        return replace(inner, words=inner.words[at:], wrapper=inner.wrapper + inner.words[:at])

    return strip


_STRIP: Mapping[str, Callable[[Inner], Inner | None]] = {
    "env": _strip_env,
    "exec": _strip_prefix(r"(?!)"),
    "nohup": _strip_prefix(r"(?!)"),
    "time": _strip_prefix(r"-p"),
    "nice": _strip_prefix(r"-n|-?-?\d+|-n-?\d+|--adjustment(=-?\d+)?"),
    **dict.fromkeys(("sh", "bash", "dash"), _strip_shell),
    **dict.fromkeys(("conda", "mamba"), _strip_runner(_CONDA)),
    **dict.fromkeys(("poetry", "pipenv"), _strip_runner(Options("", "", ""))),
    "uv": _strip_runner(OPTIONS["uv"]),
}
