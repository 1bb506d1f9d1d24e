"""Asynchronous save: a thread writes the checkpoint while training continues.

Order: copy (training thread) -> plan with all ranks, write, hash, fsync (writer thread) ->
`written(step, files)`. Never two at once: a save that starts while the last one is still being written
waits, and the wait is counted. Promise: files are write-once; a full or read-only disk on one rank costs a
message on all ranks and this checkpoint, never the training.

The writer threads of all ranks use a process group of their own: a collective of theirs is never taken for
one of the training. It is created in the training thread, at the first save. (In another thread it could wait
for the store, which one thread at a time can use, while the training thread of a peer waits for it too.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ropeteam_trainer.checkpoint.decisions.manifest import folder
from ropeteam_trainer.checkpoint.objects.snapshot import Snapshot
from ropeteam_trainer.checkpoint.objects.stateful import TrainingState
from ropeteam_trainer.checkpoint.objects.tensorshard import local_part, shard_of
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.system.folders import Location
from ropeteam_trainer.system.notice import notice

Written = Callable[[int, tuple[ShardFile, ...]], None]
_PATIENCE = timedelta(hours=1)
"""Time for which a rank waits for the slowest disk. The death of a peer is noticed at once."""
_POLL_SECONDS = 0.1
"""Interval in which a wait notices that a rank is lost."""


@dataclass(frozen=True)
class Alone:
    """How a replica saves for all, which have the same state."""

    world_id: WorldId
    """World under whose name it is stored."""
    written: Written
    group: dist.ProcessGroup | None
    """Of the replica's ranks; None: it is one."""


@dataclass
class _Save:
    """One save."""

    world_id: WorldId
    """World under whose name it is stored."""
    written: Written
    is_alone: bool
    """Whether this rank saves for all."""
    is_written: bool = False
    thread: threading.Thread = field(default_factory=threading.Thread)

    @property
    def is_running(self) -> bool:
        return self.thread.is_alive()


class ShardWriter:
    """Writer of this rank's part of each checkpoint. Only the training thread calls the methods."""

    def __init__(
        self,
        directory: Location,
        world_id: WorldId,
        world: World,
        written: Written,
        run: str = "",
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`run`: UID of the job. `written` is called in the writer thread, only when all files of all ranks
        are synced. is_over: whether a rank of the world is lost, and the others continue without it. A save
        of all may wait for it, or for a rank whose save it has ended, for as long as _PATIENCE: so no one
        waits for the save then."""
        self._directory, self._world_id, self._world, self._written = directory, world_id, world, written
        self._run, self._is_over = run, is_over
        self._snapshot = Snapshot()
        self._group: dist.ProcessGroup | None = None
        self._save: _Save | None = None
        self.stalls = 0
        """Saves that had to wait for the one before."""
        self.stalled_seconds = 0.0

    def start(
        self,
        step: int,
        state: TrainingState,
        files: Mapping[str, Any],
        alone: Alone | None = None,
    ) -> None:
        """Copy the state, and start to write the copy; wait for the last save first. A collective. `files`:
        content of this rank's small files, by name. Nothing is written if the last save does not end because
        a rank is lost. Raises TypeError for a sharded tensor in them.

        alone: this replica saves for all: a collective of its ranks."""
        if self._save and self._save.is_running:
            self.stalls += 1
            began = time.monotonic()
            self.wait()
            self.stalled_seconds += time.monotonic() - began
            if self._save.is_running and alone is None:
                return
            self._leave_behind()
        if alone is None:
            self.form_group()
            save, group = _Save(self._world_id, self._written, False), self._group
        else:
            save, group = _Save(alone.world_id, alone.written, True), alone.group
        locals_ = {name: local_part(tensor) for name, tensor in state.tensors.items()}
        copy = self._snapshot.copy({"locals": locals_, "shared": state.shared, "files": dict(files)})
        save.thread = threading.Thread(
            target=self._write, args=(save, step, state, copy, group), daemon=True, name="ropeteam-save"
        )
        self._save = save
        save.thread.start()

    def _leave_behind(self) -> None:
        """Wait no more for a save of all that waits for a lost rank. It may still read its copy."""
        if self._save and self._save.is_running and not self._save.is_alone:
            self._save, self._snapshot = None, Snapshot()

    def begin_world(self, world_id: WorldId, written: Written, is_over: Callable[[], bool]) -> None:
        """Save for this world from now on, as in __init__(), with a new process group."""
        self._leave_behind()
        self._group = None
        self._world_id, self._written, self._is_over = world_id, written, is_over

    def form_group(self) -> None:
        """Form the process group of saves, if there is none. A collective."""
        if self._group is None and self._world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def wait(self) -> None:
        """Wait until the last save is on disk, or has failed, or a rank is lost that it needs."""
        while self._save and self._save.is_running and (self._save.is_alone or not self._is_over()):
            self._save.thread.join(_POLL_SECONDS)

    @property
    def is_running(self) -> bool:
        """Whether the last save is being written."""
        return self._save is not None and self._save.is_running

    @property
    def has_failed(self) -> bool:
        """Whether the last save has ended, and was not written."""
        save = self._save
        return save is not None and not save.is_running and not save.is_written

    def leave_to_another(self) -> None:
        """Another rank saves for all, instead of the last save of this one."""
        if self._save and self._save.is_running:
            if self._save.is_alone:
                return  # it uses the replica's group: a later one has to wait for it
            self._snapshot = Snapshot()
        self._save = None

    def close(self) -> None:
        """Wait for the last save, and drop the reference to the process group, which the world's
        dist.destroy_process_group() destroys with all others. A later save creates a new one."""
        self.wait()
        self._group = None

    def _write(
        self,
        save: _Save,
        step: int,
        state: TrainingState,
        copy: dict[str, Any],
        group: dist.ProcessGroup | None,
    ) -> None:
        """Write `copy` together with all ranks of the group: the writer thread. An error is printed, and
        nothing is reported. `state` is used for the sharding of its tensors alone: their values have changed
        since."""
        place = folder(CheckpointRef(step, save.world_id, run=self._run))
        try:
            from ropeteam_trainer.checkpoint import dcp

            found = {name: shard_of(tensor, copy["locals"][name]) for name, tensor in state.tensors.items()}
            shards = {name: shard for name, shard in found.items() if shard is not None}
            content = dcp.RankContent(shards, state.buffers, copy["shared"], copy["files"])
            files = dcp.save(self._directory, place, content, group)
        except Exception as error:
            notice(
                f"the checkpoint of step {step} was not written: {error}. Training continues; "
                "the next one is tried when it is due."
            )
            return
        save.is_written = True
        if save is self._save or save.is_alone:  # else it was left behind: others may not have ended it
            save.written(step, files)
