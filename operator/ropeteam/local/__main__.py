"""`python -m ropeteam.local [--home DIR]`: a cluster in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from ropeteam.local.cluster import LocalClusterError, default_home, run_until_cancelled


async def main(home: Path) -> None:
    """Run a cluster until SIGTERM or SIGINT. A second signal is ignored: it would interrupt the stop, which
    takes seconds at most. Raises LocalClusterError if the cluster cannot start."""
    task = asyncio.ensure_future(run_until_cancelled(home))
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, lambda: task.cancelling() or task.cancel())
    with suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m ropeteam.local", description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=default_home(), help="state folder (default: %(default)s)"
    )
    parser.add_argument(
        "--wait-for-stdin",
        action="store_true",
        help="import everything, then start at the first line on stdin, or exit when stdin ends",
    )
    given = parser.parse_args()
    if given.wait_for_stdin and not sys.stdin.readline():
        sys.exit()  # the parent process is gone
    try:
        asyncio.run(main(given.home.absolute()))
    except LocalClusterError as error:
        sys.exit(f"error: {error}")
