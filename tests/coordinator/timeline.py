"""A timeline of membership: agents report, time passes, and each frame shows the phase and the orders.

The agents here are minimal and obedient only where a test says so: `says` is one report, `obeys` applies the
orders as a real agent would. Time passes in Ticks at `wake_at`, as in the server; every agent that lives
renews its lease.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.coordinator.reports import after_orders, agent, config

from ropeteam_trainer.contract.desired import Desired, Incident, JobReport, SlotDesired
from ropeteam_trainer.contract.messages import AgentReport, Orders, RankPhase, Shard
from ropeteam_trainer.contract.world import ProcessExit, ShardFile, WorldId
from ropeteam_trainer.coordinator.membership import step as membership


class Timeline:
    """One coordinator and the agents of one job."""

    def __init__(self, workers: int = 2, boot: int = 0, feature_level: int = 1, **settings: Any) -> None:
        self.now, self.feature_level = 1000.0, feature_level
        self.config = config(workers, **settings)
        self.state = membership.initial_state(self.config, boot, self.now)
        self.agents: dict[int, AgentReport] = {}
        self.silent: set[int] = set()
        self._seen: dict[int, Orders] = {}
        slots = {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in range(self.config.slots)}
        self.desired = Desired(generation=1, attempt=1, term=self.config.term, slots=slots, allowance=10)

    # ---- what happens

    def event(self, event: membership.Event) -> None:
        self.state = membership.step(self.state, event, self.now, int(self.now * 1000))

    def desires(self, **changes: Any) -> None:
        self.desired = replace(self.desired, **changes)
        self.event(membership.DesiredReceived(self.desired))

    def desires_slot(self, slot: int, **changes: Any) -> None:
        slot_desired = replace(self.desired.slots[str(slot)], **changes)
        self.desires(slots={**self.desired.slots, str(slot): slot_desired})

    def replaces(self, slot: int, incarnation: int = 2) -> None:
        """The operator has made another pod, and its agent registers."""
        self.desires_slot(slot, incarnation=incarnation, pod_uid=f"pod-{slot}-{incarnation}")
        self.agents[slot] = agent(slot, incarnation)
        self.silent.discard(slot)
        self.reports(slot)

    def reports(self, slot: int, applied: bool = True, **changes: Any) -> None:
        self.agents[slot] = replace(self.agents.get(slot, agent(slot)), **changes)
        self.event(membership.ReportReceived(self.agents[slot], applied))

    def later(self, seconds: float) -> None:
        """Time passes; living agents renew their leases every second, after the Tick."""
        end = self.now + seconds
        while self.now < end:
            wake = membership.wake_at(self.state, self.now)
            self.now = min(end, wake if wake is not None else end)
            self.event(membership.Tick())
            for slot in sorted(set(self.agents) - self.silent):
                self.reports(slot)

    # ---- obedient agents

    def applies_orders(self, *slots: int) -> None:
        """Let these agents (all, if none is named) apply their orders and report, until nothing changes any
        more."""
        for _ in range(20):
            before = (dict(self.agents), dict(self._seen))
            for slot in slots or sorted(self.agents):
                if slot not in self.silent:
                    self._apply_orders(slot)
            if before == (self.agents, self._seen):
                return
        raise AssertionError("the agents never came to rest")

    def _apply_orders(self, slot: int) -> None:
        orders, report = self.orders(slot), self.agents[slot]
        if orders is None:
            return
        new, self._seen[slot] = orders != self._seen.get(slot), orders
        after = after_orders(report, orders, self.feature_level)
        if new or after != report:
            self.agents[slot] = after
            self.reports(slot)

    def up(self, step: int = 0) -> Timeline:
        """All agents registered and one world running; with `step` > 0 all ranks have come that far."""
        self.desires()
        for slot in range(self.config.slots):
            self.reports(slot)
        self.applies_orders()
        return self.reaches(step) if step else self

    def reaches(self, step: int, base: int = 0) -> Timeline:
        for slot, report in sorted(self.agents.items()):
            ranks = tuple(
                replace(rank, phase=RankPhase.RUNNING, step=step, steps_here=step - base)
                for rank in report.ranks
            )
            self.reports(slot, ranks=ranks)
        return self

    def exits(self, slot: int, how: ProcessExit) -> None:
        """All ranks of a slot end by themselves."""
        ranks = tuple(replace(rank, phase=RankPhase.EXITED, exit=how) for rank in self.agents[slot].ranks)
        self.reports(slot, ranks=ranks, stopped=True)

    def ranks(self, slot: int, phase: RankPhase, step: int) -> None:
        self.reports(
            slot, ranks=tuple(replace(rank, phase=phase, step=step) for rank in self.agents[slot].ranks)
        )

    def saves(self, step: int, *slots: int) -> None:
        """The ranks of these slots (all, if none is named) have written their shard of this step."""
        for slot in slots or sorted(self.agents):
            report = self.agents[slot]
            assert report.plan is not None
            new = tuple(
                Shard(rank.rank, report.plan.world_id, step, (ShardFile(f"rank-{rank.rank}.pt", 1, "00"),))
                for rank in report.ranks
            )
            self.reports(slot, shards=report.shards + new)

    def falls_silent(self, slot: int) -> None:
        self.silent.add(slot)

    def reboots(self, boot: int | None = None) -> None:
        """The coordinator dies and comes back with nothing but a higher boot."""
        self.state = membership.initial_state(
            self.config, self.state.boot + 1 if boot is None else boot, self.now
        )

    # ---- what is seen

    def orders(self, slot: int) -> Orders | None:
        return membership.orders_for_sender(self.state, self.agents[slot], self.now)

    def sent_orders(self, slot: int) -> Orders:
        orders = self.orders(slot)
        assert orders is not None
        return orders

    @property
    def phase(self) -> str:
        return self.state.phase.value

    @property
    def report(self) -> JobReport:
        return membership.job_report(self.state, self.now)

    @property
    def lineage(self) -> list[tuple[int, str]]:
        return [(ref.step, ref.digest) for ref in self.report.lineage]

    @property
    def world_id(self) -> WorldId:
        assert self.state.world is not None
        return self.state.world.plan.world_id

    @property
    def incident(self) -> Incident:
        """The last one."""
        return self.report.incidents[-1]
