"""Run campaigns of generated and bent input, or play one case again.

    python tools/fuzz.py                       all of them, one part in a hundred of each
    python tools/fuzz.py --percent 100         all of them, whole: hours
    python tools/fuzz.py pods yaml --seed 7 --limit 500 --minutes 10
    python tools/fuzz.py pods --replay BASE64  one case, as a find prints it
Each campaign (tests/fuzz/) has a process of its own, and two run at a time. Found is, beside what a
campaign finds itself, a process that ends or makes no progress for HANGS_SECONDS; and memory that grows after
the first tenth. Exit status 1: something was found. Seed, number of the case and its bytes are printed.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.campaign import Found, Played, case_of, play, replay
from tests.fuzz.campaigns import NAMES, named

HANGS_SECONDS = 120.0
AT_ONCE = 2
_spawning = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Settings:
    seed: int
    percent: float
    limit: int | None
    """Of each campaign; None: as many as `percent` of the whole."""
    seconds: float


@dataclass(frozen=True)
class Ended:
    name: str
    played: Played | None = None
    found: str = ""
    number: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=", ".join(NAMES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--percent", type=float, default=1.0, help="of a whole campaign")
    parser.add_argument("--limit", type=int, help="objects, frames, requests ... of each campaign, instead")
    parser.add_argument("--minutes", type=float, default=1e6, help="of each campaign, at most")
    parser.add_argument("--replay", metavar="BASE64", help="one case of one campaign")
    arguments = parser.parse_args()
    names = arguments.campaigns or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no campaign {unknown[0]}; there are {', '.join(NAMES)}")
    if arguments.replay:
        print(f"{names[0]}: {', '.join(replay(named(names[0]), base64.b64decode(arguments.replay)))}")
        return 0
    settings = Settings(arguments.seed, arguments.percent, arguments.limit, arguments.minutes * 60)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        held = [is_clean(each, settings) for each in pool.map(partial(run, settings=settings), names)]
    return 0 if all(held) else 1


def run(name: str, settings: Settings) -> Ended:
    """In a process of its own."""
    ours, theirs = _spawning.Pipe(duplex=False)
    number = _spawning.Value("q", 0)
    process = _spawning.Process(target=_child, args=(name, settings, number, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        last, since = -1, time.monotonic()
        while not ours.poll(1.0):
            if number.value != last:
                last, since = number.value, time.monotonic()
            elif time.monotonic() > since + HANGS_SECONDS:
                return Ended(name, found=f"no progress for {HANGS_SECONDS:.0f} s", number=last)
        return Ended(name, *ours.recv())
    except EOFError:
        process.join()
        return Ended(name, found=f"the process ended: {process.exitcode}", number=number.value)
    finally:
        process.kill()


def _child(name: str, settings: Settings, number: Any, pipe: Any) -> None:
    campaign = named(name)
    limit = settings.limit or max(1, int(campaign.whole * settings.percent / 100))
    try:
        pipe.send(
            (play(campaign, settings.seed, limit, settings.seconds, partial(setattr, number, "value")), "", 0)
        )
    except Found as found:
        cause = "".join(traceback.format_exception(found.__cause__)[-8:]) if found.__cause__ else ""
        pipe.send((None, f"{cause}{found}", found.number))


def is_clean(ended: Ended, settings: Settings) -> bool:
    """Print how a campaign ended. False: something was found."""
    name, played = ended.name, ended.played
    if played is None:
        case = base64.b64encode(case_of(named(name), settings.seed, ended.number)).decode()
        print(f"{ended.found}\n{name}: FOUND by seed {settings.seed} in case {ended.number}. Again:")
        print(f"  python tools/fuzz.py {name} --replay {case}", flush=True)
        return False
    ways = ", ".join(f"{count} {way}" for way, count in played.ended.most_common())
    memory = f"{played.early_mib:.0f} -> {played.late_mib:.0f} MiB{'' if played.is_flat else ': NOT FLAT'}"
    sizes = f"{played.parts} {named(name).part} in {played.cases} cases"
    print(
        f"{name}: {sizes}, seed {settings.seed}, {played.seconds:.0f} s: {ways}; memory {memory}", flush=True
    )
    return played.is_flat


if __name__ == "__main__":
    sys.exit(main())
