"""Inside a pod: rank <-> agent over a Unix stream socket (JSON lines), and the heartbeat page (mmap).

A rank writes the page at every step: no system call, 2 us. The socket carries the rare messages. The agent
creates the page file before the rank starts; the rank maps it. One writer, one reader, two processes.
A heartbeat is a record of one cache line with a checksum, written twice, one copy after the other, so at most
one of them is being written. Promise: a heartbeat that is read is one that was written, in whatever order a
machine makes the words of a record visible (except for 1 torn record in 2^32), also after a writer was killed
inside a write. A reader of an older release reads the first copy as it always did. Limit: a writer of an
older release has one copy without checksum; it is read whole where stores become visible in order (x86), and
nearly always elsewhere.
The shim of another release (agent/script/rankmain.py) imports PAGE_SIZE, Beat, read_beat and write_beat from
the library of a job's image: these names never change.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

from ropeteam_trainer.contract.codec import stored_as
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

_LAYOUT = struct.Struct("<QQQQB7xdQ")
_UINT64 = struct.Struct("<Q")
_RECORD = _LAYOUT.size + _UINT64.size
_COPIES = (0, _RECORD)
_CHECKED = 1 << 63
"""Bit of a sequence number: a checksum follows. In the number itself, because all else may be visible
late."""
PAGE_SIZE = 4096
PHASES = ("", "train", "eval", "restore", "checkpoint", "data", "paused", "serve")
"""`Beat.phase`. The hang clock runs in "train" and "data" (and "" until the first heartbeat:
startSeconds), and in "serve", in which a parameter server, or a worker that waits for one, sends one every
second."""


@dataclass(frozen=True)
class Beat:
    """Heartbeat of a rank. `monotonic_ns` is CLOCK_MONOTONIC, the same for all processes of a node."""

    step: int = 0
    steps_here: int = 0
    monotonic_ns: int = 0
    phase: str = ""
    samples: float = 0.0
    """Samples so far in this process."""
    reached_end: bool = False


def write_beat(page: memoryview, heartbeat: Beat, sequence: int) -> None:
    """Write a heartbeat into both copies of the page. `sequence`: number of the call, from 1: a record whose
    two numbers differ is torn. One writer at a time. Raises ValueError for an unknown phase."""
    number = sequence % _CHECKED | _CHECKED
    phase = PHASES.index(heartbeat.phase) | heartbeat.reached_end << 7
    record = _LAYOUT.pack(
        number, heartbeat.step, heartbeat.steps_here, heartbeat.monotonic_ns, phase, heartbeat.samples, number
    )
    record += _UINT64.pack(zlib.crc32(record))
    for copy in reversed(_COPIES):
        page[copy : copy + _RECORD] = record  # one memmove; pack_into would fill the place with zeros first


def read_beat(page: memoryview) -> Beat | None:
    """Newest heartbeat. None: nothing is written yet, both copies are torn (read again), or they are no
    heartbeat: a script may write anywhere in its memory."""
    for copy in _COPIES:
        # The writer goes from begin to end, so a reader that starts at the end meets it, or nothing of it.
        (end,) = _UINT64.unpack_from(page, copy + _LAYOUT.size - _UINT64.size)
        record = bytes(page[copy : copy + _RECORD])
        (begin,) = _UINT64.unpack_from(page, copy)
        if heartbeat := decode_beat(end, record, begin):
            return heartbeat
    return None


def decode_beat(end: int, record: bytes, begin: int) -> Beat | None:
    """Heartbeat from three reads of one record, made in this order: its last number, all of it, its first
    number. None: the numbers differ or the checksum is wrong, so it was written meanwhile; or it is no
    heartbeat."""
    first, step, here, at, phase, samples, last = _LAYOUT.unpack_from(record)
    if not end == last == first == begin != 0:
        return None
    if begin & _CHECKED and _UINT64.pack(zlib.crc32(record[: _LAYOUT.size])) != record[_LAYOUT.size :]:
        return None
    if phase & 0x7F >= len(PHASES) or not math.isfinite(samples):
        return None
    return Beat(step, here, at, PHASES[phase & 0x7F], samples, bool(phase >> 7))


@dataclass(frozen=True)
class Served:
    """Counters of a parameter server's gradients."""

    applied: int = 0
    """Since this process began."""
    staleness: int = 0
    """Summed over them: steps of others between the pull of the weights and the push."""
    dropped: int | None = None
    """Gradients that steps did not wait for, since the job began. Known to the chief only."""


@dataclass(frozen=True)
class GroupFormed:
    """A default process group of torch.distributed, as one of its processes sees it."""

    size: int
    rank: int
    id: str = ""
    """Equal for all of its processes, and for no other group. "": its store gave no id."""
    who: str = ""
    """The program: `train.py`."""


@dataclass(frozen=True)
class FromRank:
    """One line from a rank, or from a process that it has started. None: the line does not carry the
    field."""

    hello_pid: int | None = None
    rank: int | None = None
    feature_level: int | None = stored_as("rung", None)
    total_steps: int | None = None
    loss: str | None = None
    restored: CheckpointRef | None = None
    """Checkpoint that this rank was restored from. Sent by rank 0 only."""
    shard_step: int | None = None
    shard_files: tuple[ShardFile, ...] = ()
    """With shard_step: these files are written and synced."""
    shard_world: WorldId | None = None
    """With shard_step: the world under whose name they are stored. None: the one that started the rank."""
    shard_whole: bool = False
    """With shard_step: they are the whole checkpoint."""
    acknowledges_pause: bool | None = None
    """True: it sends `pause_received`. A library of an earlier release does not."""
    pause_received: int | None = None
    """Last step of this rank when it received a pause: it waits at its next report()."""
    paused: int | None = None
    """Step after which the rank waits in report(), for `stop_at`."""
    drained: int | None = None
    """Step after which the rank has stopped; its shard was sent before (feature level 2 and up)."""
    served: Served | None = None
    regroups: bool | None = None
    """Whether this rank, if others are lost, can continue with those that are left (sync Exact)."""
    left: bool | None = None
    """True: its parameter servers do not wait for it any more; of a server: all its workers have left."""
    wants_secret: bool | None = None
    """True: answer with ToRank.secret, on this connection. The shim searches the library that a script will
    import for the name of this field, to know whether that library requests the secret (rankmain.py)."""
    joins: bool | None = None
    """True: it calls init_process_group, and may wait there for others."""
    group: GroupFormed | None = None
    error_type: str | None = None
    """With fingerprint and message: an uncaught exception is about to end the rank, or another process
    (`child`); `rank` says which, if known."""
    child: bool = False
    """The sender is not the rank itself: a launcher, or the script, has started it."""
    ended: bool | None = None
    """True: a child that had formed a group (`rank`) has exited by itself, without an exception."""
    launcher: bool = False
    """The exception describes the exit of another process, which the sender had started."""
    signal: int | None = None
    code: int | None = None
    """With `launcher`: signal or exit code of that process."""
    error_class: str = ""
    """Class of the exception, with the module: a script may have classes of the same names as ours."""
    fingerprint: str = ""
    message: str = ""


@dataclass(frozen=True)
class LiveWorld:
    """A world in which ranks of an earlier one live on, for these and for the ranks that it starts."""

    world_id: WorldId
    store_host: str
    store_port: int
    started: tuple[int, ...]
    """Ranks that it starts. All others that it has have the state of the training."""
    saves_as: WorldId
    """World under whose name checkpoints are stored: the one that started the leading rank."""
    restart_count: int = 0
    absent: tuple[int, ...] = ()
    """Ranks that it does not have. A later world starts them."""

    def begins_alone(self, rank: int) -> bool:
        """Whether this rank, which it has started, begins the training, and the others join it then."""
        return bool(self.absent) and rank not in self.started


@dataclass(frozen=True)
class ToRank:
    """One line to a rank."""

    pause: bool = False
    stop_at: int | None = None
    committed_step: int | None = None
    """The checkpoint of this step is durable and committed."""
    servers: tuple[str, ...] = ()
    """Current addresses of the parameter servers; () while those of this rank's own plan are valid."""
    secret: str = ""
    """Secret by which workers and parameter servers authenticate to each other. Sent on request only."""
    live_world: LiveWorld | None = None
    """Newest world that this rank lives on in. None: that in which it was started."""
    lost: tuple[int, ...] = ()
    """Ranks of that world that are lost. The others continue without them."""
    saves_as: WorldId | None = None
    """World under whose name checkpoints are stored while they are. None: that of `live_world`."""
