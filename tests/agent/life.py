"""The agent's machine with a clock and a memory for effects, for tests that need no process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from ropeteam_trainer.agent.machine import step as machine
from ropeteam_trainer.agent.machine.effects import ClaimRun, Effect
from ropeteam_trainer.agent.machine.events import (
    Event,
    HeartbeatsRead,
    LinkUp,
    OrdersReceived,
    RankExited,
    RankMessage,
    RanksStarted,
    RunClaimed,
    Tick,
)
from ropeteam_trainer.agent.machine.report import agent_report
from ropeteam_trainer.checkpoint.decisions.journal import Claim, Held
from ropeteam_trainer.contract.config import CheckpointConfig, PodIdentity, Start, Timeouts, WorkerConfig
from ropeteam_trainer.contract.local import Beat, FromRank
from ropeteam_trainer.contract.messages import AgentReport, Orders
from ropeteam_trainer.contract.world import CheckpointRef, Member, Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch, Run

E = TypeVar("E")
SCRIPT = Launch(Run.SCRIPT, ("x.py",), "python3", text="PerRank (python)")


def world_id(n: int = 1, term: int = 1, boot: int = 0) -> WorldId:
    return WorldId(term, boot, n)


def a_plan(n: int = 1, *, processes: int = 2, slot: int = 0, **changes: Any) -> Plan:
    """Slots 0 and 1; `slot` is the agent's own."""
    members = tuple(Member(number, 1, f"pod-{number}", f"10.0.0.{number}", processes) for number in (0, 1))
    assert slot in (0, 1)
    fields: dict[str, Any] = {"attempt": 1, "members": members, "store_host": "s", "store_port": 1}
    return Plan(**{"world_id": world_id(n)} | fields | changes)


def a_served_plan(n: int = 1, started_in: int | None = None, **changes: Any) -> Plan:
    """Slot 0: a worker with one rank; slot 1: a server. `born`: earlier world that started slot 0's ranks."""
    plan = a_plan(n, processes=1, **changes)
    first = replace(plan.members[0], started_in=world_id(started_in) if started_in else None)
    return replace(plan, members=(first, *plan.members[1:]), origin=world_id(1) if n > 1 else None)


def a_recovery_plan(n: int, *started: int, new: tuple[int, ...] = (), **changes: Any) -> Plan:
    """World n of two pods with two ranks each, under sync Exact: all ranks live on from world 1, except those
    in `started`. `new`: slots of pods that replace others; all their ranks are started."""
    plan = a_plan(n, origin=world_id(1), started=started, **changes)
    members = (replace(each, started_in=None if each.slot in new else world_id(1)) for each in plan.members)
    return replace(plan, members=tuple(members))


def an_identity(slot: int = 0) -> PodIdentity:
    return PodIdentity(slot, 1, f"pod-{slot}", f"10.0.0.{slot}", "node", b"t")


def killed() -> ProcessExit:
    return ProcessExit(None, 9)


class Life:
    """One agent's life. `now` moves by `wait`; effects of the last event are in `did`."""

    def __init__(self, slot: int = 0, *, launch: Launch = SCRIPT, **settings: Any) -> None:
        values: dict[str, Any] = {
            "job": "j",
            "namespace": "n",
            "job_uid": "u",
            "attempt": 1,
            "workers": 2,
            "processes": 2,
            "coordinator": "127.0.0.1:1",
            "timeouts": Timeouts(hang=5),
            "checkpoint": CheckpointConfig("/checkpoints"),
            "start": Start.EXEC,
        }
        config = WorkerConfig(**values | settings)
        self.now = 1000.0
        self.state = machine.initial_state(config, an_identity(slot), launch, self.now)
        self.disk_answers = True
        """A run is claimed in the instant in which that is requested."""
        self.did: tuple[Effect, ...] = ()
        self.all: list[Effect] = []
        self._orders = Orders(term=1, boot=0, number=0)

    def receives(self, *events: Event) -> Life:
        for event in events:
            self.state, self.did = machine.step(self.state, event, self.now)
            self.all += self.did
            if self.disk_answers and (claims := [each for each in self.did if isinstance(each, ClaimRun)]):
                before = tuple(each for each in self.did if each not in claims)
                self.claimed(claims[0].plan)
                self.did = before + self.did
        return self

    def claimed(self, plan: Plan, *restore: CheckpointRef) -> Life:
        """The disk answers: the run is ours from this plan's world on."""
        held = Held(Claim(plan.world_id, self.state.identity.pod_uid), frozenset())
        return self.receives(RunClaimed(plan.world_id, held, restore or plan.restore))

    def wait(self, seconds: float) -> Life:
        """On a link that is up, the coordinator answers meanwhile."""
        self.now += seconds
        did = self.answered(self.now).did if self.state.linked else ()
        self.receives(Tick())
        self.did = did + self.did
        return self

    def unanswered(self, seconds: float) -> Life:
        self.now += seconds
        return self.receives(Tick())

    def answered(self, requested_at: float) -> Life:
        """Nothing new, in answer to a report that was sent then."""
        state = self.state
        return self.receives(
            OrdersReceived(Orders(state.term, state.boot, 0, same=True), self.now - requested_at)
        )

    def ordered(self, **changes: Any) -> Life:
        """Orders as before, but for `changes`."""
        self._orders = replace(self._orders, number=self._orders.number + 1, **changes)
        return self.receives(OrdersReceived(self._orders))

    def running(self, n: int = 1, **changes: Any) -> Life:
        """Linked, in world n with its ranks started."""
        plan = a_plan(n, **changes)
        return self.receives(LinkUp()).ordered(plan=plan).receives(RanksStarted(plan.world_id))

    def rank_sends(self, rank: int, n: int = 1, **fields: Any) -> Life:
        return self.receives(RankMessage(world_id(n), rank, FromRank(**fields)))

    def heartbeats(self, rank: int, step: int, n: int = 1, **changes: Any) -> Life:
        values: dict[str, Any] = {
            "steps_here": step,
            "monotonic_ns": int(self.now * 1e9),
            "phase": "train",
        } | changes
        return self.receives(HeartbeatsRead(world_id(n), {rank: Beat(step=step, **values)}))

    def died(self, *ranks: int, n: int = 1, exit: ProcessExit | None = None) -> Life:
        return self.receives(*(RankExited(world_id(n), rank, exit or killed()) for rank in ranks))

    def did_a(self, kind: type[E]) -> E:
        """The one effect of this kind among those of the last event."""
        (found,) = [effect for effect in self.did if isinstance(effect, kind)]
        return found

    def did_no(self, kind: type[Any]) -> bool:
        return not [effect for effect in self.did if isinstance(effect, kind)]

    @property
    def report(self) -> AgentReport:
        return agent_report(self.state)


def a_ref(step: int, n: int = 1, digest: str = "d") -> CheckpointRef:
    return CheckpointRef(step, world_id(n), digest)
