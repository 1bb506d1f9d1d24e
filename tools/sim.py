"""Run campaigns of a simulator, or play one history again as a film strip.

    python tools/sim.py --seeds 200            200 campaigns; stops at the first broken promise, shrunk
    python tools/sim.py --seeds 50 --first 10  campaigns 10 .. 59
    python tools/sim.py --replay "seed=5,... | wait(0,9) kill_rank(0,0)"
    python tools/sim.py --shipped --seeds 200  200 histories of the shipped code (tests/shipped)
    python tools/sim.py --shipped --replay 57  the history of a seed, or a history
    python tools/sim.py --away --seeds 50      the operator away for an hour at every point of 50 histories
Exit status 1: a promise was broken. The film strip ends with the history, which is what --replay takes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tests.sim.quick  # noqa: F401 (before all that replaces)
from tests.shipped import away
from tests.shipped import histories as shipped
from tests.sim.histories import Campaign, History, play_history


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many campaigns")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first campaign")
    parser.add_argument("--histories", type=int, default=100, help="per campaign; about 20 rule steps each")
    parser.add_argument("--no-shrink", action="store_true", help="stop at the first broken promise as it is")
    parser.add_argument("--shipped", action="store_true", help="the shipped code; a seed is one history")
    parser.add_argument("--go-on", action="store_true", help="report every broken promise")
    parser.add_argument("--away", action="store_true", help="the shipped code while the operator is away")
    parser.add_argument("--replay", metavar="HISTORY", help="play this one history and print its film strip")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    try:
        if arguments.shipped and arguments.replay:
            print(shipped.play_history(_history(arguments.replay), film=True).film)
        elif arguments.away:
            return away_campaign(seeds)
        elif arguments.shipped:
            return shipped_campaign(seeds, not arguments.no_shrink, arguments.go_on)
        elif arguments.replay:
            print(play_history(History.parse(arguments.replay), film=True).film.text())
        else:
            return campaigns(seeds, arguments.histories, not arguments.no_shrink, arguments.go_on)
    except Exception as error:
        print("\n".join((*getattr(error, "__notes__", ()), f"{type(error).__name__}: {error}")))
        return 1
    return 0


def _history(text: str) -> shipped.History:
    return shipped.draw(int(text)) if text.isdigit() else shipped.History.parse(text)


def shipped_campaign(seeds: range, shrink: bool, go_on: bool) -> int:
    """0 if every history kept every promise."""
    began, total, broken = time.process_time(), Counter[str](), 0
    for seed in seeds:
        history = shipped.draw(seed)
        total["histories"] += 1
        try:
            played = shipped.play_history(history)
        except Exception as error:
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if not go_on:
                history = shipped.shortest(history) if shrink else history
                print(f"history: {history.show()}")
                shipped.play_history(history, film=True)
        else:
            total += played.counts
            total[f"ended {played.state}"] += 1
    seconds = time.process_time() - began
    print(f"{seconds:.0f} s; {', '.join(f'{count} {name}' for name, count in sorted(total.items()))}")
    return 1 if broken else 0


def away_campaign(seeds: range) -> int:
    """0 if no job failed by it, and none repeated more than an interval."""
    began, total, repeated = time.process_time(), Counter[str](), Counter[int | None]()
    for seed in seeds:
        for point in away.points(away.calm(seed)):
            total["points"] += 1
            try:
                played = away.play(point)
            except Exception as error:
                total["broken"] += 1
                print(f"seed {seed}, {point.moves} moves: {type(error).__name__}: {error}", flush=True)
                print(f"history: {point.history.show()}", flush=True)
            else:
                total["pods lost"] += played.lost
                repeated[played.repeated] += 1
        counts = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
        steps = ", ".join(f"{n} of {steps}" for steps, n in sorted(repeated.items(), key=str))
        seconds = time.process_time() - began
        print(f"seed {seed}: {seconds:.0f} s; {counts}; steps made again: {steps}", flush=True)
    return 1 if total["broken"] else 0


def campaigns(seeds: range, histories: int, shrink: bool, go_on: bool) -> int:
    began, total, broken = time.process_time(), Counter[str](), 0
    for number in seeds:
        campaign = Campaign(number, histories)
        try:
            campaign.run(shrink)
        except Exception as error:
            broken += 1
            if not go_on:
                raise
            print(f"seed {number}: {type(error).__name__}: {error}\n{error.__notes__[0].splitlines()[-1]}")
        finally:
            total += campaign.counts
            seconds = time.process_time() - began
            rate = total["rule steps"] / max(seconds, 1e-9)
            counts = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
            print(f"seed {number}: {seconds:.0f} s, {rate:.0f} rule steps/s; {counts}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
