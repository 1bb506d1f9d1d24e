"""The public face of the library: init, wrap, report, phase, restore, batches.

    job = ropeteam_trainer.init()                                  # feature level 1
    model, optimizer = job.wrap(model, optimizer)                  # applies spec.strategy
    step = job.restore(model=model, optimizer=optimizer)           # level 2: after wrapping, before the loop
    for batch in job.batches(data, global_batch=96, epochs=3):     # level 3
        loss = loss_of(model, batch)
        (loss * job.batch_weight).backward()
        ...
        job.report(loss=loss)

All ranks make the same calls in the same order. Order inside report(): count the step, save a checkpoint if
due, then apply a pause. Guarantees: no network call and no device synchronisation in the training thread;
without the operator all of it does nothing, or applies the arguments of init(). Limit: one data set per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import PHASES, FromRank
from ropeteam_trainer.contract.strategy import Batch, StrategyError, TensorSplit
from ropeteam_trainer.data import batches as loading
from ropeteam_trainer.data.decisions.plan import DataPlan
from ropeteam_trainer.data.feed import BatchRequest
from ropeteam_trainer.rank import agentlink
from ropeteam_trainer.rank.trace import Trace
from ropeteam_trainer.roles.end import ScriptEnd
from ropeteam_trainer.roles.role import RankRole, Session
from ropeteam_trainer.system.notice import notice

_NO_CHECKPOINT = "job.restore() saves and restores nothing; set spec.checkpoint in the manifest"


class Job:
    """One rank's view of its training job. Created by init() (joining.py)."""

    def __init__(self, session: Session, role: RankRole, trace: Trace | None = None) -> None:
        assignment = session.assignment
        self.rank, self.world_size, self.device = assignment.rank, assignment.workers, session.world.device
        self.step = 0
        """Steps done by the job, also before this process."""
        self.dp_rank, self.dp_size = role.dp_rank, role.dp_size
        """Data-parallel rank and world size: ranks that split one model work on the same part of a batch."""
        self._role, self._trace = role, trace
        self._world, self._plan, self._feed = session.world, session.plan, session.feed
        self._link, self._heart, self._checkpoints = session.link, session.heart, session.checkpoints
        self._feature_level = FeatureLevel.STEPS
        self._total_steps: int | None = None
        """Number of steps of the whole training, computed by batches() or given to report(). None:
        unknown."""
        saved_at_end = (
            DisabledCheckpoints() if assignment.servers else self._checkpoints
        )  # servers save in their loop
        self._end = ScriptEnd(
            self._world, self._heart, saved_at_end, role.save_now, lambda: role.has_all_ranks
        )

    @property
    def batch_weight(self) -> float:
        """Multiply the last batch's mean loss by this: then the mean of gradients over ranks is exact."""
        return self._feed.weight

    @property
    def global_batch(self) -> int | None:
        """Samples per step of all ranks together, if spec.strategy.batch sets it; it overrides batches()."""
        return self._plan.strategy.batch.global_samples if self._plan.strategy else None

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        tensor_plan: Callable[[TensorSplit], Mapping[str, Any]] | None = None,
    ) -> tuple[Module, Optimizer]:
        """Apply spec.strategy to the model; without it, full replicas whose gradients are averaged.

        Call it once, on the plain model, before restore(), batches() and learning-rate schedulers. All ranks
        get rank 0's weights. The loop stays as it is and uses the returned model and optimizer.
        loss: (output, target) -> mean loss, one number. With it, model(x, y) returns loss(output of x, y);
        pipelines need it, and micro-batches where the model itself does not return its loss. Keywords go to
        the model, except in pipelines.
        tensor_plan: how tensor parallelism splits layers, {layer name: torch's ParallelStyle}; default: the
        model's method of that name. Raises StrategyError, with the reason and the alternatives.
        """
        from ropeteam_trainer.strategies.wrap import LoopValues

        feed = self._feed
        progress = LoopValues(
            lambda: self.batch_weight, lambda: self.step, lambda: feed.leaves, feed.other_leaves
        )
        wrapped = self._role.wrap(model, optimizer, progress, loss, tensor_plan)
        self.dp_rank, self.dp_size = self._role.dp_rank, self._role.dp_size
        return wrapped

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale gradients so that their norm is at most `max_norm`, and return the norm that they had.

        After backward(). Correct under every strategy; torch's is not (loss scales, pipelines).
        """
        return self._role.clip_grad_norm(max_norm)

    def report(self, *, loss: Any = None, samples: int | None = None, total_steps: int | None = None) -> None:
        """Report one finished step, after optimizer.step(). Call it once per step, at its end.

        loss: number or tensor of one element; read asynchronously, about once a second.
        samples: number that this rank used; not needed with batches(). total_steps: for the progress shown to
        users.
        """
        self._role.enter_loop("job.report()")
        self.step = self._role.steps_done_after(self.step)
        self._feed.end_step()
        self._report_step(samples)
        loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._link.offer_loss(loss)
        self._total_steps = self._total_steps if total_steps is None else total_steps
        self._link.offer_total_steps(self._total_steps)
        if self._trace is not None:
            self._trace.write_step(
                self.step, self._feed.epoch, self._feed.taken, None if loss is None else float(loss)
            )
        self._feed.reset_taken()
        self._role.after_step(self.step)
        if self._link.paused:
            self._take_part_in_drain()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report the script's current phase, for instance `with job.phase("eval"):`. Suspends hang detection.

        name: "eval", "checkpoint", "restore"; "train" and "data" keep hang detection on. Raises ValueError
        for others.
        """
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}; use one of {', '.join(PHASES[1:])}")
        with self._heart.during(name):
            yield

    def restore(self, *, model: Any = None, optimizer: Any = None, **extra: Any) -> int:
        """Resume from the newest valid checkpoint: load it into the given objects, and save them from now on.

        Call it last before the loop, on the wrapped model (or a list of modules, if this rank has several
        stages of a pipeline, with their names in the full model). Checkpoints are resharded: model and
        optimizer load the checkpoint of any other layout and number of ranks. extra: more modules and
        optimizers, and objects with state_dict() and load_state_dict(), of plain values and tensors, the same
        on all ranks (a scheduler, a scaler). Restores the random generators and the position of batches()
        too. Returns the number of steps done: 0 for a fresh start. Raises CheckpointNotFound if `resume`
        names a step that does not exist, KeyError if the model has changed.
        """
        self._report_feature_level(FeatureLevel.CHECKPOINTS)
        if self._link.connected and self._plan.checkpoint is None and self.rank == 0:
            notice(_NO_CHECKPOINT)
        found = self._role.restore(model, optimizer, extra)
        if found is None:
            return 0
        step = self._resume_at(found.step, found.data)
        if self.rank in self._plan.started and self._link.paused:  # the ranks that it has joined wait now
            self._take_part_in_drain()
        return step

    def _resume_at(self, step: int, data: dict[str, int] | None) -> int:
        """Continue after `step`, at this position in the data (None: their start). Returns the step."""
        self.step = self._heart.step = step
        self._feed.restore(data)
        self._heart.write()
        return step

    def batches(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        workers: int = 0,
        prefetch: int = 0,
        balance: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """This rank's part of each global batch, until `epochs` data epochs (counted from the job's start)
        are done. The number of batches is the total in progress displays, unless report() is given one.

        dataset: a tensor, a sequence, or a map-style Dataset, the same on all ranks. global_batch: samples
        per step of all ranks together, whatever their number; the last batch of an epoch may be smaller.
        Parts may be unequal: use `batch_weight`. workers: processes that load ahead. prefetch: batches that a
        thread loads ahead instead. spec.strategy.batch overrides global_batch, prefetch and balance.
        collate: default torch's default_collate. balance: parts in proportion to measured speed, measured
        again every 20 batches; the model must have gone through wrap() or restore(), in
        DistributedDataParallel or fully_shard. Each call, and so a resumed job, begins with equal parts.
        Continues at the position of the restored checkpoint. Raises ValueError for an empty dataset, for
        prefetch together with workers, and if data or seed are not those of the checkpoint, or (with the
        first batch) not the same on all ranks; StrategyError if wrap() is missing, or does not allow balance.
        """
        self._report_feature_level(FeatureLevel.DATA)
        self._role.enter_loop("job.batches()")
        spec = self._plan.strategy.batch if self._plan.strategy else Batch()
        prefetch, balance = spec.prefetch or prefetch, spec.balance or balance
        loading.check_loading(workers, prefetch)
        plan = DataPlan(len(dataset), spec.global_samples or global_batch, seed)
        if balance and self._role.deal is not None:
            raise StrategyError(
                "job.batches(balance=True) would deal parts of micro-batches, and sync Exact deals whole "
                "ones; leave balance out"
            )
        model = self._role.measured_model() if balance else None
        deal = self._role.deal
        requested = BatchRequest(dataset, plan, epochs, workers, prefetch, deal, balance, model, collate)
        self._total_steps = self.step + self._feed.batches_left(requested)
        return self._feed.batches(
            requested, self.dp_rank, self.dp_size, self._loading_phase, lambda: self._role.end_step(self.step)
        )

    def _loading_phase(self) -> AbstractContextManager[None]:
        """Context in which the feed loads a batch: phase "data", which hang detection watches, but not before
        the first step of this process."""
        return self.phase("data") if self._heart.steps_here else nullcontext()

    def _report_step(self, samples: int | None) -> None:
        """Write the heartbeat of the step. samples: of this rank; None: those that batches() has counted."""
        self._heart.step = self.step
        if not self._role.follows:  # else it makes steps of the others, and has joined none
            self._heart.steps_here += 1
        self._heart.samples += self._feed.total if samples is None else samples * self.dp_size
        self._heart.phase = "train"
        self._heart.write()

    def _report_feature_level(self, level: FeatureLevel) -> None:
        """Report a higher feature level to the agent. Without spec.checkpoint it stays at 1."""
        if self._plan.checkpoint is not None and level > self._feature_level:
            self._feature_level = level
            self._link.send(FromRank(feature_level=level))

    def _take_part_in_drain(self) -> None:
        """Take part in a drain, after each step. Without a step to stop at: report the current step, and wait
        until such a step is fixed or the pause ends. Once the step to stop at is reached: save, report that,
        and wait to be killed; does not return then."""
        link = self._link
        stop_at = link.stop_at
        self._role.end_step(self.step, stops=stop_at is not None and self.step >= stop_at)
        if stop_at is None:
            with self.phase("paused"):
                link.send(FromRank(paused=self.step))
                stop_at = link.wait_for_stop_at()
        if stop_at is not None and self.step >= stop_at:
            self._role.save_now(self.step)
            self._checkpoints.wait()
            link.send(FromRank(drained=self.step))
            with self.phase("paused"):
                agentlink.wait_to_be_killed()

    def _at_exit(self) -> None:
        """Save the last step, then release everything: the exit handler. The script's exit code stays.

        The process group is destroyed last, since the last save needs it.
        """
        self._feed.close()
        if not self._end.failed:
            self._role.leave()
        self._end.save_and_report_last_step()
        has_all_ranks = self._role.has_all_ranks
        self._role.release_model()
        self._checkpoints.close()
        self._link.close()
        if self._end.failed or not has_all_ranks:
            seconds = 0.0  # peers would not come
        elif self._link.connected and not self._heart.script_has_ended:
            seconds = 1.0  # not marked by the shim: maybe a sys.exit(3), while peers wait in a collective
        else:
            seconds = 10.0
        self._world.leave(seconds)
