"""Errors of a command line, each with the correct line. No I/O; stdlib only, since it runs before each
command that takes a user's command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

MANIFESTS = (".yaml", ".yml", ".json")


def script_message(arguments: Sequence[str], workers: int | None) -> str:
    """Message for `train.py --lr 1`: a script that is no program. It shows one process, and several."""
    script = shlex.join(arguments)
    return (
        f"{arguments[0]} is a script, not a manifest or a program. Write the program that runs it:\n"
        f"  ropeteam run -n {workers or 1} -- python {script}\n"
        f"  ropeteam run -n {workers or 2} -- torchrun {script}"
    )


def dashes_message(arguments: Sequence[str], takes_value: Mapping[str, bool], verb: str | None) -> str:
    """Message for `-n 2 torchrun train.py --lr 1` without `--`, where click would take --lr as an option of
    ours. Empty: nothing is ambiguous.

    takes_value: our options, and whether the next argument is their value. verb: `run` or `plan`.
    """
    start = _command_start(arguments, takes_value)
    ours, theirs = arguments[:start], arguments[start:]
    if not theirs or "--" in arguments or theirs[0].endswith(MANIFESTS):
        return ""
    ambiguous = next((argument for argument in theirs if argument.startswith("-")), None)
    if ambiguous is None:
        return ""
    if theirs[0].endswith(".py"):
        theirs = ["python", *theirs]
    return (
        f"{ambiguous} may belong to ropeteam or to the command. Write -- before the command:\n"
        f"  ropeteam {verb} {shlex.join([*ours, '--', *theirs])}"
    )


def _command_start(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    """Index of the first argument that is neither an option of ours nor the value of one; the number of
    arguments if there is none."""
    skip = False
    for number, argument in enumerate(arguments):
        if not skip and not argument.startswith("-"):
            return number
        skip = not skip and takes_value.get(argument, False)
    return len(arguments)
