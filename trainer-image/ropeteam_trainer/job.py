"""The public face of the library: init, wrap, report, phase, restore, batches.

    job = ropeteam_trainer.init()                                  # feature level 1
    model, optimizer = job.wrap(model, optimizer)                  # level 4: applies spec.strategy
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

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.local import PHASES, FromRank
from ropeteam_trainer.contract.strategy import Batch, Strategy, StrategyError, TensorSplit
from ropeteam_trainer.data import batches as loading
from ropeteam_trainer.data.decisions.plan import DataPlan
from ropeteam_trainer.data.feed import BatchRequest, Feed
from ropeteam_trainer.finalize import End
from ropeteam_trainer.rank import agentlink
from ropeteam_trainer.rank.trace import Trace
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.parameterserver import discovery

if TYPE_CHECKING:
    from ropeteam_trainer.strategies.parameterserver.role_server import Serving
    from ropeteam_trainer.strategies.parameterserver.role_worker import Training
    from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped

_NO_CHECKPOINT = "ropeteam: restore() saves and restores nothing; set spec.checkpoint in the manifest"


class Job:
    """One rank's view of its training job. Created by init() (joining.py)."""

    def __init__(
        self, world: World, plan: RankPlan, environ: Mapping[str, str], here: discovery.Place | None = None
    ) -> None:
        here = here or discovery.Place(world.rank, world.size, 0)
        self.rank, self.world_size, self.device = here.rank, here.workers, world.device
        self.step = 0
        """Steps done, also in former worlds."""
        self.dp_rank, self.dp_size = here.rank, here.workers
        """Data-parallel rank and world size: ranks that split one model work on the same part of a batch."""
        self._world, self._plan = world, plan
        self._link = agentlink.connect(environ, here.rank)
        self._heart = agentlink.HeartbeatWriter(environ.get(config.RANK_PAGE))
        trace = environ.get(config.TRACE)
        self._trace = Trace(trace, here.rank, plan.epoch) if trace else None
        saves = plan.checkpoint is not None and here.saves
        self._checkpoints = Checkpoints(plan, world, self._link) if saves else DisabledCheckpoints()
        self._strategy = plan.strategy
        self._here = here
        self._wrapped: Wrapped | None = None
        self._training: Training | None = None
        self._serving: Serving | None = None
        self._save_due = False  # a checkpoint is due, and waits until all ranks have the same weights
        self._feature_level = 1
        self._total_steps: int | None = None
        """Computed by batches(), or given to report()."""
        self._feed = Feed(world)
        self._model: Module | None = None
        served = plan.strategy is not None and plan.strategy.servers
        self._end = End(
            world, self._heart, DisabledCheckpoints() if served else self._checkpoints, self._save_last_step
        )

    @property
    def batch_weight(self) -> float:
        """Multiply the last batch's mean loss by this: then the mean of gradients over ranks is exact."""
        return self._feed.weight

    @property
    def global_batch(self) -> int | None:
        """Samples per step of all ranks together, if spec.strategy.batch sets it; it overrides batches()."""
        return self._strategy.batch.global_samples if self._strategy else None

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
        from ropeteam_trainer.strategies.wrap import LoopValues, wrap

        if self._wrapped is not None:
            raise StrategyError("wrap() was called twice; one model can be wrapped")
        progress = LoopValues(lambda: self.batch_weight, lambda: self.step)
        strategy = self._strategy or Strategy()
        if strategy.servers:
            return self._wrap_served(model, optimizer, strategy, progress, loss)
        self._wrapped = wrap(model, optimizer, strategy, self._world, progress, loss, tensor_plan)
        grid = self._wrapped.layout
        self.dp_rank, self.dp_size = grid.dp_rank(self.rank), grid.dp_size
        return self._wrapped.model, self._wrapped.optimizer

    def _wrap_served(
        self, model: Module, optimizer: Optimizer, strategy: Strategy, progress: LoopValues, loss: Any
    ) -> tuple[Module, Optimizer]:
        from ropeteam_trainer.strategies.parameterserver.role_server import Serving
        from ropeteam_trainer.strategies.parameterserver.role_worker import Training

        servers = discovery.Discovery(self._here, self._plan, self._link, self._heart)
        if self._here.server is not None:
            self._serving = Serving(self._here, servers, strategy, discovery.memory(os.environ))
            model.register_forward_pre_hook(lambda *_: self._serve())
            return self._serving.wrap(model, optimizer)
        self._training = Training(self._here, servers, self._feed.skip)
        self._wrapped = self._training.wrap(model, optimizer, strategy, self.device, progress, loss)
        return self._wrapped.model, self._wrapped.optimizer

    def _serve(self) -> None:
        """Run the server loop instead of the training loop, on a parameter server. The script ends here."""
        if self._serving is not None:
            self._serving.serve(self._checkpoints, self._link, self._heart)

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale gradients so that their norm is at most `max_norm`, and return the norm that they had.

        After backward(). Correct under every strategy; torch's is not (loss scales, pipelines).
        """
        if self._wrapped is None:
            raise StrategyError("clip_grad_norm() needs a model from wrap()")
        return self._wrapped.clip_grad_norm(max_norm)

    def report(self, *, loss: Any = None, samples: int | None = None, total_steps: int | None = None) -> None:
        """Report one finished step, after optimizer.step(). Call it once per step, at its end.

        loss: number or tensor of one element; read asynchronously, about once a second.
        samples: number that this rank used; not needed with batches(). total_steps: for the progress shown to
        users.
        """
        self._check_strategy()
        self._serve()
        self.step = self._training.clock if self._training else self.step + 1
        self._feed.step_is_done()
        self._report_step(samples)
        loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._link.offer_loss(loss)
        self._total_steps = self._total_steps if total_steps is None else total_steps
        self._link.offer_total_steps(self._total_steps)
        if self._trace is not None:
            self._trace.step(
                self.step, self._feed.epoch, self._feed.taken, None if loss is None else float(loss)
            )
        self._feed.forget_taken()
        if self._training is not None:
            self._training.tell(self._feed.state())
        self._save_due |= self._checkpoints.due(self.step)
        if self._save_due and (self._wrapped is None or self._wrapped.in_sync()):
            self._save()
        if self._link.paused:
            self._apply_pause()

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
        self._report_feature_level(2)
        if self._link.connected and self._plan.checkpoint is None and self.rank == 0:
            print(_NO_CHECKPOINT, file=sys.stderr, flush=True)
        self._model = model if isinstance(model, Module) else None
        if self._serving is not None:
            self._serving.keep(extra)
            return 0
        if self._training is not None:
            return self._resume_at(*self._training.restore(extra))
        objects = {"model": model, "optimizer": optimizer, **extra}
        optional: Mapping[str, Any] = {}
        own: Mapping[str, Any] = {}
        if self._wrapped is not None:
            optional, own = self._wrapped.extra, self._wrapped.own
            if model is self._wrapped.model:
                objects["model"] = self._wrapped.parts
        given = {name: obj for name, obj in objects.items() if obj is not None}
        self._checkpoints.register(given, optional, own)
        found = self._checkpoints.restore(self._heart)
        return self._resume_at(found.step, found.data) if found is not None else 0

    def _resume_at(self, step: int, data: dict[str, int] | None) -> int:
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
        Continues at the position of the restored checkpoint. Raises ValueError if data or seed are not those
        of the checkpoint, or not the same on all ranks.
        """
        self._check_strategy()
        self._report_feature_level(3)
        self._serve()
        spec = self._strategy.batch if self._strategy else Batch()
        prefetch, balance = spec.prefetch or prefetch, spec.balance or balance
        loading.most_ahead(workers, prefetch)
        plan = DataPlan(len(dataset), spec.global_samples or global_batch, seed)
        model = self._balanced_model() if balance else None
        requested = BatchRequest(dataset, plan, epochs, workers, prefetch, balance, model, collate)
        self._total_steps = self.step + self._feed.left(requested)
        return self._feed.batches(requested, self.dp_rank, self.dp_size, self._loading)

    def _loading(self) -> AbstractContextManager[None]:
        return self.phase("data") if self._heart.steps_here else nullcontext()

    def _balanced_model(self) -> Module | None:
        if self._wrapped is None:
            return self._model
        if self._training or self._wrapped.layout.tensor * self._wrapped.layout.pipeline > 1:
            raise StrategyError(
                "batches(balance=True) works with replicate and shard, not with tensor, pipeline or "
                "parameter servers"
            )
        return self._wrapped.parts[0]

    def _check_strategy(self) -> None:
        if self._strategy is not None and self._wrapped is None and self._serving is None:
            raise StrategyError(
                "spec.strategy is given, but the script does not apply it: call "
                "model, optimizer = job.wrap(model, optimizer) before restore() and the loop"
            )

    def _report_step(self, samples: int | None) -> None:
        self._heart.step, self._heart.steps_here = self.step, self._heart.steps_here + 1
        self._heart.samples += self._feed.total if samples is None else samples * self.dp_size
        self._heart.phase = "train"
        self._heart.write()

    def _report_feature_level(self, level: int) -> None:
        """Report to the agent how much of the library is used. Without checkpoints level 1 at most."""
        if self._plan.checkpoint is not None and level > self._feature_level:
            self._feature_level = level
            self._link.send(FromRank(feature_level=level))

    def _save(self, *, report: bool = True) -> None:
        self._save_due = False
        with self.phase("checkpoint"):
            self._checkpoints.save(self.step, self._feed.state(), report=report)

    def _apply_pause(self) -> None:
        """Wait for the step to stop at; train up to it; save, and stay."""
        link = self._link
        stop_at = link.stop_at
        if stop_at is None:
            with self.phase("paused"):
                link.send(FromRank(paused=self.step))
                stop_at = link.wait_for_stop_at()
        if stop_at is not None and self.step >= stop_at:
            if self._checkpoints.is_unsaved(self.step):
                self._save_last_step(report=True)
            self._checkpoints.wait()
            link.send(FromRank(drained=self.step))
            with self.phase("paused"):
                agentlink.wait_to_be_killed()

    def _save_last_step(self, report: bool) -> None:
        if self._wrapped is not None:
            self._wrapped.synchronize()
        self._save(report=report)

    def _at_exit(self) -> None:
        """Release everything, and exit with the script's own exit code."""
        self._feed.close()
        if self._training is not None and not self._end.failed:
            self._training.leave()
            self._link.send(FromRank(left=True))
        self._end.script_is_over()
        self._model = self._wrapped = None  # they keep the process group alive
        self._checkpoints.close()
        self._link.close()
        if self._end.failed:
            seconds = 0.0  # peers would not come
        elif self._link.connected and not self._heart.script_has_ended:
            seconds = 1.0  # not marked by the shim: maybe a sys.exit(3), while peers wait in a collective
        else:
            seconds = 10.0
        self._world.leave(seconds)
