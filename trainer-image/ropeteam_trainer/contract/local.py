"""Inside a pod: rank <-> agent over a Unix stream socket (JSON lines), and the heartbeat page (mmap).

The page is what a rank writes at every step: no system call, 0.1 us. The socket carries what is rare. The
agent creates the page file before the rank starts; the rank maps it. One writer, one reader: a torn read
shows as `begin != end` and is read again.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from ropeteam_trainer.contract.world import CheckpointRef, ShardFile

_LAYOUT = struct.Struct("<QQQQB7xdQ")
PAGE_SIZE = 4096
PHASES = ("", "train", "eval", "restore", "checkpoint", "data", "paused", "serve")
"""`Beat.phase`. The hang clock runs in "train" and "data" (and "" until the first beat: startSeconds), and in
"serve", in which a parameter server, or a worker that waits for one, beats every second."""


@dataclass(frozen=True)
class Beat:
    """One look at a rank. `monotonic_ns` is CLOCK_MONOTONIC, the same for all processes of a node."""

    step: int = 0
    steps_here: int = 0
    monotonic_ns: int = 0
    phase: str = ""
    samples: float = 0.0
    """Samples so far in this process."""
    reached_end: bool = False


def write_beat(page: memoryview, beat: Beat, sequence: int) -> None:
    """`sequence` must grow by one with each call."""
    end = 1 if beat.reached_end else 0
    phase = PHASES.index(beat.phase) | end << 7
    struct.pack_into("<Q", page, 0, sequence)
    _LAYOUT.pack_into(
        page, 0, sequence, beat.step, beat.steps_here, beat.monotonic_ns, phase, beat.samples, sequence
    )


def read_beat(page: memoryview) -> Beat | None:
    """None: nothing written yet, torn (look again), or no beat: a script may write anywhere in its memory."""
    begin, step, here, at, phase, samples, end = _LAYOUT.unpack_from(page, 0)
    if begin != end or begin == 0 or phase & 0x7F >= len(PHASES) or not math.isfinite(samples):
        return None
    return Beat(step, here, at, PHASES[phase & 0x7F], samples, bool(phase >> 7))


@dataclass(frozen=True)
class Served:
    """What a parameter server has done with gradients."""

    applied: int = 0
    """Since this process began."""
    staleness: int = 0
    """Summed over them: steps of others between the pull of the weights and the push."""
    dropped: int | None = None
    """Gradients that steps went on without, since the job began. Known to the chief alone."""


@dataclass(frozen=True)
class FromRank:
    """One line from a rank. Fields that say nothing are left out (None)."""

    hello_pid: int | None = None
    rank: int | None = None
    rung: int | None = None
    total_steps: int | None = None
    loss: str | None = None
    restored: CheckpointRef | None = None
    """What this rank went on from. Sent by rank 0 only."""
    shard_step: int | None = None
    shard_files: tuple[ShardFile, ...] = ()
    """With shard_step: these files are written and synced."""
    paused: int | None = None
    """Waits in report() after this step, for `stop_at`."""
    drained: int | None = None
    """Stopped after this step; its shard was sent before (rung >= 2)."""
    served: Served | None = None
    error_type: str | None = None
    """With fingerprint and message: an uncaught exception is about to end the rank."""
    fingerprint: str = ""
    message: str = ""


@dataclass(frozen=True)
class ToRank:
    """One line to a rank."""

    pause: bool = False
    stop_at: int | None = None
    committed_step: int | None = None
    """The checkpoint of this step is durable and committed."""
    servers: tuple[str, ...] = ()
    """Where the parameter servers are now; () while this rank's own plan holds."""
