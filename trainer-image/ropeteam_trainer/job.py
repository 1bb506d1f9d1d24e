"""The public face of the library: init, report, phase, restore, batches.

    job = ropeteam_trainer.init()                                  # rung 1
    step = job.restore(model=model, optimizer=optimizer)           # rung 2: after wrapping, before the loop
    for batch in job.batches(data, global_batch=96, epochs=3):     # rung 3
        loss = loss_of(model, batch)
        (loss * job.batch_weight).backward()
        ...
        job.report(loss=loss)

Every rank calls everything, in the same order. Order inside report(): count the step, save if it is time,
then obey a pause. Promises: no network call and no device synchronisation in the training thread; without the
operator all of it does nothing, or what init() was told. Limit: one data set per job.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ropeteam_trainer import agentlink
from ropeteam_trainer.checkpoint.saving import Checkpoints, next_epoch
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.local import PHASES, FromRank
from ropeteam_trainer.contract.world import Epoch
from ropeteam_trainer.data import batches as loading
from ropeteam_trainer.data.plan import DataPlan, Position, Share
from ropeteam_trainer.trace import Trace
from ropeteam_trainer.world import World

_job: Job | None = None


def init(
    *,
    device: str | torch.device | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every_steps: int | None = None,
    timeout_seconds: int = 600,
) -> Job:
    """Join the world that the environment describes (torchrun's variables) and find the agent, if there is
    one.

    device: what the script computes on; default: CUDA where there is any. It becomes `job.device`; NCCL
    serves CUDA tensors and gloo all others. A group that the script has already initialised is used as it is.
    checkpoint_dir, checkpoint_every_steps: for runs without the operator; a TrainingJob's own settings win.
    timeout_seconds: how long a collective may wait. A dead peer is noticed at once and a hung one by the
    agent, so this only has to be longer than what one rank does while others wait, such as an evaluation. A
    second call returns the same Job.
    """
    global _job
    if _job is None:
        world = World.join(device, timeout_seconds)
        if config.RANK_PLAN in os.environ:
            plan = codec.decode(RankPlan, os.environ[config.RANK_PLAN])
        else:
            plan = _plan_without_operator(world, checkpoint_dir, checkpoint_every_steps)
        _job = Job(world, plan, os.environ)
        sys.excepthook = partial(_job._note_failure, sys.excepthook)
        atexit.register(_job._at_exit)
    return _job


class Job:
    """A training job as one of its ranks sees it. Made by init()."""

    def __init__(self, world: World, plan: RankPlan, environ: Mapping[str, str]) -> None:
        self.rank, self.world_size, self.device = world.rank, world.size, world.device
        self.step = 0
        """Steps done, also in former worlds."""
        self.batch_weight = 1.0
        """Multiply the last batch's mean loss by this: then the mean of gradients over ranks is exact."""
        self._world = world
        self._link = agentlink.connect(environ, world.rank)
        self._heart = agentlink.Heartbeat(environ.get(config.RANK_PAGE))
        trace = environ.get(config.TRACE)
        self._trace = Trace(trace, world.rank, plan.epoch) if trace else None
        self._checkpoints = Checkpoints(plan, world, self._link) if plan.checkpoint else None
        self._rung = 1
        self._total_steps: int | None = None
        self._data: DataPlan | None = None
        self._position = Position()
        self._data_epoch = 0
        """Of the last batch that was taken."""
        self._restored_data: dict[str, int] | None = None
        self._taken: list[int] = []
        self._taken_total = 0
        self._failed = False

    def report(self, *, loss: Any = None, samples: int | None = None, total_steps: int | None = None) -> None:
        """One step is done: the optimizer has stepped. Call it once per step, at the end of it.

        loss: number or tensor of one element; read at leisure, about once a second.
        samples: what this rank used; not needed with batches(). total_steps: for the progress shown to
        people.
        """
        self.step += 1
        self._beat_step(samples)
        loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        if self._link is not None:
            self._link.offer_loss(loss)
            if total_steps != self._total_steps and total_steps is not None:
                self._total_steps = total_steps
                self._link.send(FromRank(total_steps=total_steps))
        if self._trace is not None:
            self._trace.step(self.step, self._data_epoch, self._taken, None if loss is None else float(loss))
        self._taken, self._taken_total = [], 0
        if self._checkpoints is not None and self._checkpoints.due(self.step):
            self._save()
        if self._link is not None and self._link.paused:
            self._obey_pause(self._link)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say what the script does now, for instance `with job.phase("eval"):`. Pauses the hang clock.

        name: "eval", "checkpoint", "restore"; "train" and "data" keep the clock running. ValueError for
        others.
        """
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}: choose one of {', '.join(PHASES[1:])}")
        before, self._heart.phase = self._heart.phase, name
        self._heart.beat()
        try:
            yield
        finally:
            self._heart.phase = before
            self._heart.beat()

    def restore(self, *, model: Any = None, optimizer: Any = None, **extra: Any) -> int:
        """Go on from the newest good checkpoint: load it into the objects given, and save them from now on.

        Call it last before the loop, on the wrapped model (or a list of modules, if this rank has several
        parts of a pipeline, with the names that they have in the whole). However the model and the optimizer
        are sharded now, and over how many ranks, they take up what any other layout has saved. extra: more
        modules and optimizers, and anything with state_dict() and load_state_dict(), of plain values and
        tensors, the same on all ranks (a scheduler, a scaler). Restores the random generators and the
        position of batches() too. Returns the number of steps done: 0 for a fresh start. Raises
        CheckpointNotFound if `resume` names a step that is not there, KeyError if the model has changed.
        """
        self._climb(2)
        if self._checkpoints is None:
            return 0
        objects = {"model": model, "optimizer": optimizer, **extra}
        self._checkpoints.keep({name: thing for name, thing in objects.items() if thing is not None})
        with self.phase("restore"):
            found = self._checkpoints.restore()
        if found is not None:
            self.step = self._heart.step = found.step
            self._restored_data = found.data
            self._heart.beat()
        return self.step

    def batches(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """This rank's part of each global batch, until `epochs` data epochs (counted from the job's start)
        are done.

        dataset: a tensor, a sequence, or a map-style Dataset, the same on all ranks. global_batch: samples
        per step of all ranks together, whatever their number; the last batch of an epoch may be smaller.
        Parts may be unequal: use `batch_weight`. workers: processes that load ahead. collate: default torch's
        default_collate. Goes on where the restored checkpoint was. Raises ValueError if data or seed are not
        those of the checkpoint.
        """
        self._climb(3)
        self._data = DataPlan(len(dataset), global_batch, seed)
        self._position = _resume_position(self._restored_data, self._data, self._position)
        planned = loading.shares(self._data, self._position, epochs, self.rank, self.world_size)
        loaded = loading.load(dataset, planned, workers, collate)
        while True:
            with self.phase("data") if self._heart.steps_here else nullcontext():
                item = next(loaded, None)
            if item is None:
                return
            after, share, batch = item
            self._take(after, share)
            yield batch

    def _take(self, after: Position, share: Share) -> None:
        self._data_epoch, self._position = self._position.epoch, after
        self._taken += share.ids
        self._taken_total += share.total
        self.batch_weight = share.weight

    def _beat_step(self, samples: int | None) -> None:
        self._heart.step, self._heart.steps_here = self.step, self._heart.steps_here + 1
        self._heart.samples += self._taken_total if samples is None else samples * self.world_size
        self._heart.phase = "train"
        self._heart.beat()

    def _climb(self, rung: int) -> None:
        """Tell the agent how much of the library is used. Without checkpoints rung 1 is all that holds."""
        if self._link is not None and self._checkpoints is not None and rung > self._rung:
            self._rung = rung
            self._link.send(FromRank(rung=rung))

    def _save(self) -> None:
        assert self._checkpoints is not None
        data = None
        if self._data is not None:
            at = self._position
            data = {
                "epoch": at.epoch,
                "offset": at.offset,
                "samples": self._data.samples,
                "seed": self._data.seed,
            }
        with self.phase("checkpoint"):
            self._checkpoints.save(self.step, data)

    def _obey_pause(self, link: agentlink.AgentLink) -> None:
        """Wait to be told where to stop; go on until there; save, and stay."""
        stop_at = link.stop_at
        if stop_at is None:
            with self.phase("paused"):
                link.send(FromRank(paused=self.step))
                stop_at = link.wait_for_stop_at()
        if stop_at is not None and self.step >= stop_at:
            if self._checkpoints is not None:
                self._save()
                self._checkpoints.wait()
            link.send(FromRank(drained=self.step))
            with self.phase("paused"):
                _wait_to_be_killed()

    def _note_failure(self, report: Callable[..., Any], *error: Any) -> None:
        """An excepthook: an uncaught exception is about to end the script."""
        self._failed = True
        report(*error)

    def _at_exit(self) -> None:
        """End with the script's own exit code."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._link is not None:
            self._link.close()
        if self._failed:
            seconds = 0.0  # peers would not come
        elif self._link is not None and not self._heart.script_has_ended:
            seconds = 1.0  # not marked by the shim: maybe a sys.exit(3), while peers wait in a collective
        else:
            seconds = 10.0
        self._world.leave(seconds)


def _plan_without_operator(world: World, directory: str | Path | None, every_steps: int | None) -> RankPlan:
    epoch, checkpoint = Epoch(0, 0, 0), None
    if directory is not None:
        path = Path(directory).absolute()
        epoch = world.from_rank_0(lambda: next_epoch(path))
        checkpoint = CheckpointConfig(str(path), every_steps)
    return RankPlan(str(epoch), (), False, checkpoint, Resume.LATEST, None, job="", job_uid="")


def _resume_position(saved: dict[str, int] | None, plan: DataPlan, current: Position) -> Position:
    """Where batches() begins. Raises ValueError if the checkpoint was of other data."""
    if saved is None:
        return current
    for what, now in (("samples", plan.samples), ("seed", plan.seed)):
        if saved[what] != now:
            raise ValueError(
                f"the checkpoint was made with {what} = {saved[what]}, but batches() now has {now}: samples "
                "could not be used exactly once. Use the same data, or resume.policy Never to begin anew."
            )
    return max(current, Position(saved["epoch"], saved["offset"]))


def _wait_to_be_killed() -> None:
    while True:
        time.sleep(3600)
