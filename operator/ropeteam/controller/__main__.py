"""`python -m ropeteam.controller --kubeconfig FILE`: the operator as a process.

Exit status: 0 after SIGTERM or SIGINT; 1, with one sentence on stderr, when it cannot start or may not
continue.
"""

from __future__ import annotations

import gc
import logging
import os
import sys

import aiohttp
import uvloop

from ropeteam.controller import assembly
from ropeteam.controller.output import Output
from ropeteam.controller.settings import read
from ropeteam.errors import CannotRun, RequestError

GC_THRESHOLDS = (50_000, 20, 100)
"""Thresholds of the garbage collector: objects of a reconcile are mostly freed without it, and the search for
cycles among all objects of the informers took a twelfth of a processor while a thousand jobs start."""


def main() -> int:
    """Run the operator; returns the exit status. The order matters: the log is set up before anything can
    write to it. With --wait-for-stdin all imports are done by now, and nothing has started. Raises SystemExit
    (2) for invalid flags.
    """
    settings = read(sys.argv[1:], os.environ)
    output = Output(sys.stderr.fileno())
    logging.basicConfig(level=settings.log_level, handlers=[output])
    gc.set_threshold(*GC_THRESHOLDS)
    if settings.wait_for_stdin and not sys.stdin.readline():
        return 0  # the process that started us is gone
    try:
        uvloop.run(assembly.run(settings))
    except (CannotRun, RequestError, aiohttp.ClientError, OSError) as error:
        output.write_line(f"ropeteam operator: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
