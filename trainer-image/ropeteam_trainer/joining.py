"""init(): a rank's world and its configuration: from its agent, or from torchrun and the script."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints, next_world_id
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.data.feed import Feed
from ropeteam_trainer.job import Job
from ropeteam_trainer.rank import agentlink
from ropeteam_trainer.rank.exchange import CONTRACT
from ropeteam_trainer.rank.trace import Trace
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.roles.collective import CollectiveRole
from ropeteam_trainer.roles.end import call_before_group_is_destroyed
from ropeteam_trainer.roles.role import RankRole, Session
from ropeteam_trainer.strategies.parameterserver import discovery

_job: Job | None = None


def init(
    *,
    device: str | torch.device | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every_steps: int | None = None,
    strategy: Strategy | None = None,
    timeout_seconds: int = 600,
) -> Job:
    """Join the world of the environment (torchrun's variables), connect to the agent, if there is one, and
    return this rank's Job. A second call returns the same.

    device: the device to compute on; default: CUDA if available. It becomes `job.device`; NCCL serves CUDA
    tensors and gloo all others. A process group that the script has already initialised is used as it is.
    checkpoint_dir, checkpoint_every_steps, strategy: for use without the operator; a TrainingJob's own
    settings take precedence.
    timeout_seconds: timeout of collectives. A dead peer is detected at once and a hung one by the agent, so
    it only has to be longer than anything that one rank does while others wait, such as an evaluation.
    Raises StrategyError if the servers of a strategy leave no worker.
    """
    global _job
    if _job is None and config.DRY_RUN in os.environ:
        from ropeteam_trainer.planning import dryrun

        _job = dryrun.begin_dry_run()
    if _job is None:
        checkpoint = CheckpointConfig(str(checkpoint_dir), checkpoint_every_steps) if checkpoint_dir else None
        world, plan, here = join_world(device, timeout_seconds, checkpoint, strategy)
        _job = create_job(world, plan, os.environ, here)
        sys.excepthook = partial(_job._end.record_failure, sys.excepthook)
        if _job._link.connected:
            call_before_group_is_destroyed(_job._end.save_before_group_is_destroyed)
        atexit.register(_job._at_exit)
    return _job


def join_world(
    device: str | torch.device | None,
    timeout_seconds: int,
    checkpoint: CheckpointConfig | None,
    strategy: Strategy | None,
) -> tuple[World, RankPlan, discovery.RankAssignment]:
    """Join the world, and return it with this rank's plan and assignment. checkpoint, strategy: of the
    script; used only if there is no agent with a plan. Raises StrategyError as init()."""
    plan = _read_agent_plan()
    chosen = plan.strategy if plan else strategy
    if chosen is not None and chosen.servers:  # no process group: each rank is a world of its own
        here = discovery.assignment_of(os.environ, chosen.servers)
        world = World.alone(device if here.server_index is None else "cpu")
    else:
        rank = int(os.environ.get("RANK", "0"))
        is_apart = plan is not None and (rank in plan.started or bool(plan.absent))
        world = (World.apart if is_apart else World.join)(device, timeout_seconds)
        here = discovery.RankAssignment(world.rank, world.size, 0)
    return world, plan or _plan_without_agent(world, checkpoint, strategy), here


def create_job(
    world: World, plan: RankPlan, environ: Mapping[str, str], here: discovery.RankAssignment | None = None
) -> Job:
    """Create this rank's Job, with its role, and with channels to the agent that `environ` names. here: None:
    a job without parameter servers."""
    here = here or discovery.RankAssignment(world.rank, world.size, 0)
    heart = agentlink.HeartbeatWriter(environ.get(config.RANK_PAGE))
    link = agentlink.connect(environ, here.rank, heart)
    saves = plan.checkpoint is not None and here.saves_checkpoints
    checkpoints = Checkpoints(plan, world, link) if saves else DisabledCheckpoints()
    session = Session(world, plan, here, link, heart, checkpoints, Feed(world))
    path = environ.get(config.TRACE)
    trace = Trace(path, here.rank, plan.world_id) if path else None
    return Job(session, _created_role(session, environ), trace)


def _created_role(session: Session, environ: Mapping[str, str]) -> RankRole:
    """Role of this rank. Imports its module only: those of others take seconds."""
    strategy = session.plan.strategy
    if strategy is None or not session.assignment.servers:
        return CollectiveRole(session)
    if session.assignment.server_index is None:
        from ropeteam_trainer.roles.worker import WorkerRole

        return WorkerRole(session, strategy)
    from ropeteam_trainer.roles.server import ServerRole

    return ServerRole(session, strategy, discovery.state_folder(environ))


def _read_agent_plan() -> RankPlan | None:
    """Plan in the environment, with the secret of the parameter servers. None: no agent. Removes the secret
    from the environment, so that child processes do not inherit it; if the shim has done so, fetches it from
    the agent. Raises DecodeError, OSError."""
    text = os.environ.get(config.RANK_PLAN)
    if not text:
        return None
    plan = codec.decode(RankPlan, text)
    if plan.secret:  # no shim has removed it from the environment
        os.environ[config.RANK_PLAN] = codec.encode(replace(plan, secret="")).decode()
    elif plan.servers and config.RANK_SOCKET in os.environ:
        plan = replace(plan, secret=agentlink.fetch_secret_of_servers(os.environ))
    return plan


def _plan_without_agent(
    world: World, checkpoint: CheckpointConfig | None, strategy: Strategy | None
) -> RankPlan:
    """Plan of a job without an agent. With checkpoints, its world gets a number above those in the directory;
    all ranks call this together then."""
    world_id = WorldId(0, 0, 0)
    if checkpoint is not None:
        path = Path(checkpoint.directory).absolute()
        checkpoint = replace(checkpoint, directory=str(path))
        world_id = world.from_rank_0(lambda: next_world_id(path), CONTRACT)
    return RankPlan(str(world_id), (), False, checkpoint, Resume.LATEST, None, "", "", strategy)
