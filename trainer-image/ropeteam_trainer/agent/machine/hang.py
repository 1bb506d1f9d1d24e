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

from ropeteam_trainer.agent.machine.state import LocalWorld, ProgressSample, RankState
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import Beat
from ropeteam_trainer.contract.world import ProcessExit

FLOOR_SECONDS = 60.0
FACTOR = 10.0
"""Without spec.recovery.hangSeconds the limit is FACTOR times the median step, at least FLOOR_SECONDS."""
REQUEST_STACKS_AT = 0.8
"""Fraction of a rank's limit at which stacks are requested. Ranks that wait for a hung one made their last
step later: without this margin the hung rank would be killed before theirs are requested."""
MOST_SAMPLES = 17
"""Number of progress samples that are kept; step times are the gaps between them."""
_TIMED_PHASES = ("train", "data", "serve")
"""Phases in which the clock runs."""


def with_heartbeat(rank: RankState, heartbeat: Beat) -> RankState:
    """The rank after one read of its page: with a progress sample, if its step has changed. A new heartbeat
    discards the stacks of an earlier hang."""
    if heartbeat.monotonic_ns != rank.heartbeat.monotonic_ns:
        rank = replace(rank, stacks_requested=False, hang=None)
    if rank.progress_samples and heartbeat.step == rank.progress_samples[-1].step:
        return replace(rank, heartbeat=heartbeat)
    sample = ProgressSample(heartbeat.monotonic_ns / 1e9, heartbeat.step, heartbeat.samples)
    retained = (*rank.progress_samples, sample)[-MOST_SAMPLES:]
    return replace(rank, heartbeat=heartbeat, progress_samples=retained)


def median_step_seconds(rank: RankState) -> float | None:
    """Median time of a step over the kept progress samples. None: no step was made between any two."""
    gaps = [
        (b.at - a.at) / (b.step - a.step)
        for a, b in zip(rank.progress_samples, rank.progress_samples[1:], strict=False)
        if b.step > a.step
    ]
    return statistics.median(gaps) if gaps else None


def samples_per_second(rank: RankState) -> float:
    """Training samples per second, over the kept progress samples. 0: unknown."""
    if len(rank.progress_samples) < 2:
        return 0.0
    first, last = rank.progress_samples[0], rank.progress_samples[-1]
    return max(0.0, (last.samples - first.samples) / (last.at - first.at)) if last.at > first.at else 0.0


def step_limit_seconds(rank: RankState, timeouts: Timeouts) -> float:
    """Limit of the time of one step: spec.recovery.hangSeconds, or derived from the steps so far."""
    if timeouts.hang is not None:
        return float(timeouts.hang)
    return max(FLOOR_SECONDS, FACTOR * (median_step_seconds(rank) or 0.0))


def hang_exit(rank: RankState, timeouts: Timeouts, feature_level: int, now: float) -> ProcessExit | None:
    """Fields for the exit of a rank that is to be killed now, because it hangs. None: it does not hang.

    `code` and `signal` are not set: the real exit follows (`RankState.killed_for`).
    """
    seconds, limit = _stall_and_limit(rank, timeouts, feature_level, now)
    if seconds <= limit:
        return None
    location = f", in {rank.hang.where}" if rank.hang and rank.hang.where else ""
    if rank.heartbeat.steps_here == 0:
        message = f"no first step within spec.recovery.startSeconds ({timeouts.start} s){location}"
        return ProcessExit(None, None, late_start=True, fingerprint="start timeout", message=message)
    where = f"after step {rank.heartbeat.step}, in phase {rank.heartbeat.phase}"
    limits = f"limit {limit:.0f} s, spec.recovery.hangSeconds"
    message = f"no step for {seconds:.0f} s {where} ({limits}){location}"
    return ProcessExit(None, None, hung=True, fingerprint="hang", message=message)


def with_stacks_requested(
    world: LocalWorld, timeouts: Timeouts, feature_level: int, now: float
) -> LocalWorld:
    """The world with `stacks_requested` set for all its ranks, if one of them is near its limit and has no
    request yet. Else `world` itself, which the caller compares by identity."""

    def is_near(rank: RankState) -> bool:
        seconds, limit = _stall_and_limit(rank, timeouts, feature_level, now)
        return not rank.stacks_requested and seconds > REQUEST_STACKS_AT * limit

    if not any(map(is_near, world.ranks)):
        return world
    return replace(world, ranks=tuple(replace(rank, stacks_requested=True) for rank in world.ranks))


def _stall_and_limit(
    rank: RankState, timeouts: Timeouts, feature_level: int, now: float
) -> tuple[float, float]:
    """Seconds without a step, and their limit, which is infinite where no hang is detected.

    First match wins: a rank that is not started, exits or is paused has no limit; before its first step the
    limit is startSeconds, if the script is known to use the library; then the limit of one step holds.
    """
    if rank.exit or rank.killed_for or rank.started_at is None or rank.waits:
        return 0.0, math.inf
    heartbeat_at = rank.heartbeat.monotonic_ns / 1e9
    if rank.heartbeat.steps_here == 0:
        # A rank that restores sends heartbeats while bytes are read: each begins startSeconds again. One that
        # waits for a parameter server sends them without progress: these do not count.
        progress_at = heartbeat_at if rank.heartbeat.phase != "serve" else 0.0
        uses_library = rank.has_library or feature_level >= FeatureLevel.STEPS
        return now - max(rank.started_at, progress_at), timeouts.start if uses_library else math.inf
    is_timed = rank.heartbeat.phase in _TIMED_PHASES and not rank.heartbeat.reached_end
    return now - heartbeat_at, step_limit_seconds(rank, timeouts) if is_timed else math.inf
