"""The lease under which this coordinator answers agents (`recovery.selfFence`). Pure.

It is counted from when we sent the newest report that the operator says back to us (Desired.heard): it has
received that one later, so it knows when we were silent at the latest. Without it we judge nothing and
answer nobody; our agents end their ranks, and what happened is found when the operator is back, as after any
silence.
Limits: a boot knows of no renewal before it.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.state import State


def renew(state: State, desired: Desired, now: float) -> State:
    if (desired.term, desired.boot) != (state.config.term, state.boot):
        return state
    touched = (
        state.touched if holds(state, now) else slotset.ALL
    )  # while we were silent anything may have come
    return replace(state, renewed=max(state.renewed, min(desired.heard, now)), touched=touched)


def holds(state: State, now: float) -> bool:
    return not state.config.lease or now < state.renewed + state.config.lease


def may_answer(state: State, now: float) -> bool:
    """Agents whose reports are answered let their ranks live."""
    return not state.superseded and holds(state, now)
