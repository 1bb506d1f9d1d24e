"""Pods in which no rank can start (`AgentReport.problem`): a problem of the job, or of the pod.

A problem that any pod would have ends the job at once. For one that may lie in the pod (its node, a mount,
its copy of an image) another pod on another node is requested: at once, then with backoff. The same holds for
every problem that a pod can have in a job that has run before: it has run with this spec.
Promise: a job that has run never ends because of such a pod; from the third in a row on the report has it.
Limit: a coordinator that was restarted counts pods from zero.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from ropeteam_trainer.contract.desired import ReplacementRequest
from ropeteam_trainer.contract.messages import AgentReport, Problem
from ropeteam_trainer.contract.world import Cause, FailReason
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import committing_slot
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, UnstartableSlot

PAUSE_FIRST, PAUSE_MOST = 15.0, 300.0
REPORT_AFTER = 3

_POD_CAUSES = {
    FailReason.COMMAND_NOT_FOUND: Cause.POD_FAILED,
    FailReason.INTERPRETER_WITHOUT_TORCH: Cause.POD_FAILED,
    FailReason.CHECKPOINT_NOT_WRITABLE: Cause.STORAGE_UNAVAILABLE,
}
"""Problems that one pod may have and the next one not."""


def record_problems(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state after the problems that agents report: with the job's failure, or with their slots in
    `unstartable`. A slot leaves it once an agent there reports no problem; while it has no agent, its next
    pod is being created, and it stays."""
    known = {each.slot: each for each in state.unstartable}
    for slot in slotset.each(
        slotindex.registered_slots(state) & (state.facts.has_problem | slotset.of(known))
    ):
        agent = agent_of_slot(state, slot)
        assert agent is not None
        problem = agent.report.problem
        if problem is None:
            known.pop(slot, None)
        elif not _may_be_caused_by_pod(state, agent.report, problem):
            return replace(state, failure=problem)
        else:
            known[slot] = _unstartable_slot(known.get(slot), agent.report, problem, at)
    return replace(
        state,
        unstartable=tuple(known[slot] for slot in sorted(known)),
        pending_disk_request=_pending_disk_request(state, at),
    )


def _pending_disk_request(state: CoordinatorState, at: Moment) -> tuple[str, int]:
    """The request to the volume that the agent which commits reports as pending, with the wall clock time of
    its first report; ("", ...): none."""
    agent = agent_of_slot(state, committing_slot(state))
    pending = agent.report.pending_disk_request if agent else ""
    return state.pending_disk_request if pending == state.pending_disk_request[0] else (pending, at.unix_ms)


def _may_be_caused_by_pod(state: CoordinatorState, report: AgentReport, problem: Problem) -> bool:
    """Whether another pod may not have the problem: its reason is one of _POD_CAUSES, and either the agent
    reports it as transient, or the slot has had another pod before, or the job has run."""
    return problem.reason in _POD_CAUSES and (
        problem.transient or report.incarnation > 1 or _has_job_run(state)
    )


def _has_job_run(state: CoordinatorState) -> bool:
    """Whether a world of this job was ever planned, by this boot or one before."""
    planned = state.world is not None or bool(state.lineage)
    return planned or any(agent.report.plan for agent in state.agents.values())


def _unstartable_slot(
    known: UnstartableSlot | None, report: AgentReport, problem: Problem, at: Moment
) -> UnstartableSlot:
    """The slot with this pod counted. `known`: the entry of the slot's earlier pods; unchanged if it is of
    this pod."""
    if known is not None and known.incarnation == report.incarnation:
        return known
    pods = known.pods + 1 if known else 1
    return UnstartableSlot(report.slot, report.incarnation, pods, at.now, report.node, problem)


def obstacle(state: CoordinatorState, slot: int) -> str:
    """Condition that a plan waits for because of this slot, as the end of "waiting for"; "": the slot is not
    unstartable."""
    found = (each for each in state.unstartable if each.slot == slot)
    why = "because this one can start no rank"
    return next((f"another pod in slot {slot}, {why}: {each.problem.message}" for each in found), "")


def replacement_requests(state: CoordinatorState, now: float) -> tuple[ReplacementRequest, ...]:
    """Requests for other pods, on other nodes: for each unstartable slot, once its backoff has passed."""
    return tuple(
        ReplacementRequest(
            each.slot,
            each.incarnation,
            _POD_CAUSES[each.problem.reason],
            each.problem.message,
            avoid_node=True,
        )
        for each in state.unstartable
        if now >= each.since + _backoff_seconds(each.pods)
    )


def _backoff_seconds(pods: int) -> float:
    """Seconds until a pod is replaced that is the `pods`-th in a row: none for the first, then doubling."""
    return 0.0 if pods == 1 else min(PAUSE_FIRST * 2 ** min(pods - 2, 10), PAUSE_MOST)


def stalled_problem(state: CoordinatorState) -> Problem | None:
    """Problem that keeps the job from training although it retries; None: there is none. First match wins:
    the last world ended because its checkpoint was not readable, and none has made a step since; the
    checkpoint volume does not answer; REPORT_AFTER pods of one slot in a row were unstartable."""
    last = state.faults[-1].incident if state.faults else None
    if (
        last
        and last.cause is Cause.STORAGE_UNAVAILABLE
        and last.final
        and last.recovery_milliseconds.first_step is None
    ):
        where = f"on node {last.node}" if last.node else f"in slot {last.slot}"
        text = f"{where}, {last.message}. The job keeps trying, from time to time in other pods."
        return Problem(FailReason.CHECKPOINT_UNAVAILABLE, text)
    pending, unix_ms = state.pending_disk_request
    if pending:
        since = datetime.fromtimestamp(unix_ms / 1000, timezone.utc)  # noqa: UP017 (Python 3.10)
        return Problem(
            FailReason.CHECKPOINT_UNAVAILABLE,
            f"the checkpoint volume had not answered slot {committing_slot(state)} for a minute at "
            f"{since:%Y-%m-%d %H:%M:%S} UTC, and has not since; pending: {pending}. Until it does, no "
            "checkpoint is committed, and no world starts. A server that hangs reports no error: check it "
            "and its mount.",
        )
    worst = max(state.unstartable, key=lambda each: each.pods, default=None)
    if worst is None or worst.pods < REPORT_AFTER:
        return None
    where = f"the last on node {worst.node}" if worst.node else "each in another pod"
    return Problem(
        worst.problem.reason,
        f"{worst.pods} pods in a row of slot {worst.slot} could not start a rank, {where}: "
        f"{worst.problem.message}. The job keeps trying, with another pod at least every "
        f"{PAUSE_MOST / 60:.0f} minutes.",
    )
