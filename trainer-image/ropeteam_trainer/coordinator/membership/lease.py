"""The lease under which this coordinator answers agents (`recovery.selfFence`). Pure.

The lease starts when we sent the newest report that the operator acknowledges (Desired.acknowledged_sent):
the operator received that report later, so it knows an upper bound for the end of our lease. Without a lease
we decide nothing and answer no agent; our agents end their ranks, and the faults are found when the operator
is back, as after any silence.
Limits: renewals before a boot are not known to it.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.state import State

WAITING_FOR_OPERATOR = "waiting for the operator's first request"


def renew(state: State, desired: Desired, now: float) -> State:
    if (desired.term, desired.acknowledged_boot) != (state.config.term, state.boot):
        return state
    touched = (
        state.touched if holds(state, now) else slotset.ALL
    )  # any report may have come while we were silent
    return replace(state, renewed=max(state.renewed, min(desired.acknowledged_sent, now)), touched=touched)


def holds(state: State, now: float) -> bool:
    return not state.config.lease or now < state.renewed + state.config.lease


def silence(state: State, now: float) -> str:
    """Why nothing is decided now, or ""."""
    if state.superseded:
        return f"sending no orders: {state.superseded}"
    if state.desired is None:
        return WAITING_FOR_OPERATOR
    if not holds(state, now):
        return (
            f"sending no orders: no contact with an operator for {state.config.lease} s "
            "(spec.recovery.selfFence)"
        )
    return ""


def may_answer(state: State, now: float) -> bool:
    """Whether reports may be answered: an agent whose reports are answered lets its ranks live."""
    return not state.superseded and holds(state, now)
