"""Rules on checkpoints: claim the folder, write manifests, prune. Only for the agent of the lead rank, or of
its deputy. Pure.

The lead rank is rank 0, or that of the first parameter server (`WorkerConfig.lead_slot`). Order: the folder
is claimed before the ranks of a world start -> the coordinator grants a checkpoint once all shards are
reported -> this agent writes the manifest, which is the commit -> it prunes. checkpoints.py does these on the
disk, one at a time; decisions/journal.py says why a claim keeps older worlds from committing.
While the pod of the lead rank is missing, under sync Exact, another agent is its deputy, if orders say so
(`Orders.claim`): it claims the folder beside ranks that train, does the same, and ends with these orders.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.agent.machine.apply import Stepped
from ropeteam_trainer.agent.machine.effects import ClaimRun, Prune, WriteManifest
from ropeteam_trainer.agent.machine.state import AgentState, LocalWorld
from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, Plan, WorldId

CLAIM_SECONDS = 300.0
"""Seconds for which a volume may be unavailable before another node is tried, as for ranks that restore. At
most half of startSeconds, after which the other ranks of that world are killed, which is charged."""


def needs_claim(state: AgentState, plan: Plan) -> bool:
    """Whether this agent must claim the folder before ranks of `plan` start."""
    return is_lead_agent(state) and not (state.held and state.held.claim.world_id == plan.world_id)


def request_claim(state: AgentState, plan: Plan) -> Stepped:
    """Request a claim for this plan's world: storage decides between two worlds that cannot see each other.

    Called on every event until it is claimed. At most one claim is under way; after a failure there is a
    pause. If all attempts fail for too long, the state gets a Problem: the other ranks wait for this world,
    and another pod may reach the storage.
    """
    world_id, since = state.claim_since or (None, state.now)
    if world_id != plan.world_id:
        since = state.now
        state = replace(state, claim_since=(plan.world_id, since))
    limit = min(CLAIM_SECONDS, state.config.timeouts.start / 2)
    if state.now - since > limit:
        return replace(state, problem=_claim_problem(state, limit)), ()
    if state.claiming or state.now < state.claim_retry_at:
        return state, ()
    return replace(_with_disk_since(state), claiming=plan.world_id), (ClaimRun(plan),)


def claim_as_deputy(state: AgentState) -> Stepped:
    """Request the claim that orders name for a deputy, for as long as it takes: no rank waits for it, and
    another pod could take its place only if this one's ranks ended."""
    number, world = commits_as(state), state.world
    if world is None or number is None or is_lead_agent(state):
        return state, ()
    if state.claiming or state.now < state.claim_retry_at or _held_claim(state):
        return state, ()
    claimed = replace(_with_disk_since(state), claiming=number)
    return claimed, (ClaimRun(replace(world.plan, world_id=number)),)


def write_manifest(state: AgentState) -> Stepped:
    """Write the manifest of the newest grant, again after a failure; forget shards that are committed.

    A grant is written only while the claim is held for the world that it names, and only once.
    """
    world = state.world
    grant = (state.orders.grant if state.orders else None) or state.grant
    if world is None:
        return state, ()
    committed = committed_step(state, world) or 0
    shards = tuple(shard for shard in world.shards if shard.step > committed)
    state = replace(state, world=replace(world, shards=shards))
    if grant is None or grant.ref.world_id != commits_as(state):
        return state, ()
    held = _held_claim(state)
    is_written = _is_same_checkpoint(grant.ref, state.committed)
    if held is None or state.writing or state.now < state.write_retry_at or is_written:
        return state, ()
    return replace(_with_disk_since(state), writing=grant.ref, grant=grant), (WriteManifest(held, grant),)


def prune(state: AgentState) -> Stepped:
    """Prune once per lineage of the orders, and only while the world here is the one that they name."""
    lineage = state.orders.lineage if state.orders else ()
    if not lineage or lineage == state.pruned or not state.runs_desired_plan:
        return state, ()
    held = _held_claim(state)
    if held is None:
        return state, ()
    return replace(state, pruned=lineage), (Prune(held, lineage),)


def committed_step(state: AgentState, world: LocalWorld) -> int | None:
    """Step of the newest committed checkpoint of this world, by orders or as this agent wrote it; also of a
    deputy. None: no such checkpoint is known; those of earlier worlds do not count."""
    lineage = state.orders.lineage if state.orders else ()
    known = (*lineage[:1], state.committed) if state.committed else lineage[:1]
    names = (world.plan.started_in(state.config.lead_slot), state.orders and state.orders.saves_as)
    return max((ref.step for ref in known if ref and ref.world_id in names), default=None)


def is_lead_agent(state: AgentState) -> bool:
    """Whether this agent claims for each world: the job has checkpoints, and the lead rank is here."""
    return state.identity.slot == state.config.lead_slot and state.config.checkpoint is not None


def commits_as(state: AgentState) -> WorldId | None:
    """The world under whose name this agent commits and prunes: the one that started the lead rank, if that
    is here; that of a deputy, if orders say so. None: this agent does not."""
    if state.world is None or state.config.checkpoint is None or state.superseded:
        return None
    if is_lead_agent(state):
        return state.world.started_in
    return state.orders.claim if state.orders and state.runs_desired_plan else None


def _held_claim(state: AgentState) -> Held | None:
    """The claim of this agent, if it is for the world under whose name it commits."""
    return state.held if state.held and state.held.claim.world_id == commits_as(state) else None


def _with_disk_since(state: AgentState) -> AgentState:
    """The state with `disk_since` set to now, unless an operation on the disk is under way already."""
    return state if state.claiming or state.writing else replace(state, disk_since=state.now)


def _is_same_checkpoint(ref: CheckpointRef, other: CheckpointRef | None) -> bool:
    """Digests are not compared: that of a grant is empty."""
    return other is not None and (ref.step, ref.world_id) == (other.step, other.world_id)


def _claim_problem(state: AgentState, seconds: float) -> Problem:
    assert state.config.checkpoint is not None
    folder = state.config.checkpoint.directory
    text = (
        f"the checkpoint folder {folder} could not be claimed for {seconds:.0f} s: the last error is in the "
        f"log of the pod in slot {state.identity.slot}; if there is none, the disk hangs. Check "
        f"spec.checkpoint.volume, and its mount on node {state.identity.node}"
    )
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text, transient=True)
