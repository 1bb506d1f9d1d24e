"""Checkpoints of one rank: the objects in them, the time of saves, the restore.

    tensors       of modules and optimizers, each rank its part; together in the format of DCP (dcp.py)
    state.pt      by rank 0: all other state that ranks share; the data position
    rank-<r>.pt   by each rank: its random generators, and the per-rank state of a technique

Any layout can be restored from any other: only the names of parameters matter. Under an agent the files are
reported and the agent writes the manifest (after a grant). Without one, rank 0 writes the manifest itself as
soon as all ranks have written; those saves are synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ropeteam_trainer.checkpoint import handover, reader
from ropeteam_trainer.checkpoint.agreement import Agreement, call_with_retries
from ropeteam_trainer.checkpoint.cadence import Cadence
from ropeteam_trainer.checkpoint.decisions.manifest import (
    MANIFEST,
    STATE,
    Manifest,
    folder,
    path_in_run,
    rank_file,
    run_folder,
)
from ropeteam_trainer.checkpoint.deletion import delete_checkpoint
from ropeteam_trainer.checkpoint.directory import checkpoint_directory
from ropeteam_trainer.checkpoint.format import contents
from ropeteam_trainer.checkpoint.format.metadata import Saved
from ropeteam_trainer.checkpoint.format.names import misfit
from ropeteam_trainer.checkpoint.objects import rng
from ropeteam_trainer.checkpoint.objects.stateful import SavedObjects, Shared, TrainingState
from ropeteam_trainer.checkpoint.objects.tensorshard import shard_of
from ropeteam_trainer.checkpoint.writer import Alone, ShardWriter, Written
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.local import FromRank, LiveWorld
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent
from ropeteam_trainer.rank.exchange import CONTRACT
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.system.folders import Folder
from ropeteam_trainer.system.notice import notice

T = TypeVar("T")


@dataclass(frozen=True)
class Restored:
    """Position of the restored checkpoint."""

    step: int
    data: dict[str, int] | None
    """Data position, as it was given to save()."""


class Checkpoints:
    """Checkpoints of one rank. Order of calls: register(), restore(), then save() or due(), close() at the
    end. All ranks make the same calls: most are collectives."""

    def __init__(self, plan: RankPlan, world: World, link: AgentLink | NoAgent) -> None:
        """`plan` has a checkpoint configuration."""
        assert plan.checkpoint is not None
        self.every_steps, self.every_seconds = plan.checkpoint.every_steps, plan.checkpoint.every_seconds
        self._keep = plan.checkpoint.keep
        self._plan, self._world, self._link = plan, world, link
        self._directory = checkpoint_directory(plan.checkpoint)
        self._world_id = WorldId.parse(plan.saves_as or plan.world_id)
        self._cadence = Cadence(plan.checkpoint, world.number_of_rank_0)
        place, run = (self._directory, self._world_id, world), plan.job_uid
        written, is_over = self._of_world(None)
        self._writer = ShardWriter(*place, written, run, is_over)
        self._objects = SavedObjects({})
        self._own: Mapping[str, Any] = {}
        self.mates = Mates(range(world.rank, world.rank + 1), world.rank)
        """Ranks with which this one can save for all: those of its replica."""
        self.newest = -1
        """Step of the checkpoint that was restored, or saved since."""
        self._shard: tuple[ShardFile, ...] = ()
        """Files of this rank's last save. (): they are not written yet, or could not be."""
        self._alone, self._committed = (-1, self._world_id), -1
        """Step and world of the last save, if it is of this rank for all; newest step that is committed."""
        self.last = -1
        """Step of the last save of any rank that this one knows of. -1: none; what was restored is none."""
        self._lineage: list[CheckpointRef] = []
        """Without an agent: the checkpoints that rank 0 has committed or restored, newest first."""
        self._reports, self._unreported = True, FromRank()
        self.due = self._cadence.due
        self.wait = self._writer.wait

    def register(
        self,
        objects: Mapping[str, Any],
        optional: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        """Save and restore these objects from now on, by their names, instead of those registered before:
        modules (a list of them where a rank has several), optimizers, and any with state_dict() and
        load_state_dict(). optional: those that a checkpoint need not hold. own: objects that every rank saves
        for itself; only a world of the same size can restore them. Raises TypeError or ValueError for state
        that could not be loaded again."""
        self._objects, self._own = SavedObjects(objects, optional), own or {}

    @property
    def is_late(self) -> bool:
        """As Cadence.is_late."""
        return self._cadence.is_late

    @property
    def is_uncommitted(self) -> bool:
        """Whether the last save is not known to be committed: a lost rank may have broken it. False for one
        of this rank for all that is being written, or could not be: the next is tried when it is due."""
        is_for_all = self._alone[0] == self.last and (self._writer.is_running or self._writer.has_failed)
        return self.last > self.newest_committed and not is_for_all

    @property
    def has_committed(self) -> bool:
        """Whether the last save of this rank for all is committed. True: the last one was not for all, it has
        failed, or it is written and another agent commits since."""
        step, world_id = self._alone
        if step <= self.newest_committed or self._writer.has_failed:
            return True
        return world_id != self._newest_name and not self._writer.is_running

    @property
    def is_orphaned(self) -> bool:
        """Whether the last save was written by this rank for all, and nobody commits it any more."""
        return self._alone[0] == self.last and self.is_uncommitted and self.has_committed

    @property
    def on_its_way(self) -> int:
        """Step of the last save, if it is of this rank for all, and not orphaned. -1: it is not."""
        return self._alone[0] if self._alone[0] == self.last and not self.is_orphaned else -1

    @property
    def newest_committed(self) -> int:
        """Step of the newest checkpoint that is known to be committed. To be read in each step: the agent
        names only those of the present name."""
        self._committed = max(self._committed, self._link.newest.committed_step or -1)
        return self._committed

    def note_saves_of_others(self, last: int, committed: int) -> None:
        """Record the step of the last save of any rank, and of the newest checkpoint that any knows to be
        committed."""
        self._committed = max(self._committed, committed)
        self.last, self.newest = max(self.last, last), max(self.newest, last)

    @property
    def _newest_name(self) -> WorldId:
        """World under whose name checkpoints are stored now, while ranks are lost or have not joined yet."""
        newest = self._link.newest
        return newest.saves_as or (newest.live_world.saves_as if newest.live_world else self._world_id)

    def close(self) -> None:
        """Finish the current save, and release all objects: they may reference the model, and with it the
        process group."""
        self._writer.close()
        self._objects, self._own = SavedObjects({}), {}

    def leave_group(self) -> None:
        """Finish the current save, before the process group is destroyed. A later save creates a new
        group."""
        self._writer.close()

    def is_unsaved(self, step: int) -> bool:
        """Whether neither this step nor a later one has been saved or restored."""
        return step > self.newest

    def save(
        self, step: int, data: dict[str, int] | None, *, report: bool = True, alone: bool = False
    ) -> None:
        """Copy the state, and write it in the background; wait for the last save first. A second save of the
        same step does nothing. `data`: data position. Errors of writing are printed, not raised.

        report: send the shard to the agent, so that it is committed. False: report() sends it later, if no
        other save comes before. Without an agent it returns when the checkpoint is written and committed.
        alone: others are lost, and this rank saves for all, with its mates: then the rest call
        leave_to_another().
        """
        if step == self.newest:
            return
        self._note_save(step)
        self._reports, self._alone = report, (-1, self._world_id)
        leads = self.mates.part == 0 if alone else self._world.rank == 0
        state = self._objects.state(with_others=leads)
        own = {name: obj.state_dict() for name, obj in self._own.items()}
        files: dict[str, Any] = {rank_file(self._world.rank): {"rng": rng.capture(), "own": own}}
        if leads:
            files[STATE] = {"step": step, "data": data, "others": state.others}
        self._writer.start(step, state, files, self._begin_alone(step) if alone else None)
        if not self._link.connected:
            self._writer.wait()
            self._commit(step)

    def leave_to_another(self, step: int) -> None:
        """Leave the save of this step to the rank that saves for all."""
        if step != self.newest:
            if self._writer.has_failed:
                self._alone = -1, self._world_id
            self._note_save(step)
            self._writer.leave_to_another()

    def _note_save(self, step: int) -> None:
        self._cadence.note_saved()
        self.newest, self._unreported, self._shard = step, FromRank(), ()
        self.last = step

    def _begin_alone(self, step: int) -> Alone:
        name = self._newest_name
        self._alone = step, name
        return Alone(name, partial(self._on_written, name, True), self.mates.saving)

    def restore(self, heart: HeartbeatWriter, among: World | None = None) -> Restored | None:
        """Load the best checkpoint into the objects of register(), with heartbeats in phase "restore" as long
        as bytes are read. None: there is none to restore. A collective among these ranks; None: all.

        Raises CheckpointNotFound, CheckpointUnavailable and KeyError (the objects do not fit) on all ranks;
        ValueError, TypeError and errors of torch for a file that cannot be loaded.
        """
        with heart.during("restore"):
            return self._restore(heart.write, among or self._world)

    def _restore(self, heartbeat: Callable[[], None], among: World) -> Restored | None:
        """Agree on a checkpoint, load it, and report it to the agent (rank 0)."""
        choice = Agreement(self._plan, among, self._directory, heartbeat).choose()
        if self._world.rank == 0:
            for sentence in choice.skipped:
                notice(sentence)
        if choice.manifest is None or choice.ref is None:
            return None
        ref = choice.ref
        state = self._load_shared(ref, choice.manifest, heartbeat, among)
        self._load_own(ref, choice.manifest, heartbeat)
        self._lineage, self.newest = [ref], ref.step
        if self._world.rank == 0:
            notice(f"resumes from step {ref.step} (checkpoint {folder(ref)})")
            self._link.send(FromRank(restored=ref))
        return Restored(ref.step, state["data"])

    def _load_shared(
        self, ref: CheckpointRef, manifest: Manifest, heartbeat: Callable[[], None], among: World
    ) -> dict[str, Any]:
        """Load all but the per-rank state into the objects of register(). Returns the content of state.pt.
        Raises KeyError, on all ranks, if the objects do not fit.

        Order: state.pt -> index -> compare names and shapes -> allocate -> read tensors -> load_state_dict().
        """
        files = {file.name: file for file in manifest.files}
        state: dict[str, Any] = self._read(
            lambda: reader.load_file(self._directory, ref, files[STATE]), heartbeat
        )
        contents.check_shared_state(STATE, state)
        shared = {kind: state[kind] for kind in TrainingState().shared}
        load_metadata = partial(reader.load_metadata, self._directory, ref, manifest.files, validated=True)
        saved = self._read(load_metadata, heartbeat)
        self._check_fit(ref, shared, state["others"], saved, among)
        tensors = self._objects.allocate(shared, saved)
        shards = {name: shard for name, tensor in tensors.items() if (shard := shard_of(tensor)) is not None}
        self._read(lambda: reader.fill_shards(self._directory, ref, saved, shards, heartbeat), heartbeat)
        self._objects.load(tensors, shared, state["others"])
        return state

    def _read(self, action: Callable[[], T], heartbeat: Callable[[], None]) -> T:
        """Result of an action that reads the volume, with retries. Raises CheckpointUnavailable."""
        return call_with_retries(action, self._directory, heartbeat)

    def _load_own(self, ref: CheckpointRef, manifest: Manifest, heartbeat: Callable[[], None]) -> None:
        """Load what this rank has saved for itself: its random generators, and the objects of `own` if as
        many ranks have saved as are here. (Residuals of other ranks would be added to the wrong gradients.) A
        rank without a file has its generators seeded."""
        ranks, name = manifest.world_size, rank_file(self._world.rank)
        file = next((file for file in manifest.files if file.name == name), None)
        if file is None:
            rng.reseed(ref.step, self._world.rank)
            return
        mine = self._read(partial(reader.load_file, self._directory, ref, file), heartbeat)
        contents.check_rank_state(name, mine)
        rng.put_back(mine["rng"])
        found = {name: obj for name, obj in self._own.items() if name in mine.get("own", {})}
        if ranks == self._world.size:
            for name, obj in found.items():
                obj.load_state_dict(mine["own"][name])
        elif found and self._world.rank == 0:
            notice(
                f"state of {', '.join(found)} is not restored: {ranks} ranks have saved it, and "
                f"there are {self._world.size} now. Training continues without it."
            )

    def _check_fit(
        self, ref: CheckpointRef, shared: Shared, others: dict[str, Any], saved: Saved, among: World
    ) -> None:
        """Raise KeyError, on all ranks, if the objects of register() do not fit the checkpoint. A collective:
        in a pipeline each rank knows a part of the names only."""
        if missing_names := self._objects.missing(shared, others):
            held = [*shared["models"], *shared["optimizers"], *others]
            raise KeyError(
                f"checkpoint {folder(ref)} holds no {missing_names[0]!r}: it has {', '.join(held)}. Pass to "
                "restore() what was saved, or start again with spec.resume.policy Never."
            )
        missing, unknown, shapes = zip(*among.gather(self._objects.compare(shared, saved)), strict=True)
        surplus = set.intersection(*unknown)  # in a pipeline, what one rank does not know another one has
        fault = misfit(set().union(*missing), surplus, sorted({text for texts in shapes for text in texts}))
        if fault:
            raise KeyError(f"checkpoint {folder(ref)} does not fit: {fault}")

    # ---- ranks that join others

    def captured(
        self, step: int, data: dict[str, int] | None, more: Mapping[str, int], copied: bool
    ) -> list[torch.Tensor]:
        """State of this step for another rank, as handover.captured()."""
        return handover.captured(self._objects, step, data, self.newest, more, copied)

    def adopt(self, receive: handover.Receive) -> handover.HandedOver:
        """Load the state that another rank has captured."""
        found = handover.load(self._objects, receive)
        rng.reseed(found.step, self._world.rank)
        self._cadence.note_saved()  # the others know better when the next one is due
        self.newest = found.newest
        return found

    def join_again(self, world: LiveWorld) -> None:
        """Save with the process group of this world from now on."""
        self._world_id = world.saves_as
        self._writer.begin_world(self._world_id, *self._of_world(world))

    def form_group(self) -> None:
        """Form the process group of saves now, not in the first save. A collective."""
        self._writer.form_group()

    def _of_world(self, world: LiveWorld | None) -> tuple[Written, Callable[[], bool]]:
        """The functions that ShardWriter calls in this world. None: in the one that started this rank."""
        link = self._link

        def is_over() -> bool:
            return bool(link.newest.lost) or link.newest.live_world not in (None, world)

        return partial(self._on_written, self._world_id, False), is_over

    def _on_written(self, world_id: WorldId, whole: bool, step: int, files: tuple[ShardFile, ...]) -> None:
        """Report the files of this rank, now or by report(). Called in the writer thread."""
        self._shard = files
        message = FromRank(shard_step=step, shard_files=files, shard_world=world_id, shard_whole=whole)
        if self._reports:
            self._link.send(message)
        else:
            self._unreported = message

    def report(self) -> None:
        """Wait for the last save, and report it to the agent, if that is not done yet."""
        self.wait()
        if self._unreported != FromRank():
            self._link.send(self._unreported)
        self._unreported = FromRank()

    def _commit(self, step: int) -> None:
        """Write the manifest, if all ranks have written, and prune: on rank 0, which does the agent's work
        where there is none. A collective, after the save has finished. If a rank could not write, nothing is
        committed."""
        shards = self._world.gather(self._shard, CONTRACT)
        if self._world.rank != 0 or not all(shards):
            return
        parent = self._lineage[0] if self._lineage else None
        files = tuple(file for shard in shards for file in shard)
        manifest = Manifest(
            step, self._world_id, self._world.size, self._plan.job, self._plan.job_uid, files, parent
        )
        with Folder.at(self._directory) as root, root.open_below(run_folder(self._plan.job_uid)) as run:
            with run.open_below(path_in_run(manifest.ref)) as inner:
                inner.write(MANIFEST, manifest.to_bytes())
            self._lineage.insert(0, manifest.ref)
            for old in self._lineage[self._keep :]:
                if old.run == self._plan.job_uid:  # the restored one may be another run's
                    delete_checkpoint(run, old.step, old.world_id)
        del self._lineage[self._keep :]


def next_world_id(directory: Path) -> WorldId:
    """Number of the world of a run without an operator: higher than that of any checkpoint in the directory.
    Raises OSError where the directory cannot be listed."""
    numbers = (ref.world_id.n for ref in reader.find_checkpoints(directory))
    return WorldId(0, 0, max(numbers, default=0) + 1)
