"""Is the heartbeat page ever read torn? A writer and a reader as fast as they can, on the same page.

    python tools/torn.py                                the campaign: 10^9 looks of a twin in C, 10^7 of ours
    python tools/torn.py --twin 10000000 --ours 100000  1 % of it, as in the tests
Exit status 1: a heartbeat was read that no writer wrote.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ropeteam_trainer.agent.processes.page import Page
from ropeteam_trainer.contract.local import PHASES, Beat
from ropeteam_trainer.rank.agentlink import HeartbeatWriter

ROOT = Path(__file__).resolve().parent.parent
TWIN = ROOT / "tests" / "page" / "twin.c"


class Found(NamedTuple):
    heartbeats: int
    """Looks that gave a heartbeat."""
    torn: int
    """Copies (twin) or looks (ours) that gave none."""
    wrong: int
    """Heartbeats that no writer wrote."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--twin", type=int, default=10**9, help="looks of the twin")
    parser.add_argument("--ours", type=int, default=10**7, help="looks of the shipped reader")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        found = {"ours": ours(folder, arguments.ours)}
        if program is None:
            print("no C compiler (cc): the twin did NOT run")
        else:
            found["twin"] = twin(program, arguments.twin)
    for who, counts in found.items():
        print(who, counts)
    return int(any(counts.wrong for counts in found.values()))


def build(folder: Path) -> Path | None:
    """None: there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = folder / "twin"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", str(program), str(TWIN)], check=True)
    return program


def twin(program: Path, looks: int) -> Found:
    done = subprocess.run([program, str(looks)], capture_output=True, text=True, check=True)
    return Found(*map(int, done.stdout.split()))


def ours(folder: Path, looks: int) -> Found:
    """The shipped reader beside the shipped writer, in a process of its own."""
    page = Page(folder / "page")
    writer = os.fork()
    if writer == 0:
        write_for_ever(page.path)
    heartbeats = torn = wrong = 0
    try:
        while page.read() is None:
            pass
        for _ in range(looks):
            heartbeat = page.read()
            heartbeats, torn = heartbeats + (heartbeat is not None), torn + (heartbeat is None)
            wrong += heartbeat is not None and not is_whole(heartbeat)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        page.close()
    return Found(heartbeats, torn, wrong)


def write_for_ever(path: Path) -> None:
    heart = HeartbeatWriter(str(path))
    while True:
        heart.step += 1
        heart.steps_here, heart.samples, heart.phase = (
            heart.step ^ 0x5555,
            heart.step * 8.0,
            phase(heart.step),
        )
        heart.write()


def is_whole(heartbeat: Beat) -> bool:
    """All fields follow from the step; the clock cannot."""
    fields = (heartbeat.steps_here, heartbeat.samples, heartbeat.phase)
    return heartbeat.monotonic_ns > 0 and fields == (
        heartbeat.step ^ 0x5555,
        heartbeat.step * 8.0,
        phase(heartbeat.step),
    )


def phase(step: int) -> str:
    return PHASES[1 + step % 6]


if __name__ == "__main__":
    sys.exit(main())
