"""Run as a program in place of the agent or the coordinator: writes down which files their loop touches.

    python audit.py RECORD FOLDER MODULE [argument ...]

Each audit event (PEP 578) of the thread of a running loop that names a path below FOLDER is a line of RECORD.
What a loop touches there it waits for: a volume can hang for minutes.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from typing import Any


def main(record: str, folder: str, module: str, *arguments: str) -> None:
    out = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def look(event: str, values: tuple[Any, ...]) -> None:
        paths = [os.fsdecode(each) for each in values if isinstance(each, (str, bytes, os.PathLike))]
        if asyncio._get_running_loop() is not None and any(path.startswith(folder) for path in paths):
            os.write(out, f"{event} {paths}\n".encode())

    sys.addaudithook(look)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
