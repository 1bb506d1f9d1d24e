"""Interface of a rank's role in its job, and what init() has made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints, Restored
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.strategy import StrategyError, TensorSplit
from ropeteam_trainer.data.feed import Feed
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.parameterserver.discovery import RankAssignment

if TYPE_CHECKING:
    from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped

Loss = Callable[..., torch.Tensor]
TensorPlan = Callable[[TensorSplit], Mapping[str, Any]]


@dataclass(frozen=True)
class Session:
    """Everything that init() has made for this rank."""

    world: World
    plan: RankPlan
    place: RankAssignment
    link: AgentLink | NoAgent
    heart: HeartbeatWriter
    checkpoints: Checkpoints | DisabledCheckpoints
    feed: Feed


class RankRole(Protocol):
    """Job calls these in the training thread, in the order of the script's own calls."""

    dp_rank: int
    dp_size: int

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        progress: LoopValues,
        loss: Loss | None,
        tensor_plan: TensorPlan | None,
    ) -> tuple[Module, Optimizer]: ...

    def restore(self, model: Any, optimizer: Any, extra: Mapping[str, Any]) -> Restored | None:
        """Resume, and save these objects from now on. None: a fresh start."""

    def enter_loop(self, call: str) -> None:
        """Prepare for a step or a batch: the script has called `call`. Raises StrategyError if it should have
        called wrap() before. A parameter server serves here, and does not return."""

    def next_step(self, step: int) -> int:
        """Number of steps done, where `step` were done before the current one."""

    def after_step(self, step: int) -> None:
        """Save or send what is due after a step that has been reported."""

    def save_now(self, step: int, report: bool = True) -> None:
        """Save this step whether it is due or not. report: whether the agent is notified now."""

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor: ...

    def balanced_model(self) -> Module | None:
        """Model with which batches(balance=True) measures speed. Raises StrategyError if that cannot be."""

    def leave(self) -> None:
        """Leave the job, at the regular end of the script."""

    def release(self) -> None:
        """Release the model, which keeps the process group alive."""


def must_be_new(is_wrapped: bool) -> None:
    if is_wrapped:
        raise StrategyError("wrap() was called twice; one model can be wrapped")


def clipped(wrapped: Wrapped | None, max_norm: float) -> torch.Tensor:
    if wrapped is None:
        raise StrategyError("clip_grad_norm() needs a model from wrap()")
    return wrapped.clip_grad_norm(max_norm)


def not_wrapped() -> StrategyError:
    return StrategyError(
        "spec.strategy is given, but the script does not apply it: call "
        "model, optimizer = job.wrap(model, optimizer) before restore() and the loop"
    )


def not_balanced() -> StrategyError:
    return StrategyError(
        "batches(balance=True) works with replicate and shard, not with tensor, pipeline or parameter servers"
    )
