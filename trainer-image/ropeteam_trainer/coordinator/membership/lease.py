"""Whether this coordinator may answer agents: its own lease (`recovery.selfFence`), and whether a newer
coordinator has superseded it. Pure.

The lease starts when we sent the newest report that the operator acknowledges (Desired.acknowledged_sent):
the operator received that report later, so it knows an upper bound for the end of our lease. Without a lease
we decide nothing and answer no agent; our agents end their ranks, and the faults are found when the operator
is back, as after any silence.
Limits: renewals before a boot are not known to it.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slots import is_accepted
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState

WAITING_FOR_OPERATOR = "waiting for the operator's first request"


def renew(state: CoordinatorState, desired: Desired, now: float) -> CoordinatorState:
    """The state with the lease renewed, if the desired state acknowledges a report of this boot. An older
    acknowledgement does not shorten the lease. If it had expired, all slots count as touched: reports that
    came meanwhile were not acted on."""
    if (desired.term, desired.acknowledged_boot) != (state.config.term, state.boot):
        return state
    touched = (
        state.touched if is_valid(state, now) else slotset.ALL
    )  # any report may have come while we were silent
    return replace(state, renewed=max(state.renewed, min(desired.acknowledged_sent, now)), touched=touched)


def is_valid(state: CoordinatorState, now: float) -> bool:
    """Whether the lease is valid; always, if selfFence is off (`config.lease` is 0)."""
    return not state.config.lease or now < state.renewed + state.config.lease


def silence_reason(state: CoordinatorState, now: float) -> str:
    """Why no phase may decide and no orders are sent now; "": they may. The sentence becomes
    `CoordinatorState.why`."""
    if state.superseded:
        return f"sending no orders: {state.superseded}"
    if state.desired is None:
        return WAITING_FOR_OPERATOR
    if not is_valid(state, now):
        return (
            f"sending no orders: no contact with an operator for {state.config.lease} s "
            "(spec.recovery.selfFence); without answers agents end their ranks"
        )
    return ""


def may_answer(state: CoordinatorState, now: float) -> bool:
    """Whether reports may be answered. An agent without answers ends its ranks after fenceSeconds: no answer
    may be sent without a lease, nor beside a newer coordinator."""
    return not state.superseded and is_valid(state, now)


def claimed_term(state: CoordinatorState, report: AgentReport) -> int:
    """Term of the world that has claimed the checkpoint folder after that of the reporting agent, and is not
    ours; 0: none is reported. Deputies of ours, or of an earlier boot, claim it while the pod of the leading
    rank is cut off. That rank may lead again."""
    by = report.superseded
    if by is None or not is_accepted(state, report) or by in state.deputized:
        return 0
    return by.term if (by.term, by.boot) >= (state.config.term, state.boot) else 0


def superseded_reason(state: CoordinatorState, report: AgentReport, claimed: int) -> str:
    """Why this coordinator is superseded, by this report; "": it is not. An agent that has seen a newer one
    refuses our orders. `claimed`: term of the world that has claimed the checkpoint folder; 0: none is
    reported."""
    term, boot = state.config.term, state.boot
    if claimed:
        return (
            f"a world of term {claimed} has claimed the checkpoint folder, and this coordinator is of term "
            f"{term}; the operator replaces it"
        )
    seen = (report.plan.world_id.term, report.plan.world_id.boot) if report.plan else (term, boot)
    if report.term <= term and seen <= (term, boot):
        return ""
    return (
        f"the agent of slot {report.slot} follows a newer coordinator than {term}.{boot} (term.boot); the "
        "operator replaces this one"
    )
