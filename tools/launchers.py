"""Record the options of launchers from their own parsers, in ropeteam_trainer/launchers/options.py.

    python -m tools.launchers [PYTHON...]            each has some; those that none has stay as they are
    python -m tools.launchers --check [PYTHON...]    exit status 1 if what they have differs from the file
    PYTHON tools/launchers.py --read                 what this one has, as JSON; needs nothing of ours
Without a PYTHON: this one, which has what uv.lock holds. Limit: of an option it is recorded whether it takes
a value, not which.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "trainer-image/ropeteam_trainer/launchers/options.py"
HEAD = '''\
"""The options of launchers, as their own parsers say. Written by tools/launchers.py (`make launchers`).

Flags that mean one option are joined by `|`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    version: str
    values: str
    """Options that take one value."""
    switches: str
    """Options that take none."""
    abbreviations: bool = True
    """Whether a beginning of a long option means it, where it can mean no other."""
    interspersed: bool = False
    """Whether options are read after the script, too."""


'''
Row = dict[str, Any]


def main(arguments: list[str]) -> int:
    is_check = arguments[:1] == ["--check"]
    found = {
        name: row
        for python in arguments[is_check:] or [sys.executable]
        for name, row in options_of(python).items()
    }
    rows = recorded()
    stale = [name for name, row in found.items() if rows.get(name) != row]
    if is_check:
        for name in stale:
            print(f"options.py differs from {found[name]['version']}: run `make launchers`")
        return 1 if stale else 0
    FILE.write_text(text(rows | found))
    return 0


def options_of(python: str) -> dict[str, Row]:
    done = subprocess.run([python, __file__, "--read"], stdout=subprocess.PIPE, check=True)
    answer: dict[str, Row] = json.loads(done.stdout.splitlines()[-1])
    return answer


def recorded() -> dict[str, Row]:
    from dataclasses import asdict

    from ropeteam_trainer.launchers.options import OPTIONS

    return {name: asdict(options) for name, options in OPTIONS.items()}


def text(rows: dict[str, Row]) -> str:
    lines = ["# fmt: off", "OPTIONS = {"]
    for name, row in sorted(rows.items()):
        lines.append(f'    "{name}": Options(')
        lines.append(f'        "{row["version"]}",')
        for field in ("values", "switches"):
            parts = textwrap.wrap(row[field], 96, break_long_words=False, break_on_hyphens=False) or [""]
            ends = [" "] * (len(parts) - 1) + [""]
            lines += [f'        "{part}{end}"' for part, end in zip(parts, ends, strict=True)]
            lines[-1] += ","
        lines += ["        abbreviations=False,"] * (not row["abbreviations"])
        lines += ["        interspersed=True,"] * row["interspersed"] + ["    ),"]
    return HEAD + "\n".join([*lines, "}", ""])


# ---- in the interpreter that has them


def torchrun() -> Row:
    return of_argparse("torch", importlib.import_module("torch.distributed.run").get_args_parser())


def accelerate() -> Row:
    return of_argparse(
        "accelerate", importlib.import_module("accelerate.commands.launch").launch_command_parser()
    )


def deepspeed() -> Row:
    runner = importlib.import_module("deepspeed.launcher.runner")
    return of_argparse("deepspeed", taken(lambda: runner.parse_args([])))


def composer() -> Row:
    return of_argparse("mosaicml", importlib.import_module("composer.cli.launcher")._get_parser())


def fabric() -> Row:
    command = importlib.import_module("lightning.fabric.cli")._main.commands["run"]
    options = [each for each in command.params if each.param_type_name == "option"]
    flags = [(each.opts, 0 if each.is_flag else None) for each in options]
    return row("lightning", flags, abbreviations=False) | {"interspersed": command.allow_interspersed_args}


def uv() -> Row:
    program = shutil.which("uv", path=str(Path(sys.executable).parent))
    if program is None:
        raise ImportError("uv")
    help_text = subprocess.run([program, "run", "--help"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ +(?:(-\w), )?(--[\w-]+)(\.\.\.)?( <\w+>)?", help_text, re.MULTILINE)
    flags = [
        ([each for each in (short, long) if each], None if value else 0) for short, long, _, value in found
    ]
    return row("uv", flags, abbreviations=False)


READERS: dict[str, Callable[[], Row]] = {
    "accelerate": accelerate,
    "composer": composer,
    "deepspeed": deepspeed,
    "fabric": fabric,
    "torchrun": torchrun,
    "uv": uv,
}


def read() -> dict[str, Row]:
    rows = {}
    for name, reader in READERS.items():
        try:
            rows[name] = reader()
        except ImportError:
            continue
    return rows


def taken(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """The parser that a function makes and uses at once."""
    found = []
    real = argparse.ArgumentParser.parse_args

    def take(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        found.append(parser)

    argparse.ArgumentParser.parse_args = take  # type: ignore[assignment,method-assign]
    try:
        parse()
    finally:
        argparse.ArgumentParser.parse_args = real  # type: ignore[method-assign]
    return found[0]


def of_argparse(package: str, parser: argparse.ArgumentParser) -> Row:
    options = [action for action in parser._actions if action.option_strings]
    return row(package, [([*each.option_strings], each.nargs) for each in options], parser.allow_abbrev)


def row(package: str, flags: list[tuple[list[str], Any]], abbreviations: bool) -> Row:
    """`flags`: those of an option, and 0 if it takes no value, None if it takes one."""
    own = [(names, count) for names, count in flags if "--help" not in names]
    assert {count for _, count in own} <= {0, None}, own
    lists = {count: " ".join("|".join(names) for names, each in own if each == count) for count in (0, None)}
    version = f"{package} {metadata.version(package).partition('+')[0]}"
    lists_of_flags = {"values": lists[None], "switches": lists[0]}
    return {"version": version, **lists_of_flags, "abbreviations": abbreviations, "interspersed": False}


if __name__ == "__main__":
    if sys.argv[1:] == ["--read"]:
        print(json.dumps(read()))
    else:
        sys.exit(main(sys.argv[1:]))
