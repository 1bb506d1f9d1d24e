"""Role of a rank that trains with all others by collectives, or alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.saving import Restored
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.data.decisions.plan import Deal
from ropeteam_trainer.roles import role
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan

if TYPE_CHECKING:
    from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped


class CollectiveRole:
    """RankRole of a rank without parameter servers. Before wrap() it is data-parallel with all ranks."""

    def __init__(self, session: Session) -> None:
        self._session, self._strategy = session, session.plan.strategy
        self._checkpoints = session.checkpoints
        self.dp_rank, self.dp_size = session.world.rank, session.world.size
        self.deal: Deal | None = None
        self._wrapped: Wrapped | None = None
        self._model: Module | None = None
        """Module that was given to restore()."""
        self._save_due = False
        """Whether a checkpoint is due, but waits until all ranks have the same weights (local SGD)."""

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        progress: LoopValues,
        loss: Loss | None,
        tensor_plan: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        from ropeteam_trainer.strategies.wrap import wrap  # takes seconds that other scripts do not need

        role.check_not_wrapped(self._wrapped is not None)
        world, strategy = self._session.world, self._strategy or Strategy()
        self._wrapped = wrap(model, optimizer, strategy, world, progress, loss, tensor_plan)
        grid = self._wrapped.layout
        self.dp_rank, self.dp_size = grid.dp_rank(world.rank), grid.dp_size
        self.deal = self._wrapped.deal
        return self._wrapped.model, self._wrapped.optimizer

    def restore(self, model: Any, optimizer: Any, extra: Mapping[str, Any]) -> Restored | None:
        """As RankRole.restore(). After wrap() the strategy's own objects are saved too."""
        self._model = model if isinstance(model, Module) else None
        objects = {"model": model, "optimizer": optimizer, **extra}
        optional: Mapping[str, Any] = {}  # a checkpoint may be without these
        own: Mapping[str, Any] = {}  # different on each rank
        if self._wrapped is not None:
            optional, own = self._wrapped.extra, self._wrapped.own
            if model is self._wrapped.model:
                objects["model"] = self._wrapped.parts
        given = {name: obj for name, obj in objects.items() if obj is not None}
        self._checkpoints.register(given, optional, own)
        return self._checkpoints.restore(self._session.heart)

    def enter_loop(self, _: str) -> None:
        """Raise StrategyError if spec.strategy is set and wrap() was not called."""
        if self._strategy is not None and self._wrapped is None:
            raise role.not_wrapped_error()

    def steps_done_after(self, step: int) -> int:
        return step + 1

    def after_step(self, step: int) -> None:
        """Save if a checkpoint is due; under local SGD at the next step after which all ranks have the same
        weights."""
        self._save_due |= self._checkpoints.due(step)
        if self._save_due and (self._wrapped is None or self._wrapped.in_sync()):
            self._save(step, report=True)

    def save_now(self, step: int, report: bool = True) -> None:
        """As RankRole.save_now(). Weights that differ between ranks are averaged first."""
        if self._checkpoints.is_unsaved(step):
            if self._wrapped is not None:
                self._wrapped.synchronize()
            self._save(step, report)

    def _save(self, step: int, report: bool) -> None:
        """Save a checkpoint; all ranks have the same weights."""
        self._save_due = False
        with self._session.heart.during("checkpoint"):
            self._checkpoints.save(step, self._session.feed.state(), report=report)

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        return role.clip_wrapped(self._wrapped, max_norm)

    def measured_model(self) -> Module | None:
        """As RankRole.measured_model(): the wrapped model, or without wrap() that of restore()."""
        if self._wrapped is None:
            return self._model
        if self._wrapped.layout.tensor * self._wrapped.layout.pipeline > 1:
            raise role.not_balanced_error()
        return self._wrapped.parts[0]

    def leave(self) -> None:
        pass

    def release_model(self) -> None:
        if self._wrapped is not None:
            self._wrapped.close()
        self._model = self._wrapped = None
