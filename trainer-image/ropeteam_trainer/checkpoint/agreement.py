"""Agreement of all ranks on the checkpoint to restore.

    rank 0      chooses by manifests (restore.py)
    all ranks   verify its files, each its part (restore.shares), on several threads; where status does not
                name it, so that any process may have written its manifest, they also parse the files
    any rank    finds a file that is proved bad -> all fall back together, to the next choice
                cannot decide                   -> all wait and try again, for RETRY_SECONDS

Promise: no time limit is too short for a large checkpoint: ranks synchronize every two seconds, and
heartbeats are sent as long as bytes are read on any rank. A file that could not be read is never called bad.
Limits: a file is read by one thread; a rank whose read never returns reads no bytes, and
recovery.startSeconds ends its world.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder, parse_ref, rank_file
from ropeteam_trainer.checkpoint.decisions.restore import (
    CheckpointNotFound,
    CheckpointUnavailable,
    Choice,
    Inspection,
    UnavailableElsewhere,
    UnavailableEverywhere,
    choose,
    shares,
)
from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile
from ropeteam_trainer.rank.exchange import CONTRACT, Vocabulary
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.system.folders import Location, UnexpectedFile
from ropeteam_trainer.system.notice import notice

T = TypeVar("T")
RETRY_SECONDS = 300.0
"""Time for which a volume may be unavailable before another node is tried."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
SYNCHRONIZE_SECONDS = 2.0
THREADS = 4
CHOSEN: Vocabulary = {
    "ropeteam_trainer.checkpoint.restore.Choice": Choice,
    "ropeteam_trainer.checkpoint.restore.CheckpointNotFound": CheckpointNotFound,
    "ropeteam_trainer.checkpoint.manifest.Manifest": Manifest,
    **CONTRACT,
}
"""Classes of which rank 0's choice consists."""


class Verification(NamedTuple):
    """State of one rank's verification, gathered periodically. Ranks of other releases know these fields."""

    done: bool
    read: int
    proved: str
    unsure: str


VERIFICATION: Vocabulary = {"ropeteam_trainer.checkpoint.together._Said": Verification}


class Agreement:
    """Choice and verification on all ranks. `heartbeat` is called when any rank has made progress."""

    def __init__(
        self, plan: RankPlan, world: World, directory: Location, heartbeat: Callable[[], None]
    ) -> None:
        self._plan, self._world, self._directory, self._heartbeat = plan, world, directory, heartbeat
        self._vouched = plan.lineage_known and any(parse_ref(text).digest for text in plan.restore)
        """Status names a hash, and each manifest names its parent's: the job has saved these checkpoints."""
        self._keys = self._named_keys() + seals.read(plan.keys)
        self._bad: dict[str, str] = {}
        """Folders of checkpoints with a file that is proved bad, and the fault."""
        self._waited_from: float | None = None
        self._pause = FIRST_PAUSE

    def _named_keys(self) -> seals.Keys:
        """Keys of the Secret that the job names. It may be damaged while the job runs, which must not end a
        job that does not need them."""
        try:
            return seals.read_named(self._plan.checkpoint.signing) if self._plan.checkpoint else ()
        except (OSError, ValueError) as error:
            if self._vouched:
                return ()
            raise CheckpointUnavailable(str(error)) from None

    def choose(self) -> Choice:
        """Choice, the same on all ranks. Raises CheckpointNotFound or CheckpointUnavailable, on all ranks."""
        while True:
            choice, error = self._world.from_rank_0(self._chosen, CHOSEN)
            if choice is None:
                self._wait(error if self._world.rank == 0 else self._own_error())
            elif choice.manifest is None or choice.ref is None:
                return choice
            elif fault := self._verify(choice.manifest, choice.ref):
                self._bad[folder(choice.ref)] = fault
            else:
                return choice

    def _chosen(self) -> tuple[Choice | None, str]:
        """Choice of this rank alone, and the problem that prevents one."""
        try:
            found = () if self._plan.lineage_known else reader.find(self._directory)
            return choose(self._plan, found, self._inspect), ""
        except CheckpointUnavailable as error:
            return None, str(error)
        except OSError as error:
            return None, f"{self._directory} cannot be listed: {error}"

    def _own_error(self) -> str:
        try:
            return self._chosen()[1]
        except ValueError:
            return ""  # this rank can read

    def _inspect(self, ref: CheckpointRef) -> Inspection:
        seen = reader.inspect(self._directory, ref, self._keys)
        bad = self._bad.get(folder(seen.ref or ref))
        return replace(seen, fault=bad, ref=None) if bad and not seen.fault else seen

    def _verify(self, manifest: Manifest, ref: CheckpointRef) -> str:
        """Fault that proves this checkpoint bad; "": it is whole."""
        self._waited_from, self._pause = None, FIRST_PAUSE  # the problem that prevented the choice is over
        left = shares(manifest, self._world.size)[self._world.rank]
        inspect = partial(self._inspect_file, manifest, ref)
        while True:
            with _Reading(inspect, left) as reading:
                states = self._gather_states(reading)
            if proved := next((f"{one.proved} (rank {n})" for n, one in enumerate(states) if one.proved), ""):
                return proved
            if not any(one.unsure for one in states):
                return ""
            left = reading.left
            self._wait(states[self._world.rank].unsure)

    def _inspect_file(
        self, manifest: Manifest, ref: CheckpointRef, file: ShardFile, read: Callable[[int], None]
    ) -> Inspection:
        seen = reader.check(self._directory, ref, file, read)
        ours = map(rank_file, range(self._world.size))
        of_no_rank = file.name.startswith("rank-") and file.name not in ours
        if seen.fault or self._vouched or of_no_rank:  # no rank will load such a file, and it may be large
            return seen
        return reader.validate(self._directory, ref, manifest.files, file, read)

    def _gather_states(self, reading: _Reading) -> list[Verification]:
        """Gather states until all ranks have read their part, or one has found a fault."""
        seconds, total = 0.01, 0
        while True:
            states = self._world.gather(reading.after(seconds), VERIFICATION)
            if (read := sum(one.read for one in states)) > total:
                total = read
                self._heartbeat()
            if all(one.done for one in states) or any(one.proved for one in states):
                return states
            seconds = min(2 * seconds, SYNCHRONIZE_SECONDS)

    def _wait(self, error: str) -> None:
        """Wait on all ranks, if any of them has a problem. Raises CheckpointUnavailable when it has
        lasted."""
        now = time.monotonic()
        self._waited_from = now if self._waited_from is None else self._waited_from
        over = self._world.number_of_rank_0(int(now - self._waited_from >= RETRY_SECONDS))
        errors = self._world.gather(error)
        hindered = [rank for rank, text in enumerate(errors) if text]
        if not hindered:
            return  # the problem is over
        text = f"{errors[hindered[0]]} (seen by {len(hindered)} of {len(errors)} ranks)"
        if over:
            raise self._unavailable(bool(error), len(hindered))(
                f"{text} for {RETRY_SECONDS:.0f} s. {_fix(self._directory)}"
            )
        if self._world.rank == 0:
            notice(f"{text}: trying again in {self._pause:.0f} s")
        self._heartbeat()
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _unavailable(self, here: bool, hindered: int) -> type[CheckpointUnavailable]:
        in_one_pod = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == self._world.size
        if hindered == self._world.size and not in_one_pod:
            return UnavailableEverywhere
        return CheckpointUnavailable if here else UnavailableElsewhere


def with_retries(action: Callable[[], T], directory: Location, heartbeat: Callable[[], None]) -> T:
    """Result of `action()`, retried while the volume is unavailable. Raises CheckpointUnavailable after
    RETRY_SECONDS, and UnexpectedFile at once: that is no problem of the volume."""
    began, pause = time.monotonic(), FIRST_PAUSE
    while True:
        try:
            return action()
        except UnexpectedFile:
            raise
        except OSError as error:
            if time.monotonic() - began >= RETRY_SECONDS:
                text = f"{error} for {RETRY_SECONDS:.0f} s. {_fix(directory)}"
                raise CheckpointUnavailable(text) from error
            notice(f"{error}: trying again in {pause:.0f} s")
        heartbeat()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _fix(directory: Location) -> str:
    return f"Check the volume of {directory} and its mount; to skip a checkpoint, delete its folder"


class _Reading:
    """Verification of one rank's part, in the background."""

    def __init__(
        self, inspect: Callable[[ShardFile, Callable[[int], None]], Inspection], files: list[ShardFile]
    ) -> None:
        self._read, self._lock = 0, threading.Lock()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, "ropeteam-verify")
        self._files = {self._pool.submit(inspect, file, self._count): file for file in files}

    def after(self, seconds: float) -> Verification:
        """State after `seconds`, or as soon as all files are verified."""
        done, running = wait(self._files, seconds)
        inspections = [future.result() for future in done]
        proved = (each.fault for each in inspections if each.fault and not each.unsure)
        unsure = (each.fault for each in inspections if each.unsure)
        return Verification(not running, self._read, next(proved, ""), next(unsure, ""))

    @property
    def left(self) -> list[ShardFile]:
        """Files that could not be verified. Valid once all is done."""
        return [file for future, file in self._files.items() if future.result().fault]

    def _count(self, size: int) -> None:
        if self._stop.is_set():
            raise InterruptedError("another rank has found a fault")
        with self._lock:
            self._read += size

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
