"""One job in one world: Kubernetes, operator, coordinators, agents, ranks, disk; one clock and one seed.

    world = World(Setup(seed=1)); world.run(30); world.settle()

`run` lets time pass; whatever goes wrong meanwhile is moves.py's doing. `settle` ends all faults and demands
the quiet end: within a bounded time the job is Complete, Failed with a reason, or suspended as requested.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.agent_process import Agent
from tests.sim.checks import Checks
from tests.sim.clock import Clock
from tests.sim.coordinator_process import Coordinator
from tests.sim.disk import Disk
from tests.sim.exchange import Replicas
from tests.sim.film import Film
from tests.sim.kubelet import Pod
from tests.sim.kubernetes import JOB_NAME, JOB_UID, Kubernetes
from tests.sim.network import LONGEST_DELAY, Network
from tests.sim.operator_process import Operator
from tests.sim.promise import require
from tests.sim.ranks import Gang, Rank, Script
from tests.sim.replicas import Replica
from tests.sim.servers import Server, ServerConnection, Worker
from tests.sim.steps import LEAVES

from ropeteam.api.conditions import ConditionType
from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.data.decisions.plan import DataPlan

STALE_SECONDS = 10.0
"""How long a node may send connections to the former coordinator."""
QUIET_SECONDS = 1500.0
"""Longer than every timeout in a row: fence, drain, backoffs, start, the steps that are left."""


@dataclass(frozen=True)
class Setup:
    """Numbers drawn once for a history. Small numbers: most bugs need few of anything."""

    seed: int = 0
    workers: int = 2
    processes: int = 1
    feature_level: int = 3
    codec: bool = False
    """Every message, status and observation goes through JSON and must come back the same."""
    total_steps: int = 24
    max_failures: int = 3
    window_seconds: int = 3600
    servers: int = 0
    lost: int = 4
    fence: int = 15
    self_fence: int = 0
    exact: int = 0
    """1: spec.strategy.sync.type Exact."""
    mates: int = 1
    """Ranks of a replica: spec.strategy.parallelism.shard."""
    follow: int = 0
    """1: spec.strategy.sync.catchUp Follow."""
    elastic: int = 0
    """spec.elastic.minWorkers. 0: none."""

    @property
    def lead_rank(self) -> int:
        """The rank that chooses and saves: the first server, if there are any."""
        return self.workers * self.processes if self.servers else 0

    @property
    def acknowledges_pause(self) -> bool | None:
        """Whether the scripts' library acknowledges a pause. None: it is of an earlier release."""
        return self.seed % 5 > 0 or None

    @property
    def world_size(self) -> int:
        return self.workers * self.processes + self.servers

    @property
    def whole_files(self) -> list[set[str]]:
        """Files of a checkpoint that one replica has saved for all: by the first, the second, ..."""
        firsts = range(0, self.world_size, self.mates)
        return [{"state.pt", *(f"rank-{n}.pt" for n in range(each, each + self.mates))} for each in firsts]

    def spec(self) -> dict[str, Any]:
        recovery = {
            "maxFailures": self.max_failures,
            "windowSeconds": self.window_seconds,
            "startSeconds": 20,
            "hangSeconds": 6,
            "lostSeconds": self.lost,
            "fenceSeconds": self.fence,
            "selfFence": bool(self.self_fence),
            "drainSeconds": 8,
            "exitCodes": [{"codes": [42], "action": "Fail"}, {"codes": [75], "action": "RetryFree"}],
        }
        spec: dict[str, Any] = {
            "workers": self.workers,
            "image": "torch",
            "command": ["python", "train.py"],
            "processesPerWorker": self.processes,
            "recovery": recovery,
        }
        if self.servers:
            served = {"type": "ParameterServer", "parameterServer": {"servers": self.servers}}
            spec["strategy"] = {"sync": served}
        if self.exact:
            sync = {"type": "Exact", "catchUp": "Follow" if self.follow else "Pause"}
            spec["strategy"] = {"sync": sync, "batch": {"microBatches": LEAVES}}
            if self.mates > 1:
                spec["strategy"]["parallelism"] = {"shard": self.mates}
        if self.elastic:
            spec["elastic"] = {"minWorkers": self.elastic, "waitSeconds": 5}
        if self.feature_level >= 2:
            spec["checkpoint"] = {
                "volume": {"nfs": {"server": "nas", "path": "/"}},
                "everySteps": 4,
                "keep": 3,
            }
        return spec


class World:
    def __init__(self, setup: Setup, film: bool = False) -> None:
        self.setup, self.codec = setup, setup.codec
        self.random = Random(setup.seed)
        self.clock = Clock()
        self.film = Film(self.clock, film)
        self.network = Network(self.clock, self.random)
        self.disk = Disk(self.random, JOB_NAME, JOB_UID, setup.lead_rank, setup.mates)
        data = DataPlan(samples=22, global_batch=4)  # 6 steps make one data epoch, the last of 2 samples
        self.script = Script(setup.feature_level, setup.total_steps, 0.7, 4, data)
        self.checks = Checks(self)
        self.agents: dict[str, Agent] = {}
        self.coordinators: list[Coordinator] = []
        self.own_checkpoint = 0
        """The step that a script below feature level 2 has saved by itself."""
        self.confirmations_lost = False
        self.api_slowness = 1.0
        self.moments: Counter[str] = Counter()
        """How often a moment came that is worth an ambush: plan, grant, stop, complete, manifest, write."""
        self.saved_steps: dict[tuple[int, WorldId], dict[int, int]] = {}
        """Contents of each checkpoint of parameter servers, by worker."""
        self.parameters: dict[tuple[int, int], int] = {}
        """Of replicas, by part and step."""
        self._gangs: dict[WorldId, Gang] = {}
        self._lines: dict[WorldId, ServerConnection] = {}
        self._number = 0
        self.kubernetes = Kubernetes(
            self.clock, self.random, setup.spec(), nodes=setup.workers + setup.servers + 1
        )
        self.kubernetes.start_process = self._start_process
        self.operator = Operator(self)
        self.kubernetes.rang = self.operator.ring

    # ---- who is where

    def _start_process(self, pod: Pod, boot: int) -> Agent | Coordinator:
        if pod.role is not Role.COORDINATOR:
            return Agent(self, pod)
        coordinator = Coordinator(self, pod, boot)
        self.coordinators.append(coordinator)
        return coordinator

    def behind_service(self, stale: bool = False) -> Coordinator | None:
        """The coordinator that a new connection reaches; `stale`: from a node that is behind."""
        service = self.kubernetes.service
        if service is None:
            return None
        behind = stale and self.clock.now < service.pointed_at + STALE_SECONDS and self.random.random() < 0.3
        for coordinator in reversed(self.coordinators):
            pod = coordinator.pod
            if not coordinator.running or (behind and pod.term == service.term):
                continue
            is_endpoint = self.kubernetes.pods.get(pod.name) is pod and not pod.deleting
            if behind or (is_endpoint and pod.term == service.leads_to):
                return coordinator
        return None

    def store_answers(self, plan: Plan | LiveWorld) -> bool:
        """The keeper of this world's store lives."""
        agents = (agent for agent in self.agents.values() if agent.alive)
        return any(
            a.state.identity.pod_ip == plan.store_host and a.stores.get(plan.world_id) == plan.store_port
            for a in agents
        )

    def gang(self, rank: Rank) -> Gang:
        first = rank.plan.server_generation
        if first not in self._gangs:
            self._gangs[first] = Replicas(self, rank.plan) if self.setup.exact else Gang(self, rank.plan)
        found = self._gangs[first]
        if found.plan.world_id == rank.plan.world_id:
            self.checks.plan_is_one(found, rank)
        return found

    def ranks_of(self, plan: Plan) -> Gang:
        """The ranks that train in a world, or in a later one that continues it."""
        return self._gangs[plan.server_generation]

    def begins(self, plan: Plan) -> None:
        """Ranks of this plan are about to be started, beside others or not."""
        found = self._gangs.get(plan.server_generation)
        if isinstance(found, Replicas) and plan.origin:
            found.begins(plan)

    def rank(self, agent: Agent, plan: Plan, number: int) -> Rank:
        """The script, started."""
        if not self.setup.servers:
            return (Replica if self.setup.exact else Rank)(self, agent, plan, number)
        kind = Server if agent.config.is_server(agent.pod.slot) else Worker
        return kind(self, agent, plan, number)

    def line(self, plan: Plan) -> ServerConnection:
        return self._lines.setdefault(plan.server_generation, ServerConnection(plan.server_generation))

    def live_agents(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.alive]

    def live_ranks(self) -> list[Rank]:
        return [rank for agent in self.live_agents() for rank in agent.ranks.values() if rank.alive]

    def living(self, slot: int, incarnation: int) -> list[str]:
        """Pods of this slot before that incarnation in which ranks continue. One that was paused until a
        moment ago has not looked at its clock yet."""
        agents = [agent for agent in self.live_agents() if agent.pod.slot == slot and agent.is_awake]
        previous = [agent for agent in agents if agent.pod.incarnation < incarnation]
        return [a.pod.name for a in previous if any(rank.alive for rank in a.ranks.values())]

    def live_coordinators(self) -> list[Coordinator]:
        return [each for each in self.coordinators if each.running]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def api_seconds(self) -> float:
        return (0.002 + 0.02 * self.random.random()) * self.api_slowness

    # ---- time

    def run(self, seconds: float) -> None:
        for _ in self.clock.happen(self.clock.now + seconds):
            pass

    def run_events(self, count: int) -> None:
        """The next few things only: a fault can fall between any two."""
        for done, _ in enumerate(self.clock.happen(self.clock.now + 5.0), start=1):
            if done >= count:
                return

    def suspend(self, late: Agent, seconds: float) -> None:
        """Until the world is paused; the order to do so is on its way to this agent for so long, at most."""
        self.network.slowness[late.site] = 1.0 + seconds / LONGEST_DELAY
        self.kubernetes.edit(suspend=True)
        self.run_until_moment("pause", 10.0)
        self.network.slowness.clear()

    def run_until_moment(self, kind: str, seconds: float) -> None:
        """Until just after the next moment of this kind; at most so long."""
        seen = self.moments[kind]
        for _ in self.clock.happen(self.clock.now + seconds):
            if self.moments[kind] != seen:
                return

    @property
    def over(self) -> bool:
        """As ended as it will ever be."""
        job = self.kubernetes.job
        if not job.exists:
            return not self.kubernetes.pods
        status = job.status
        suspended = bool(job.spec.get("suspend")) and status.holds(ConditionType.SUSPENDED)
        return self.ended or (suspended and not self._still_running())

    @property
    def ended(self) -> bool:
        """For good."""
        job = self.kubernetes.job
        return job.exists and job.status.finished and not self._still_running()

    def _still_running(self) -> bool:
        return any(pod.process is not None for pod in self.kubernetes.pods.values())

    def stop_faults(self) -> None:
        self.network.heal()
        self.kubernetes.slots_without_capacity = ()
        for kubelet in self.kubernetes.kubelets:
            kubelet.come_back()
        for agent in self.live_agents():
            agent.thaw()
        for coordinator in self.live_coordinators():
            coordinator.thaw()
        for agent in self.live_agents():
            for rank in agent.ranks.values():
                if rank.hangs and agent.state.feature_level == 0:
                    rank.signalled(9)  # not known to use the library: nobody sees it hang but a person
        self.confirmations_lost = False
        self.disk.slowness = self.api_slowness = 1.0
        self.operator.catch_up()
        self.operator.crash_after = None
        self.operator.start()

    def vouch(self) -> None:
        """A person does what status says, once it is true."""
        previous = self.kubernetes.job.status.coordinator.previous
        live = {coordinator.pod.uid for coordinator in self.live_coordinators()}
        stalled = self.kubernetes.job.status.condition(ConditionType.STALLED)
        confirmed = stalled is not None and stalled.reason == "PreviousCoordinatorMayRun"
        if confirmed and not any(each.pod_uid in live for each in previous):
            self.kubernetes.annotate(*stalled.message.split()[-2].split("="))

    def settle(self) -> None:
        """The quiet end. Most people resume what they suspended."""
        self.stop_faults()
        if self.setup.seed % 4:
            self.kubernetes.edit(suspend=False)
        limit = self.clock.now + QUIET_SECONDS
        while not self.over and self.clock.now < limit:
            self.run(5.0)
            self.vouch()
        status = self.kubernetes.job.status
        require(self.over, "quiet end: it never came", status.state, [c.message for c in status.conditions])
        failed = status.condition(ConditionType.FAILED)
        if failed and failed.holds:
            require(bool(failed.reason and failed.message), "a failure has a reason", failed)
        self.checks.final()
