"""Hang detection: a pure clock over the heartbeat of a rank.

The clock runs while the script reports that it trains or waits for data, never while it evaluates, saves,
restores or is paused. A parameter server, and a worker that waits for one, make no steps of their own: they
send heartbeats as long as they live (phase "serve"), and the clock reads those. Limits: a script without our
library has no heartbeat and is never found hung, unless its framework sends one (huggingface.py). The limit
of a first step is startSeconds, and only if the script is known to use the library. Before a rank is found
hung, all ranks of its pod are requested to show their stacks, once per hang.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from ropeteam_trainer.agent.machine.state import ProgressSample, RankState, World
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import Beat
from ropeteam_trainer.contract.world import ProcessExit

FLOOR_SECONDS = 60.0
FACTOR = 10.0
REQUEST_STACKS_AT = 0.8
"""Fraction of a rank's limit. Ranks that wait for a hung one made their last step later; their stacks are
requested before it is killed."""
POINTS = 17
"""Number of progress samples that are kept; step times are the gaps between them."""
_TIMED_PHASES = ("train", "data", "serve")


def with_heartbeat(rank: RankState, heartbeat: Beat) -> RankState:
    """The rank after one read of its page."""
    if heartbeat.monotonic_ns != rank.heartbeat.monotonic_ns:
        rank = replace(rank, stacks_requested=False, hang=None)
    if rank.progress_samples and heartbeat.step == rank.progress_samples[-1].step:
        return replace(rank, heartbeat=heartbeat)
    point = ProgressSample(heartbeat.monotonic_ns / 1e9, heartbeat.step, heartbeat.samples)
    return replace(rank, heartbeat=heartbeat, progress_samples=(*rank.progress_samples, point)[-POINTS:])


def step_seconds(rank: RankState) -> float | None:
    """Median time of a step, from the progress samples."""
    gaps = [
        (b.at - a.at) / (b.step - a.step)
        for a, b in zip(rank.progress_samples, rank.progress_samples[1:], strict=False)
        if b.step > a.step
    ]
    return statistics.median(gaps) if gaps else None


def samples_per_second(rank: RankState) -> float:
    if len(rank.progress_samples) < 2:
        return 0.0
    first, last = rank.progress_samples[0], rank.progress_samples[-1]
    return max(0.0, (last.samples - first.samples) / (last.at - first.at)) if last.at > first.at else 0.0


def limit_seconds(rank: RankState, timeouts: Timeouts) -> float:
    """Limit of the time of one step."""
    if timeouts.hang is not None:
        return float(timeouts.hang)
    return max(FLOOR_SECONDS, FACTOR * (step_seconds(rank) or 0.0))


def hang_exit(rank: RankState, timeouts: Timeouts, feature_level: int, now: float) -> ProcessExit | None:
    """The cause that explains the exit of a rank that is now to be killed; None: no hang."""
    seconds, limit = _stall_and_limit(rank, timeouts, feature_level, now)
    if seconds <= limit:
        return None
    location = f", in {rank.hang.where}" if rank.hang and rank.hang.where else ""
    if rank.heartbeat.steps_here == 0:
        message = f"no first step within spec.recovery.startSeconds ({timeouts.start} s){location}"
        return ProcessExit(None, None, late_start=True, fingerprint="start timeout", message=message)
    where = f"after step {rank.heartbeat.step}, in phase {rank.heartbeat.phase}"
    message = f"no step for {seconds:.0f} s {where} (spec.recovery.hangSeconds){location}"
    return ProcessExit(None, None, hung=True, fingerprint="hang", message=message)


def with_stacks_requested(world: World, timeouts: Timeouts, feature_level: int, now: float) -> World:
    """The world with the stacks of all its ranks requested, as soon as one of them is near its limit."""

    def is_near(rank: RankState) -> bool:
        seconds, limit = _stall_and_limit(rank, timeouts, feature_level, now)
        return not rank.stacks_requested and seconds > REQUEST_STACKS_AT * limit

    if not any(map(is_near, world.ranks)):
        return world
    return replace(world, ranks=tuple(replace(rank, stacks_requested=True) for rank in world.ranks))


def _stall_and_limit(
    rank: RankState, timeouts: Timeouts, feature_level: int, now: float
) -> tuple[float, float]:
    """Seconds without a step, and their limit, which is infinite for a rank without hang detection."""
    if rank.exit or rank.killed_for or rank.started_at is None or rank.waits:
        return 0.0, math.inf
    heartbeat_at = rank.heartbeat.monotonic_ns / 1e9
    if rank.heartbeat.steps_here == 0:
        # While it restores, it sends heartbeats as long as bytes are read: a large checkpoint takes time.
        read_at = heartbeat_at if rank.heartbeat.phase != "serve" else 0.0
        uses_library = rank.has_library or feature_level >= FeatureLevel.STEPS
        return now - max(rank.started_at, read_at), timeouts.start if uses_library else math.inf
    is_timed = rank.heartbeat.phase in _TIMED_PHASES and not rank.heartbeat.reached_end
    return now - heartbeat_at, limit_seconds(rank, timeouts) if is_timed else math.inf
