"""The events that change the state of the coordinator, and the pods from which they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.messages import AgentReport


class Pod(NamedTuple):
    """Identity of an agent. A slot's pods follow one another; their incarnations only grow."""

    slot: int
    incarnation: int
    uid: str


class Moment(NamedTuple):
    """The time of an event, by two clocks."""

    now: float
    """Monotonic seconds of this process."""
    unix_ms: int
    """Wall clock, for people only."""


def pod_of(report: AgentReport) -> Pod:
    """The pod of the agent that sent the report."""
    return Pod(report.slot, report.incarnation, report.pod_uid)


@dataclass(frozen=True)
class ReportReceived:
    """A report of one agent. Reports of one pod must be passed in the order in which its newest connection
    delivered them."""

    report: AgentReport
    applied: bool = False
    """The agent has applied the newest orders sent on its connection (`applied_orders` is the last number; 0
    with nothing sent yet counts). This proves that a withdrawn plan, never confirmed by the agent, will not
    be started any more."""


@dataclass(frozen=True)
class ReportsReceived:
    """Reports of several agents, read in one turn of the event loop: one decision for all of them."""

    reports: tuple[ReportReceived, ...]


@dataclass(frozen=True)
class LeasesRenewed:
    """Leases of agents with nothing new to report (`slotindex.lease_is_enough`)."""

    received_at: dict[Pod, float]
    """Time at which the last lease of each was received."""


@dataclass(frozen=True)
class DesiredReceived:
    """A desired state of the operator, in any order: `step` ignores a stale one."""

    desired: Desired


@dataclass(frozen=True)
class Tick:
    """Passing of time: `wake_at` has been reached."""


Event = ReportReceived | ReportsReceived | LeasesRenewed | DesiredReceived | Tick
