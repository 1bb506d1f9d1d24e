"""Parser for a launcher's command line: argparse, as in the launcher, with the launcher's recorded options.

Abbreviations, `--flag=value`, `-x value`, grouped letters and `--` are left to argparse. Values are not
validated here. fabric parses with click, which accepts its options after the script too.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ropeteam_trainer.contract.errors import UserError
from ropeteam_trainer.launchers.options import Options

_PROGRAM, _ARGUMENTS = "<program>", "<arguments>"
"""Destinations that no option has."""


class LaunchError(UserError):
    """A command that cannot work; the message names the part and the fix."""


@dataclass(frozen=True)
class Parsed:
    given: Mapping[str, str]
    """Options by their first long name, with dashes: the value, or "" of a switch."""
    rest: tuple[str, ...]
    """The script, module or program, and its arguments."""
    at: int
    """Index in the parsed arguments where they begin. Unknown for fabric, which mixes them, so 0."""

    def number(self, option: str) -> int | None:
        """Value of an option as a number. None: not given. Raises LaunchError if it is not a number."""
        value = self.given.get(option)
        if value is None:
            return None
        if not value.isdecimal():
            raise LaunchError(f"--{option} {value} is not a number; write one, or leave the flag out")
        return int(value)


class _Help(argparse.Action):
    """Action of -h: a refusal."""

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise LaunchError(f"{'/'.join(self.option_strings)} shows help and trains nothing; leave it out")


class _Parser(argparse.ArgumentParser):
    """argparse that raises LaunchError where it would exit."""

    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{self.prog}: {message}")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Options that an abbreviation matches. argparse checks the script's arguments too, and older
        releases refuse those that match several of our options: here they match none."""
        found = super()._get_option_tuples(option_string)
        return found if len(found) == 1 else []


def parse(launcher: str, options: Options, args: Sequence[str]) -> Parsed:
    """Parse the arguments after a launcher's name. Raises LaunchError, with argparse's message, or the
    unknown flag."""
    found, unknown = _parser(launcher, options).parse_known_args(args)
    given = vars(found)
    program, arguments = given.pop(_PROGRAM), given.pop(_ARGUMENTS, [])
    if unknown and not options.interspersed:
        raise LaunchError(
            f"{launcher} flag {unknown[0]} is unknown ({options.version}); leave it out,"
            " or set spec.launcher to PerPod to start the command as it is"
        )
    texts = {name: value if isinstance(value, str) else "" for name, value in given.items()}
    at = 0 if options.interspersed else len(args) - len(arguments) - 1  # index of the program
    if args[at] == "--" and program != "--":
        at -= 1  # argparse drops one after the script
    return Parsed(texts, (program, *arguments), at)


@functools.cache
def _parser(launcher: str, options: Options) -> _Parser:
    """Parser with these options; options that are not given are in no result. Built once."""
    parser = _Parser(
        prog=launcher, add_help=False, allow_abbrev=options.abbreviations, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("-h", "--help", action=_Help, nargs=0)
    for word in options.values.split():
        parser.add_argument(*word.split("|"), dest=_long_name(word))
    for word in options.switches.split():
        parser.add_argument(*word.split("|"), dest=_long_name(word), action="store_true")
    parser.add_argument(_PROGRAM, metavar="script")
    if not options.interspersed:
        parser.add_argument(_ARGUMENTS, nargs=argparse.REMAINDER)
    return parser


def _long_name(flags: str) -> str:
    """Name of an option: its first long flag, with dashes. `flags`: as in Options, `-m|--module`."""
    long = next(flag for flag in flags.split("|") if flag.startswith("--"))
    return long[2:].replace("_", "-")
