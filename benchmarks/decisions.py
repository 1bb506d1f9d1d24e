"""How long does the coordinator compute when a rank is lost under sync Exact?

    python -m benchmarks.decisions [--faults N]        (20 by default; a minute)

The shipped decisions (coordinator/membership), replies and their encoding, without sockets and processes:
jobs of 16 and of 8,192 ranks, eight in each pod, of which one after the other dies, and is started again
beside the others. A decision is one event, with the orders for all agents that it concerns, as bytes.
    decision     processor time of each
    others know  of the decision upon which all others are sent which rank is lost
    planned      of all decisions from the report of the death until each agent has been sent the next plan
    messages     to agents, in that time
Agents apply orders at once (lab/coordinator/reports.py), and their time does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lab.coordinator.reports import SIGKILL, after_orders, agent, config

from benchmarks.results import Row, print_rows, row, write
from ropeteam_trainer.contract import VERSION
from ropeteam_trainer.contract.desired import Desired, SlotDesired, WorldPhase
from ropeteam_trainer.contract.messages import AgentReport, RankPhase
from ropeteam_trainer.coordinator.encoding import OrdersEncoder
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.state import slotset

PROCESSES, SIZES = 8, (16, 8192)
"""Ranks of a pod, and of a job."""
EVENT_SECONDS = 0.001


@dataclass
class Cost:
    """Of one event."""

    seconds: float
    messages: int


@dataclass
class Fault:
    """Costs of all events from a death until all have the next plan, and of the first one."""

    costs: list[Cost] = field(default_factory=list)

    @property
    def planned(self) -> float:
        return sum(cost.seconds for cost in self.costs)

    @property
    def messages(self) -> int:
        return sum(cost.messages for cost in self.costs)


class Coordinator:
    """Decides, for agents that apply its orders."""

    def __init__(self, workers: int) -> None:
        self.now = 1000.0
        self.state = membership.initial_state(config(workers, processes=PROCESSES), 0, self.now)
        slots = {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in range(workers)}
        self.desired = Desired(generation=1, attempt=1, term=1, slots=slots, allowance=1000)
        self.agents = {slot: agent(slot, contract=VERSION) for slot in range(workers)}
        self._encoder, self._concerned = OrdersEncoder(), dict[int, None]()

    def event(self, event: membership.Event) -> Cost:
        """Decide, and encode the orders of all whom it concerns."""
        before, began, messages = self.state, time.process_time(), 0
        self.state = membership.step(before, event, self.now, int(self.now * 1000))
        replies = membership.Replies(self.state, self.now)
        concerned = [*slotset.each(membership.affected_slots(before, self.state) & self.state.all_slots)]
        for slot in concerned:
            reply = replies.reply_to(self.agents[slot])
            if reply is not None:
                self._encoder.encode(reply, 1, None)
                messages += 1
        seconds = time.process_time() - began
        self._concerned |= dict.fromkeys(concerned)
        self.now += EVENT_SECONDS
        return Cost(seconds, messages)

    def reports(self, report: AgentReport) -> Cost:
        self.agents[report.slot] = report
        self._concerned[report.slot] = None
        return self.event(membership.ReportReceived(report, True))

    def until_all_rest(self) -> Iterator[Cost]:
        """Let agents apply their orders, one after the other, until nothing changes."""
        while self._concerned:
            slot = next(iter(self._concerned))
            del self._concerned[slot]
            report = self.agents[slot]
            orders = membership.orders_for_sender(self.state, report, self.now)
            after = after_orders(report, orders, 3) if orders else report
            if after != report:
                yield self.reports(after)

    def until_runs(self) -> Iterator[Cost]:
        """Until each agent has the plan of a world that runs."""
        while True:
            yield from self.until_all_rest()
            world = self.state.world
            if self.state.phase is WorldPhase.RUNNING and world is not None:
                plans = {report.plan.world_id if report.plan else None for report in self.agents.values()}
                if plans == {world.plan.world_id}:
                    return
            self.now = membership.wake_at(self.state, self.now) or self.now + 0.01
            yield self.event(membership.Tick())

    def train(self, step: int) -> None:
        for report in [*self.agents.values()]:
            ranks = tuple(
                replace(rank, phase=RankPhase.RUNNING, step=step, steps_here=step, regroups=True)
                for rank in report.ranks
            )
            self.reports(replace(report, ranks=ranks))

    def lose(self, rank: int) -> Fault:
        report = self.agents[rank // PROCESSES]
        ranks = tuple(
            replace(each, phase=RankPhase.EXITED, exit=SIGKILL) if each.rank == rank else each
            for each in report.ranks
        )
        assert self.state.world is not None
        before = self.state.world.plan.world_id
        fault = Fault([self.reports(replace(report, ranks=ranks))])
        fault.costs.extend(self.until_runs())
        plan = self.state.world.plan
        assert (plan.started, plan.world_id.n) == ((rank,), before.n + 1), "it alone is started again"
        return fault


def faults_of(ranks: int, count: int) -> list[Fault]:
    workers = ranks // PROCESSES
    coordinator, found = Coordinator(workers), []
    coordinator.event(membership.DesiredReceived(coordinator.desired))
    for report in [*coordinator.agents.values()]:
        coordinator.reports(report)
    for _ in coordinator.until_runs():
        pass
    for number in range(count):
        coordinator.train(10 * (number + 1))
        found.append(coordinator.lose((7 + number * 401) % ranks))
        fault = found[-1]
        print(
            f"{ranks} ranks, fault {number + 1}: {fault.planned:.3f} s, {fault.messages} messages", flush=True
        )
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions")
    parser.add_argument("--faults", type=int, default=20)
    faults = parser.parse_args().faults
    table, samples = list[Row](), dict[str, list[float]]()
    for ranks in SIZES:
        found = faults_of(ranks, faults)
        decisions = [1000 * cost.seconds for fault in found for cost in fault.costs]
        samples[f"{ranks} ranks: others know"] = [1000 * fault.costs[0].seconds for fault in found]
        samples[f"{ranks} ranks: planned"] = [1000 * fault.planned for fault in found]
        for name in (f"{ranks} ranks: others know", f"{ranks} ranks: planned"):
            table.append(row(name, samples[name], unit="ms"))
        messages = [float(fault.messages) for fault in found]
        table.append(
            row(
                f"{ranks} ranks: messages", messages, unit="of a fault", beside=f"{ranks // PROCESSES} agents"
            )
        )
        late = percentile(decisions, 0.99)
        table.append(
            Row(f"{ranks} ranks: decision, p99", round(late, 3), "ms", len(decisions),
                round(max(decisions), 3), "<= 50", late <= 50, "worst: with orders for all agents")
        )  # fmt: skip
    value = statistics.median(samples[f"{SIZES[-1]} ranks: planned"])
    worst = max(samples[f"{SIZES[-1]} ranks: planned"])
    table.append(
        Row(
            "death to plan",
            round(value, 1),
            "ms",
            faults,
            round(worst, 1),
            "<= 1000 (worst)",
            worst <= 1000,
            f"{SIZES[-1]} ranks",
        )
    )
    write("decisions", table, samples, "milliseconds of one core")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
