"""With parameter servers one line of worlds advances, and nothing that was acknowledged is lost. There, and
under sync Exact, ranks that a plan keeps live on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.promise import require

from ropeteam_trainer.contract.world import WorldId

if TYPE_CHECKING:
    from tests.sim.agent_process import Agent
    from tests.sim.servers import Server, ServerConnection, Worker
    from tests.sim.world import World


class LineChecks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.of: dict[WorldId, ServerConnection] = {}
        """By each world that started ranks of it."""
        self._newest: tuple[WorldId, frozenset[str]] | None = None

    def began(self, chief: Server) -> None:
        line = chief.line
        self._world.checks.counts["worlds"] += 1
        if line.restored is not None:
            spoilt = self._world.disk.spoilt(line.restored.step, line.restored.world_id)
            require(not spoilt, "a world goes on from a checkpoint that verifies", line.restored)

    def remembers(self, server: Server) -> None:
        """The server is back, or has just begun."""
        self.of[server.plan.world_id] = server.line
        memory = server.memory
        require(
            memory.line == server.plan.server_generation,
            "a server goes on from its own line",
            memory,
            server.plan,
        )
        lost = {w: step for w, step in server.line.steps.items() if memory.steps[w] < step}
        require(not lost, "no acknowledged update is lost", lost, memory.steps)

    def rejoined(self, worker: Worker) -> None:
        reported = worker.line.steps[worker.number]
        require(worker.step >= reported, "a worker goes on from what was acknowledged", worker.step, reported)

    def acknowledged(self, worker: Worker) -> None:
        line, pods = worker.line, self._world.checks.pods(worker.plan)
        if self._newest is None or line.world_id >= self._newest[0]:
            self._newest = line.world_id, pods
        else:  # only one that is cut off as a whole
            require(not pods & self._newest[1], "one line advances", line.world_id, "after", self._newest[0])
        line.steps[worker.number] = max(line.steps[worker.number], worker.step)
        self._world.checks.counts["steps"] += 1


class KeepingChecks:
    def __init__(self) -> None:
        self._claimants: dict[WorldId, str] = {}
        """Pods, by the number of their claim."""

    def claims(self, agent: Agent, number: WorldId) -> None:
        claimant = self._claimants.setdefault(number, agent.pod.uid)
        require(claimant == agent.pod.uid, "no two agents claim by one number", number, agent.pod.name)

    def commits(self, agent: Agent, number: WorldId) -> bool:
        """Whether a deputy of the leading rank's agent has written that manifest."""
        claimant = self._claimants.get(number)
        require(claimant == agent.pod.uid, "who has claimed by a number commits", number, agent.pod.name)
        return agent.pod.slot != agent.config.lead_slot

    def kills(self, agent: Agent, ranks: tuple[int, ...]) -> None:
        """A rank that the newest plan keeps is killed for its own fault, or that of its pod, only."""
        world, orders, plan = agent.state.world, agent.state.orders, agent.state.desired_plan
        if world is None or orders is None or plan is None or world.terminate_by is not None:
            return
        faulty = {rank.rank for rank in world.ranks if rank.killed_for or rank.is_lost or rank.exit}
        keeps = plan.started_in(agent.pod.slot) == world.started_in
        wrong = {*ranks} - {*orders.lost, *plan.started} - faulty if keeps else set()
        require(not wrong, "a rank that a plan keeps is not killed", agent.pod.name, wrong)
