"""Is a rank stuck? A pure clock over its heartbeat.

It runs while the script says that it trains or waits for data, never while it evaluates, saves, restores or
is paused. A parameter server, and a worker that waits for one, make no steps of their own: their hearts beat
as long as they live (phase "serve"), and the clock looks at that. Limits: a script without our library has no
heartbeat and is never judged, unless its framework has one for it (huggingface.py). A first step that does
not come is judged by startSeconds, and only if the script is known to use the library. Before a rank is
judged, all ranks of its pod are asked for their stacks, once per standstill.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from ropeteam_trainer.agent.machine.state import ProgressSample, RankState, World
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.local import Beat
from ropeteam_trainer.contract.world import ProcessExit

FLOOR_SECONDS = 60.0
FACTOR = 10.0
ASK_AT = 0.8
"""Of a rank's limit. Those that wait for a hung one made their last step later, and are asked before it is
killed."""
POINTS = 17
"""How many points of progress are remembered; step times are the gaps between them."""
_CLOCKED = ("train", "data", "serve")


def with_beat(rank: RankState, beat: Beat) -> RankState:
    """The rank after one look at its page."""
    if beat.monotonic_ns != rank.beat.monotonic_ns:
        rank = replace(rank, asked=False, stands=None)
    if rank.paces and beat.step == rank.paces[-1].step:
        return replace(rank, beat=beat)
    point = ProgressSample(beat.monotonic_ns / 1e9, beat.step, beat.samples)
    return replace(rank, beat=beat, paces=(*rank.paces, point)[-POINTS:])


def step_seconds(rank: RankState) -> float | None:
    """Median time of a step, from what was seen of it."""
    gaps = [
        (b.at - a.at) / (b.step - a.step)
        for a, b in zip(rank.paces, rank.paces[1:], strict=False)
        if b.step > a.step
    ]
    return statistics.median(gaps) if gaps else None


def samples_per_second(rank: RankState) -> float:
    if len(rank.paces) < 2:
        return 0.0
    first, last = rank.paces[0], rank.paces[-1]
    return max(0.0, (last.samples - first.samples) / (last.at - first.at)) if last.at > first.at else 0.0


def limit_seconds(rank: RankState, timeouts: Timeouts) -> float:
    """How long a step may take."""
    if timeouts.hang is not None:
        return float(timeouts.hang)
    return max(FLOOR_SECONDS, FACTOR * (step_seconds(rank) or 0.0))


def verdict(rank: RankState, timeouts: Timeouts, rung: int, now: float) -> ProcessExit | None:
    """None: fine. Else how the exit of the rank that is now to be killed will be explained."""
    seconds, limit = _standing(rank, timeouts, rung, now)
    if seconds <= limit:
        return None
    here = f", in {rank.stands.where}" if rank.stands and rank.stands.where else ""
    if rank.beat.steps_here == 0:
        message = f"no first step within recovery.startSeconds ({timeouts.start} s){here}"
        return ProcessExit(None, None, late_start=True, fingerprint="start timeout", message=message)
    where = f"after step {rank.beat.step}, in phase {rank.beat.phase}"
    message = f"no step for {seconds:.0f} s {where} (recovery.hangSeconds){here}"
    return ProcessExit(None, None, hung=True, fingerprint="hang", message=message)


def asked(world: World, timeouts: Timeouts, rung: int, now: float) -> World:
    """With all of its ranks asked for their stacks, as soon as one of them is near its limit."""

    def is_near(rank: RankState) -> bool:
        seconds, limit = _standing(rank, timeouts, rung, now)
        return not rank.asked and seconds > ASK_AT * limit

    if not any(map(is_near, world.ranks)):
        return world
    return replace(world, ranks=tuple(replace(rank, asked=True) for rank in world.ranks))


def _standing(rank: RankState, timeouts: Timeouts, rung: int, now: float) -> tuple[float, float]:
    """For how long it has made no step, and for how long it may. A rank that is not judged may for ever."""
    if rank.exit or rank.killed_for or rank.started_at is None or rank.waits:
        return 0.0, math.inf
    beat_at = rank.beat.monotonic_ns / 1e9
    if rank.beat.steps_here == 0:
        # While it restores, its heart beats as long as bytes are read: a large checkpoint takes its time.
        at_work = beat_at if rank.beat.phase != "serve" else 0.0
        uses_library = rank.has_library or rung >= 1
        return now - max(rank.started_at, at_work), timeouts.start if uses_library else math.inf
    is_clocked = rank.beat.phase in _CLOCKED and not rank.beat.reached_end
    return now - beat_at, limit_seconds(rank, timeouts) if is_clocked else math.inf
