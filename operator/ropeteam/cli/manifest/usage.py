"""Errors of a command line, each with the correct line. Pure, stdlib only: `--help` imports it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

MANIFESTS = (".yaml", ".yml", ".json")


def script_message(arguments: Sequence[str], workers: int | None) -> str:
    """Message for `train.py --lr 1`: a script that is no program."""
    script = shlex.join(arguments)
    return (
        f"{arguments[0]} is a script, not a manifest or a program. Write the program that runs it:\n"
        f"  ropeteam run -n {workers or 1} -- python {script}\n"
        f"  ropeteam run -n {workers or 2} -- torchrun {script}"
    )


def dashes_message(arguments: Sequence[str], takes_value: Mapping[str, bool], verb: str | None) -> str:
    """Message for `-n 2 torchrun train.py --lr 1`: whose is --lr? Empty: nothing is ambiguous.

    takes_value: our options, and whether the next argument is their value.
    """
    start = _first_of_command(arguments, takes_value)
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


def _first_of_command(arguments: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    skip = False
    for number, argument in enumerate(arguments):
        if not skip and not argument.startswith("-"):
            return number
        skip = not skip and takes_value.get(argument, False)
    return len(arguments)
