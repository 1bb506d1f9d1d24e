"""Slips of a command line, each answered with what to write. Pure, stdlib only: `--help` imports it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

MANIFESTS = (".yaml", ".yml", ".json")


def of_script(words: Sequence[str], workers: int | None) -> str:
    """`train.py --lr 1`: a script that is no program."""
    script = shlex.join(words)
    return (
        f"{words[0]} is a script, not a manifest or a program. Write what runs it:\n"
        f"  ropeteam run -n {workers or 1} -- python {script}\n"
        f"  ropeteam run -n {workers or 2} -- torchrun {script}"
    )


def of_dashes(words: Sequence[str], takes_value: Mapping[str, bool], verb: str | None) -> str:
    """`-n 2 torchrun train.py --lr 1`: whose is --lr? Empty: nothing is unclear.

    takes_value: our options, and whether the next word is their value.
    """
    start = _first_of_command(words, takes_value)
    ours, theirs = words[:start], words[start:]
    if not theirs or "--" in words or theirs[0].endswith(MANIFESTS):
        return ""
    unclear = next((word for word in theirs if word.startswith("-")), None)
    if unclear is None:
        return ""
    if theirs[0].endswith(".py"):
        theirs = ["python", *theirs]
    return (
        f"whose is {unclear}, ropeteam's or the command's? Write -- before the command:\n"
        f"  ropeteam {verb} {shlex.join([*ours, '--', *theirs])}"
    )


def _first_of_command(words: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    skip = False
    for number, word in enumerate(words):
        if not skip and not word.startswith("-"):
            return number
        skip = not skip and takes_value.get(word, False)
    return len(words)
