"""Role of a rank that trains with all others by collectives, or alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.saving import Checkpoints, Restored
from ropeteam_trainer.contract.config import STORE_ADDRESS
from ropeteam_trainer.contract.local import FromRank, LiveWorld
from ropeteam_trainer.contract.strategy import Strategy, StrategyError, SyncType
from ropeteam_trainer.data.decisions.plan import Deal
from ropeteam_trainer.data.substitution import UntracedArgument
from ropeteam_trainer.rank.agentlink import AgentLink
from ropeteam_trainer.roles import role
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan
from ropeteam_trainer.system.notice import notice

if TYPE_CHECKING:
    from ropeteam_trainer.strategies.exact.members import WorldsOfJob
    from ropeteam_trainer.strategies.exact.step import ExactStep
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
        self._position: dict[str, int] | None = None
        """Data position of the last step: a script may take a batch after that, and end without using it."""
        self._are_checked = False
        """Whether arguments of model() were looked at."""
        self._save_due = False
        """Whether a checkpoint is due, but waits until all ranks have the same weights (local SGD), or can
        save: while some are lost, or until all know what they have left out."""

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
        progress = replace(progress, worlds=self._worlds())
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
        if isinstance(self._checkpoints, Checkpoints) and self._recovering:
            self._checkpoints.mates = self._recovering.mates
            self._recovering.callbacks.waiting = self._session.heart.waiting
        exact, world, heart = self._recovering, self._session.world, self._session.heart
        if world.is_apart and world.rank in self._session.plan.started:
            return self._joined()
        if exact is None:
            return self._checkpoints.restore(heart)
        assert isinstance(self._checkpoints, Checkpoints)
        found = self._checkpoints.restore(heart, world.of_mates(exact.mates) if world.is_apart else world)
        if not world.is_apart:
            self._checkpoints.form_group()  # while all ranks are here
        self._can_regroup()
        return found

    def enter_loop(self, _: str) -> None:
        """Raise StrategyError if spec.strategy is set and wrap() was not called."""
        if self._strategy is not None and self._wrapped is None:
            raise role.not_wrapped_error()

    def steps_done_after(self, step: int) -> int:
        return step + 1

    def after_step(self, step: int) -> None:
        """Save if a checkpoint is due; under local SGD at the next step after which all ranks have the same
        weights. While ranks are lost, if the lowest of the others has demanded it, in a step that no lost
        rank can have saved."""
        self._position = self._session.feed.state()
        exact = self._recovering
        due = self._checkpoints.due(step, exact.decisions.some_rank_is_late if exact else None)
        self._save_due |= due
        if exact and not self.has_all_ranks:
            if exact.decisions.some_rank_is_late and exact.presence.saves_alone(exact.done):
                self._save(step, report=True)
        elif self._save_due and (self._wrapped is None or self._wrapped.in_sync()):
            self._save(step, report=True)

    def save_now(self, step: int, report: bool = True) -> None:
        """As RankRole.save_now(). Weights that differ between ranks are averaged first."""
        if self._can_save and self._checkpoints.is_unsaved(step):
            if self._wrapped is not None:
                self._wrapped.synchronize()
            self._save(step, report)

    @property
    def _can_save(self) -> bool:
        exact = self._recovering
        return self.has_all_ranks or (exact is not None and exact.presence.saves_alone(exact.done))

    def _save(self, step: int, report: bool) -> None:
        """Save a checkpoint; all ranks have the same weights. If some are lost the lowest of the others saves
        alone."""
        self._save_due = False
        exact, checkpoints = self._recovering, self._checkpoints
        data = self._position or self._session.feed.state()
        with self._session.heart.during("checkpoint"):
            if self.has_all_ranks or exact is None:
                checkpoints.save(step, data, report=report)
                return
            assert isinstance(checkpoints, Checkpoints)
            if exact.presence.is_lowest:
                checkpoints.save(step, data, report=report, alone=True)
            else:
                checkpoints.leave_to_another(step)

    # ---- replicas that take the places of lost ones

    def _worlds(self) -> WorldsOfJob | None:
        """None: a lost replica ends this rank's world."""
        from ropeteam_trainer.strategies.exact.members import WorldsOfJob, world_of

        session, strategy = self._session, self._strategy
        is_exact = strategy is not None and strategy.sync.type is SyncType.EXACT
        saves = session.plan.checkpoint is not None
        is_job = isinstance(session.link, AgentLink) and STORE_ADDRESS in os.environ
        if strategy is None or not is_exact or not saves or not is_job:
            return None
        if strategy.replica_ranks != session.plan.replica_ranks:
            return None  # the coordinator would take its ranks for lost one by one
        assert isinstance(session.link, AgentLink)
        return WorldsOfJob(session.link, world_of(session.plan))

    @property
    def _recovering(self) -> ExactStep | None:
        """The steps of this rank, if it can continue without others."""
        exact = self._wrapped.exact if self._wrapped else None
        return exact if exact and exact.recovers else None

    def _can_regroup(self) -> None:
        """Report that this rank can continue without others from now on."""
        exact, checkpoints = self._recovering, self._checkpoints
        assert exact is not None
        assert isinstance(checkpoints, Checkpoints)
        exact.callbacks.is_late = self._demands_save
        exact.callbacks.check_arguments = self._check_arguments
        self._session.link.send(FromRank(regroups=True))

    def _demands_save(self) -> bool:
        """Whether all are to save after this step, because of this rank's clock, or because nobody commits
        what it has saved for all. While ranks are lost only the lowest of the others demands it, also for
        what is due by steps, or was not committed; and not before its last save for all is committed. Without
        the agent that commits, checkpoints would fill the volume."""
        exact, checkpoints = self._recovering, self._checkpoints
        assert exact is not None
        assert isinstance(checkpoints, Checkpoints)
        is_uncommitted = checkpoints.is_uncommitted  # in each step: newest_committed
        if self.has_all_ranks:
            return checkpoints.is_late or checkpoints.is_orphaned
        due = self._save_due or checkpoints.is_late or is_uncommitted
        return due and exact.presence.is_lowest and checkpoints.has_committed

    def _check_arguments(self, batch: Iterable[Any]) -> None:
        """Report that this rank cannot continue without others, if it could not compute their samples. Only
        the first batch is looked at: on a GPU that waits for copies."""
        if self._are_checked:
            return
        self._are_checked = True
        try:
            self._session.feed.check_arguments(tuple(batch))
        except UntracedArgument as error:
            worlds = self._worlds()
            if worlds and worlds.first.begins_alone(self._session.world.rank):
                raise StrategyError(
                    "spec.elastic: a start with fewer workers needs ranks that can compute the samples of "
                    f"others, and here {error}; remove spec.elastic"
                ) from error
            self._session.link.send(FromRank(regroups=False))
            notice(f"if a rank is lost, all are restarted from the newest checkpoint, because {error}")

    @property
    def has_all_ranks(self) -> bool:
        """As RankRole.has_all_ranks."""
        exact = self._wrapped.exact if self._wrapped else None
        return exact is None or (exact.presence.is_whole and not self._session.world.is_apart)

    def end_step(self, step: int, stops: bool = False) -> None:
        """As RankRole.end_step(): admit new replicas, if all have chosen this step. If all stop, those that
        follow stop without having joined."""
        exact = self._wrapped.exact if self._wrapped else None
        arrival = exact.decisions.admission.due if exact else None
        if exact is not None and exact.follows:
            if not stops:
                self._end_following(exact)
            return
        if exact is None or arrival is None or (stops and arrival.has_caught_up):
            return
        assert isinstance(self._checkpoints, Checkpoints)
        checkpoints, data = self._checkpoints, self._session.feed.state()
        with self._session.heart.during("restore"):
            state = partial(checkpoints.captured, step, data, {"exchanges": exact.done})
            if not exact.admit(arrival, state):
                return
            checkpoints.join_again(arrival.world)
            self._join_group(arrival.world)

    def _joined(self) -> Restored:
        """Join replicas that train already, with their state. Returns their position."""
        session, worlds = self._session, self._worlds()
        assert worlds is not None
        assert self._wrapped is not None
        assert self._wrapped.exact is not None
        assert isinstance(self._checkpoints, Checkpoints)
        with session.heart.during("restore"):
            receive = partial(self._wrapped.exact.admitting.receive_state, alive=session.heart.write)
            found = self._checkpoints.adopt(receive)
            session.feed.join_begun()
            self._wrapped.exact.join(worlds.first, found.more["exchanges"])
            if not self.follows:
                self._become_member(worlds.first)
        return Restored(found.step, found.data)

    def _end_following(self, exact: ExactStep) -> None:
        """Be a member, if the others have admitted this rank, which has followed them."""
        worlds = self._worlds()
        assert worlds is not None
        if exact.end_following(worlds.first):
            with self._session.heart.during("restore"):
                self._become_member(worlds.first)

    def _become_member(self, world: LiveWorld) -> None:
        self._save_due = False  # the others know better
        self._join_group(world)
        self._can_regroup()

    @property
    def follows(self) -> bool:
        """As RankRole.follows."""
        exact = self._wrapped.exact if self._wrapped else None
        return exact is not None and exact.follows

    def _join_group(self, world: LiveWorld) -> None:
        """Form the process group of this world with all ranks, unless one of them is absent or lost. The next
        step is saved if one of them has left out a save, if the last one is neither committed nor on its way,
        or where they could not agree on that."""
        link, ranks, checkpoints = self._session.link, self._session.world, self._checkpoints
        assert isinstance(checkpoints, Checkpoints)
        is_due, self._save_due = self._save_due, True
        if world.absent:
            return
        mine = int(is_due), checkpoints.last, checkpoints.newest_committed, checkpoints.on_its_way
        agreed: list[list[int]] = []

        def is_over() -> bool:
            return bool(link.newest.lost) or link.newest.live_world not in (None, world)

        def prepare_saves() -> None:
            checkpoints.form_group()
            if not is_over():
                agreed.append(ranks.highest(mine))

        ranks.join_again(world, checkpoints.mates, is_over, prepare_saves)
        for some_are_due, last, committed, on_its_way in agreed:
            self._save_due = bool(some_are_due) or last > max(committed, on_its_way)
            checkpoints.note_saves_of_others(last, committed)

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
        if self._wrapped is not None and self._wrapped.exact:
            self._wrapped.exact.admitting.end(self._wrapped.exact.done)

    def release_model(self) -> None:
        if self._wrapped is not None:
            self._wrapped.close()
        self._model = self._wrapped = None
