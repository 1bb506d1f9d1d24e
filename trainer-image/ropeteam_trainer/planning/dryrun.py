"""The Job that init() returns in a dry run for `ropeteam plan`.

Parameters that the script creates from now on are on the meta device, with a shape and no memory; everything
else, its data for instance, is real and on the CPU. wrap() measures, writes the result, and ends the script.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.contract.strategy import Strategy, StrategyError
from ropeteam_trainer.data.feed import Feed
from ropeteam_trainer.job import Job
from ropeteam_trainer.partition.answer import DryRunResult
from ropeteam_trainer.planning import answers
from ropeteam_trainer.planning.measure import join_fake_world, measure_model
from ropeteam_trainer.rank.agentlink import HeartbeatWriter, NoAgent
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.roles.collective import CollectiveRole
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan
from ropeteam_trainer.strategies.parameterserver.discovery import RankAssignment
from ropeteam_trainer.strategies.wrap import LoopValues


def begin_dry_run() -> Job:
    """Start the dry run of this process, which cannot be undone, and return its Job: from now on parameters
    that are created take no memory."""
    text = os.environ.get(config.RANK_PLAN)
    plan = (
        codec.decode(RankPlan, text) if text else RankPlan("", (), False, None, Resume.LATEST, None, "", "")
    )
    world = World(0, int(os.environ.get("WORLD_SIZE", "1")), torch.device("cpu"))
    join_fake_world(world.rank, world.size)
    register_module_parameter_registration_hook(_move_to_meta)
    _MetaMode().__enter__()  # type: ignore[no-untyped-call]
    place, heart = RankAssignment(world.rank, world.size, 0), HeartbeatWriter(None)
    session = Session(world, plan, place, NoAgent(), heart, DisabledCheckpoints(), Feed(world))
    return Job(session, DryRunRole(session))


class DryRunRole(CollectiveRole):
    """Role of a dry run, which ends in wrap(). A script that trains without wrap() ends in its first other
    call. Each method writes the result and raises SystemExit(0)."""

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        _: LoopValues,
        loss: Loss | None,
        tensor_plan: TensorPlan | None,
    ) -> NoReturn:
        del os.environ[config.DRY_RUN]  # optimizers may step now
        strategy, size = self._strategy or Strategy(), self._session.world.size
        try:
            measured = measure_model(model, optimizer, strategy, size, loss, tensor_plan)
        except StrategyError as error:
            answers.write_result_and_exit(DryRunResult(refused=error.args))
        answers.write_result_and_exit(DryRunResult(model=measured))

    def restore(self, *_: Any) -> NoReturn:
        """End the script: it has not called job.wrap() before."""
        answers.write_result_and_exit(DryRunResult(without_wrap="calls job.restore()"))

    def enter_loop(self, call: str) -> NoReturn:
        """End the script: it has not called job.wrap() before `call`."""
        answers.write_result_and_exit(DryRunResult(without_wrap=f"calls {call}"))


def _move_to_meta(_: Module, __: str, parameter: torch.nn.Parameter | None) -> None:
    """Move a parameter to the meta device in place, so that layers which share it still do. A hook of torch
    for every parameter that is registered. Lazy parameters have no shape yet."""
    if parameter is not None and not parameter.is_meta and not _is_lazy(parameter):
        meta = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        torch.utils.swap_tensors(parameter, meta)


def _is_lazy(parameter: Any) -> bool:
    return isinstance(parameter, torch.nn.UninitializedParameter)


_ALLOCATING = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


class _MetaMode(TorchFunctionMode):
    """Mode that keeps tensors on the meta device: `model.to("cuda")` does not move them; dtypes change as
    requested. An allocation that this machine refuses (by default Linux refuses obvious overcommits, even if
    the memory would never be touched) is made on the meta device instead.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in the place of each of its functions."""
        named = kwargs or {}
        if func in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu) and args[0].is_meta:
            dtypes = (each for each in (*args[1:], *named.values()) if isinstance(each, torch.dtype))
            return args[0].to(dtype=next(dtypes, args[0].dtype))
        try:
            return func(*args, **named)
        except RuntimeError as error:
            if func not in _ALLOCATING or "allocate memory" not in str(error):
                raise
            return func(*args, **{**named, "device": "meta"})
