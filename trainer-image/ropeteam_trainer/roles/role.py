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
from ropeteam_trainer.data.decisions.plan import Deal
from ropeteam_trainer.data.feed import Feed
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.parameterserver.discovery import RankAssignment

if TYPE_CHECKING:
    from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped

Loss = Callable[..., torch.Tensor]
"""(output, target) -> mean loss, one number."""
TensorPlan = Callable[[TensorSplit], Mapping[str, Any]]


@dataclass(frozen=True)
class Session:
    """Everything that init() has created for this rank, before its role."""

    world: World
    plan: RankPlan
    assignment: RankAssignment
    link: AgentLink | NoAgent
    heart: HeartbeatWriter
    checkpoints: Checkpoints | DisabledCheckpoints
    feed: Feed


class RankRole(Protocol):
    """Role of a rank. Job calls these methods in the training thread, in the order of the script's own calls;
    at exit leave(), then release_model()."""

    dp_rank: int
    """Data-parallel rank. Final after wrap()."""
    dp_size: int
    """Data-parallel world size; parameter servers do not count. Final after wrap()."""
    deal: Deal | None
    """This rank's micro-batches under sync Exact. Final after wrap()."""

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        progress: LoopValues,
        loss: Loss | None,
        tensor_plan: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        """Apply spec.strategy, as Job.wrap() describes. Returns the module that the loop calls, and the
        optimizer, which is changed in place. Raises StrategyError, also for a second call."""

    def restore(self, model: Any, optimizer: Any, extra: Mapping[str, Any]) -> Restored | None:
        """Load the newest checkpoint into the objects, in place, and save them from now on. Returns its step
        and data position. None: a fresh start."""

    def enter_loop(self, call: str) -> None:
        """Prepare for a step or a batch: the script has called `call`. Raises StrategyError if it should have
        called wrap() before. A parameter server serves here: it does not return, but raises SystemExit(0)."""

    def steps_done_after(self, step: int) -> int:
        """Steps done, now that the current one is finished; `step` were done before it. More than one more if
        steps were skipped."""

    def after_step(self, step: int) -> None:
        """Save a checkpoint if one is due, or send the parameter servers what they need. `step` was
        reported."""

    def save_now(self, step: int, report: bool = True) -> None:
        """Save this step, due or not, unless it is saved. Called by all ranks together. report: whether the
        agent is notified now."""

    def end_step(self, step: int, stops: bool = False) -> None:
        """End this step: the loop's body has run, and all ranks call this before the next one, or before
        they wait in a drain. May be called twice. stops: whether all stop after this step."""

    @property
    def follows(self) -> bool:
        """Whether this rank is new, and makes the steps of others before it joins them."""

    @property
    def has_all_ranks(self) -> bool:
        """Whether all ranks train, as far as is known. If not, this one must not wait for the others."""

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        """Scale gradients in place so that their norm is at most `max_norm`. Returns the norm that they had.
        Raises StrategyError without wrap()."""

    def measured_model(self) -> Module | None:
        """Model whose speed batches(balance=True) measures. None: restore() was given no module. Raises
        StrategyError if the strategy allows no balancing."""

    def leave(self) -> None:
        """Deregister from the parameter servers, if there are any; let new ranks that follow end too. At the
        end of a script that has not failed."""

    def release_model(self) -> None:
        """Drop the references to the model, which would keep the process group from being destroyed."""


def check_not_wrapped(is_wrapped: bool) -> None:
    """Raise StrategyError for a second call of wrap()."""
    if is_wrapped:
        raise StrategyError(
            "job.wrap() was called twice, and wraps one model only; put several models into one nn.Module"
        )


def clip_wrapped(wrapped: Wrapped | None, max_norm: float) -> torch.Tensor:
    """As RankRole.clip_grad_norm()."""
    if wrapped is None:
        raise StrategyError(
            "job.clip_grad_norm() needs a model from job.wrap(): call model, optimizer = job.wrap(model, "
            "optimizer) before the loop, or use torch's clip_grad_norm_()"
        )
    return wrapped.clip_grad_norm(max_norm)


def not_wrapped_error() -> StrategyError:
    """Error for a script that trains without wrap(), though spec.strategy is set."""
    return StrategyError(
        "spec.strategy is given, but the script does not apply it: call "
        "model, optimizer = job.wrap(model, optimizer) before restore() and the loop"
    )


def not_balanced_error() -> StrategyError:
    """Error for balance with a strategy that does not allow it."""
    return StrategyError(
        "job.batches(balance=True) works with parallelism.replicate and shard only: leave balance out, or "
        "tensor, pipeline and sync ParameterServer out of spec.strategy"
    )
