"""Agreement of all ranks on the checkpoint to restore.

    rank 0      chooses by manifests (restore.py)
    all ranks   verify its files, each its share (restore.files_by_rank), on several threads; where status
                does not name it, so that any process may have written its manifest, they also parse the files
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
    files_by_rank,
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
_RANKS_NAMED = 8
"""Number of ranks that a message names."""
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
    """All files of the rank are verified, or could not be read."""
    read: int
    """Bytes read so far."""
    proved: str
    """Fault that proves a file bad; "": none is known."""
    unsure: str
    """Error for which a file could not be read; "": none."""


VERIFICATION: Vocabulary = {"ropeteam_trainer.checkpoint.together._Said": Verification}
"""Class that is gathered, by its name in the release that sent it first."""


class Agreement:
    """Choice and verification on all ranks. `heartbeat` is called when any rank has read bytes, and before
    each retry.

    The constructor raises CheckpointUnavailable, on this rank alone, if keys are needed that cannot be read.
    The rank exits then, and its world ends with it: no other rank waits for it longer than that.
    """

    def __init__(
        self, plan: RankPlan, world: World, directory: Location, heartbeat: Callable[[], None]
    ) -> None:
        self._plan, self._world, self._directory, self._heartbeat = plan, world, directory, heartbeat
        self._vouched = plan.lineage_known and any(parse_ref(text).digest for text in plan.restore)
        """Status names a hash, and each manifest names its parent's: the job has saved these checkpoints."""
        self._keys = self._keys_of_secret() + seals.read_keys(plan.keys)
        self._bad: dict[str, str] = {}
        """Folders of checkpoints with a file that is proved bad, and the fault."""
        self._waited_from: float | None = None
        """Time at which the present problem was first seen; None: there is none."""
        self._pause = FIRST_PAUSE
        """Seconds of the next pause."""

    def _keys_of_secret(self) -> seals.Keys:
        """Keys of the Secret that the job names; none if it names none, or if it was damaged while the job
        ran and hashes confirm the checkpoints (`_vouched`, set before this). Raises CheckpointUnavailable if
        the keys are needed and cannot be read."""
        try:
            return seals.read_secret_keys(self._plan.checkpoint.signing) if self._plan.checkpoint else ()
        except (OSError, ValueError) as error:
            if self._vouched:
                return ()
            raise CheckpointUnavailable(str(error)) from None

    def choose(self) -> Choice:
        """Choice, the same on all ranks; its files are verified. Raises CheckpointNotFound or
        CheckpointUnavailable, on all ranks. A collective: all ranks call it.

        Each turn of the loop: rank 0 chooses; all verify; a proved fault leads to the next choice.
        """
        while True:
            choice, error = self._world.from_rank_0(self._choose_alone, CHOSEN)
            if choice is None:
                self._pause_or_give_up(error if self._world.rank == 0 else self._error_here())
            elif choice.manifest is None or choice.ref is None:
                return choice  # start from nothing
            elif fault := self._verify(choice.manifest, choice.ref):
                self._bad[folder(choice.ref)] = fault
            else:
                return choice

    def _choose_alone(self) -> tuple[Choice | None, str]:
        """Choice of this rank alone, by manifests; or None and the error that prevents one. Raises
        CheckpointNotFound."""
        try:
            found = () if self._plan.lineage_known else reader.find_checkpoints(self._directory)
            return choose(self._plan, found, self._inspect), ""
        except CheckpointUnavailable as error:
            return None, str(error)
        except OSError as error:
            return None, f"the checkpoint directory {self._directory} cannot be listed: {error}"

    def _error_here(self) -> str:
        """Error that prevents a choice in this pod, too; "": this rank could choose. So it is known whether
        the volume is unavailable in all pods or in some."""
        try:
            return self._choose_alone()[1]
        except ValueError:  # CheckpointNotFound: this rank can read
            return ""

    def _inspect(self, ref: CheckpointRef) -> Inspection:
        """Result for the manifest; with the fault of a file that was proved bad before, so that this
        checkpoint is not chosen again."""
        seen = reader.inspect_manifest(self._directory, ref, self._keys)
        bad = self._bad.get(folder(seen.ref or ref))
        return replace(seen, fault=bad, ref=None) if bad and not seen.fault else seen

    def _verify(self, manifest: Manifest, ref: CheckpointRef) -> str:
        """Verify all files, each rank its share, until none is left that could not be read. Returns the fault
        that proves this checkpoint bad; "": it is whole. Raises CheckpointUnavailable."""
        self._forget_problem()  # rank 0 could choose
        left = files_by_rank(manifest, self._world.size)[self._world.rank]
        verify = partial(self._verify_file, manifest, ref)
        while True:
            with _ShareVerifier(verify, left) as verifier:
                states = self._gather_states(verifier)
            if proved := next((f"{one.proved} (rank {n})" for n, one in enumerate(states) if one.proved), ""):
                self._forget_problem()  # files that could not be read do not matter any more
                return proved
            if not any(one.unsure for one in states):
                return ""
            left = verifier.left
            self._pause_or_give_up(states[self._world.rank].unsure)

    def _verify_file(
        self, manifest: Manifest, ref: CheckpointRef, file: ShardFile, on_read: Callable[[int], None]
    ) -> Inspection:
        """Verify size and hash; and the content too, where no hash in status confirms the manifest. Runs in a
        thread."""
        seen = reader.check_file(self._directory, ref, file, on_read)
        ours = map(rank_file, range(self._world.size))
        of_no_rank = file.name.startswith("rank-") and file.name not in ours
        if seen.fault or self._vouched or of_no_rank:  # no rank will load such a file, and it may be large
            return seen
        return reader.validate_content(self._directory, ref, manifest.files, file, on_read)

    def _gather_states(self, verifier: _ShareVerifier) -> list[Verification]:
        """Gather the states of all ranks, until all have verified their share or one has proved a file bad;
        returns the last states. A collective. Sends a heartbeat when a rank has read more bytes."""
        seconds, total = 0.01, 0
        while True:
            states = self._world.gather(verifier.wait(seconds), VERIFICATION)
            if (read := sum(one.read for one in states)) > total:
                total = read
                self._heartbeat()
            if all(one.done for one in states) or any(one.proved for one in states):
                return states
            seconds = min(2 * seconds, SYNCHRONIZE_SECONDS)

    def _forget_problem(self) -> None:
        """Count RETRY_SECONDS and the pauses from the start again, for the next problem."""
        self._waited_from, self._pause = None, FIRST_PAUSE

    def _pause_or_give_up(self, error: str) -> None:
        """Pause on all ranks. Raises CheckpointUnavailable on all of them instead, if the problem has lasted
        RETRY_SECONDS by rank 0's clock. A collective, called if at least one rank has an `error`; "": this
        rank has none.

        Order: rank 0's clock, then errors, so that all ranks take the same branch.
        """
        now = time.monotonic()
        self._waited_from = now if self._waited_from is None else self._waited_from
        over = self._world.number_of_rank_0(int(now - self._waited_from >= RETRY_SECONDS))
        errors = self._world.gather(error)
        hindered = [rank for rank, text in enumerate(errors) if text]
        ranks = ", ".join(map(str, hindered[:_RANKS_NAMED])) + ", ..." * (len(hindered) > _RANKS_NAMED)
        text = f"{errors[hindered[0]]} (on {len(hindered)} of {len(errors)} ranks: {ranks})"
        if over:
            raise self._unavailable_class(bool(error), len(hindered))(
                f"{text} for {RETRY_SECONDS:.0f} s. {_advice(self._directory)}"
            )
        if self._world.rank == 0:
            notice(f"{text}: trying again in {self._pause:.0f} s, for {RETRY_SECONDS:.0f} s in all")
        self._heartbeat()
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _unavailable_class(self, here: bool, hindered: int) -> type[CheckpointUnavailable]:
        """Class of the error: which pods cannot read, for the choice of another node. `here`: this rank
        cannot. `hindered`: number of ranks that cannot. In a world of one pod it is unknown whether others
        could."""
        in_one_pod = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) >= self._world.size
        if hindered == self._world.size and not in_one_pod:
            return UnavailableEverywhere
        return CheckpointUnavailable if here else UnavailableElsewhere


def call_with_retries(action: Callable[[], T], directory: Location, heartbeat: Callable[[], None]) -> T:
    """Return the result of `action()`, retried after each OSError. Raises CheckpointUnavailable after
    RETRY_SECONDS, and UnexpectedFile at once: that is no problem of the volume. `heartbeat` is called before
    each pause."""
    began, pause = time.monotonic(), FIRST_PAUSE
    while True:
        try:
            return action()
        except UnexpectedFile:
            raise
        except OSError as error:
            if time.monotonic() - began >= RETRY_SECONDS:
                text = f"{error} for {RETRY_SECONDS:.0f} s. {_advice(directory)}"
                raise CheckpointUnavailable(text) from error
            notice(
                f"a checkpoint cannot be read: {error}: trying again in {pause:.0f} s, "
                f"for {RETRY_SECONDS:.0f} s in all"
            )
        heartbeat()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _advice(directory: Location) -> str:
    return f"Check the volume of {directory} and its mount; to skip a checkpoint, delete its folder"


class _ShareVerifier:
    """Verification of one rank's share, in THREADS threads from its creation on. Leaving the `with` stops
    them at their next read, without waiting for it: that may take long on a volume that does not answer."""

    def __init__(
        self, verify: Callable[[ShardFile, Callable[[int], None]], Inspection], files: list[ShardFile]
    ) -> None:
        self._read, self._lock = 0, threading.Lock()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, "ropeteam-verify")
        self._files = {self._pool.submit(verify, file, self._count): file for file in files}

    def wait(self, seconds: float) -> Verification:
        """Wait for `seconds`, or until all files are verified. Returns the state then."""
        done, running = wait(self._files, seconds)
        inspections = [future.result() for future in done]
        proved = (each.fault for each in inspections if each.fault and not each.unsure)
        unsure = (each.fault for each in inspections if each.unsure)
        return Verification(not running, self._read, next(proved, ""), next(unsure, ""))

    @property
    def left(self) -> list[ShardFile]:
        """Files with a fault: those to verify again, if no fault is proved. Blocks until all files are
        done."""
        return [file for future, file in self._files.items() if future.result().fault]

    def _count(self, size: int) -> None:
        """Count bytes that a thread has read. Raises InterruptedError, which ends the thread, after the
        `with`."""
        if self._stop.is_set():
            raise InterruptedError("another rank has found a fault")
        with self._lock:
            self._read += size

    def __enter__(self) -> _ShareVerifier:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
