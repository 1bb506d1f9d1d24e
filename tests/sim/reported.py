"""Reports to people are true: of each fault where and why it was, of each event what it announces.

The truth is what the ranks did: how each ended, what it raised, how far its world came. Limits: with
parameter servers, and of scripts that report no steps, repeated faults are not counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import IncidentStatus, JobStatus
from ropeteam.core.decision import Decision
from ropeteam_trainer.contract.world import Cause, ProcessExit, WorldId

if TYPE_CHECKING:
    from tests.sim.ranks import Rank
    from tests.sim.world import Setup, World

FREE_CODE, FINAL_CODE = 75, 42
"""Exit codes that the simulators' specs define as free and as final."""
_LIMIT, _SLACK = 3, 1
"""recovery.noProgressLimit, and what may be reported before its end is."""
_OF_A_RANK = (Cause.ERROR, Cause.SIGNAL, Cause.HANG, Cause.RETRIED_FREE)
"""Causes that only a rank has. A container can be out of memory, too."""


class StatusChecks:
    def __init__(self, world: World) -> None:
        self._world = world
        self._exits: dict[tuple[str, int], ProcessExit] = {}
        """By world and rank."""
        self._raised: dict[tuple[str, int], str] = {}
        self._tops: dict[str, int] = {}
        """The newest step of each world."""
        self._lost_stores = set[str]()

    # ---- the truth

    def ended(self, rank: Rank, exit: ProcessExit) -> None:
        self._exits[str(rank.plan.world_id), rank.number] = exit

    def raised(self, rank: Rank, message: str) -> None:
        self._raised[str(rank.plan.world_id), rank.number] = message

    def stepped(self, world_id: WorldId, step: int) -> None:
        self._tops[str(world_id)] = step

    def store_lost(self, world_id: WorldId) -> None:
        self._lost_stores.add(str(world_id))

    # ---- what is wrong with the reports, or ""

    def lies(self, status: JobStatus) -> str:
        settled = [each for each in status.incidents if each.final]
        found = [lie for each in settled for lie in self._of_incident(each)]
        return next(iter(found), "") or self._repeats(settled, status)

    def living(self, old: JobStatus, new: JobStatus) -> str:
        """The ranks of a slot's former pods that live when status begins to call these gone. From feature
        level 2 on no proof is needed; a drained world has stopped, and a pod in handover holds its slot."""
        before = {each.slot: (each.incarnation, each.previous_pod_fenced) for each in old.slots}
        now = [each for each in new.slots if each.previous_pod_fenced and not each.handover_pending]
        begun = [each for each in now if before.get(each.slot) != (each.incarnation, True)]
        if self._world.script.feature_level >= 2 or old.drained or new.drained:
            return ""
        found = (self._world.living(each.slot, each.incarnation) for each in begun)
        return ", ".join(name for names in found for name in names)

    def _of_incident(self, each: IncidentStatus) -> Iterator[str]:
        what = f"{each.id} {each.cause}"
        if each.cause not in _OF_A_RANK or each.id.startswith("pod-"):
            return
        if (each.cause, each.rank, each.slot) == (Cause.SIGNAL, None, 0) and each.id in self._lost_stores:
            return  # ranks were to join others in this store
        if each.rank is None or slot_of(self._world.setup, each.rank) != each.slot:
            yield f"{what}: rank {each.rank} is not of slot {each.slot}"
            return
        if each.cause != Cause.ERROR:
            return
        exit = self._exits.get((each.id, each.rank))
        if exit is not None and exit.code == FREE_CODE:
            yield f"{what}: exit code {FREE_CODE} is free"
        bare = f"rank {each.rank} exited {exit.code}" if exit else ""
        raised = self._raised.get((each.id, each.rank), "")
        if raised and each.message == bare:
            yield f"{what}: rank {each.rank} raised {raised!r}, and that is not told"
        if not each.message.startswith(f"rank {each.rank} "):
            yield f"{what}: it is of rank {each.rank}, and told is {each.message!r}"

    def _repeats(self, settled: list[IncidentStatus], status: JobStatus) -> str:
        """One exception again and again, without a new step between, ends the job; as long as one
        coordinator sees all of it."""
        if (
            status.holds(ConditionType.FAILED)
            or self._world.setup.servers
            or self._world.script.feature_level < 1
        ):
            return ""
        times, top, last = 0, -1, ("", "")
        for each in settled:
            message = self._raised.get((each.id, each.rank if each.rank is not None else -1), "")
            by, step = each.id.rpartition(".")[0], self._tops.get(each.id, 0)
            again = each.cause == Cause.ERROR and (by, message) == last and step <= top
            times, top = (times + 1 if again else 1), (max(top, step) if by == last[0] else step)
            last = (by, message if each.cause == Cause.ERROR else "")
            if message and times > _LIMIT + _SLACK:
                return f"{message!r} {times} times in a row without a new step, and the job goes on"
        return ""


def slot_of(setup: Setup, rank: int) -> int:
    of_workers = setup.workers * setup.processes
    return rank // setup.processes if rank < of_workers else setup.workers + rank - of_workers


def wrong_event(old: JobStatus, decision: Decision) -> str:
    """An event that announces what did not happen, or ""."""
    new = decision.status
    happened = {
        "Started": new.attempt != old.attempt,
        "CoordinatorReplaced": new.coordinator.term != old.coordinator.term,
        "WorkerReplaced": [s.incarnation for s in new.slots] != [s.incarnation for s in old.slots],
    }
    return next((each.reason for each in decision.announcements if not happened.get(each.reason, True)), "")
