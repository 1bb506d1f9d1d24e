"""One job in one world, run by the shipped code: agent/main.py, agent/link.py, coordinator/server.py and
http.py, and the operator's informers, queue, reconciler, executor and election.

    site = Site(Setup(seed=1), folder); site.run(30.0); site.settle()

Outside, and which real test holds it:
  kopf                     tests/controller/test_kopfwatch.py, test_process.py
  aiohttp, TLS, access     tests/controller/test_apiclient.py, test_access.py
  schemas, admission       tests/differential, tests/local
  ranks.py, reaper, zygote, keeper, page, sockets    tests/agent/test_ranks.py, test_fork.py, test_watching.py
  preflight, launch        tests/launchers/, test_promises.py
  torch, reader, writer    tests/trainer
  parameter servers        tests/sim/test_servers.py (simulated), tests/e2e/test_servers.py
  lines.py (stdout)        tests/agent/test_output.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from tests.shipped import containers, people
from tests.shipped.checks import ShippedChecks
from tests.shipped.disk import Disk
from tests.shipped.gang import SiteGang, hash_of
from tests.shipped.kubernetes import Kubernetes, Object
from tests.shipped.loop import Loop, Process
from tests.shipped.network import Network
from tests.shipped.nodes import Node, Pod, Scheduler
from tests.shipped.operator_process import main as operator_main
from tests.shipped.pod import SimPod
from tests.shipped.session import CONTROL, Stream
from tests.sim.film import Film
from tests.sim.promise import require
from tests.sim.ranks import Gang, Rank, Script

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.data.decisions.plan import DataPlan

JOB, SERVICE_IP = "climb", "10.96.0.7"
STALE_SECONDS = 10.0
QUIET_SECONDS = 3000.0
_BACKGROUND: Any = sys.modules.get("ropeteam_trainer.system.background")
_LINES = importlib.util.find_spec("ropeteam_trainer.system.lines") is not None


@dataclass(frozen=True)
class Setup:
    """Numbers drawn once for a history."""

    seed: int = 0
    workers: int = 2
    processes: int = 1
    feature_level: int = 3
    total_steps: int = 24
    step_ms: int = 700
    max_failures: int = 20
    window_seconds: int = 3600
    lost: int = 4
    fence: int = 15
    self_fence: int = 0
    drain: int = 8
    start: int = 60
    keep: int = 3
    every: int = 4
    operators: int = 1
    spread: int = 0
    """1: pods on nodes of their own, if possible."""
    notice: int = 8
    evict: int = 20
    tick_ms: int = 200
    """How often agents look at their clocks."""
    previous: int = 0
    """1: all begins with the release before."""
    neighbour: int = 0
    """1: another run has checkpoints in the folder."""
    servers: int = 0
    """Always: parameter servers are outside."""

    @property
    def lead_rank(self) -> int:
        return 0

    @property
    def acknowledges_pause(self) -> bool | None:
        """As in the fast simulator."""
        return self.seed % 5 > 0 or None

    @property
    def world_size(self) -> int:
        return self.workers * self.processes

    def spec(self) -> dict[str, Any]:
        recovery = {
            "maxFailures": self.max_failures,
            "windowSeconds": self.window_seconds,
            "startSeconds": self.start,
            "hangSeconds": 10,
            "lostSeconds": self.lost,
            "fenceSeconds": self.fence,
            "selfFence": bool(self.self_fence),
            "drainSeconds": self.drain,
            "exitCodes": [{"codes": [42], "action": "Fail"}, {"codes": [75], "action": "RetryFree"}],
        }
        spec: dict[str, Any] = {
            "workers": self.workers,
            "image": "torch",
            "command": ["python", "train.py"],
            "processesPerWorker": self.processes,
            "recovery": recovery,
        }
        if self.feature_level >= 2:
            volume = {"nfs": {"server": "nas", "path": "/"}}
            spec["checkpoint"] = {"volume": volume, "everySteps": self.every, "keep": self.keep}
            spec["resume"] = {"policy": "Never" if self.neighbour else "Latest"}
        return spec


class Site:
    """The interface of tests/sim's World, as far as ranks and checks need it."""

    def __init__(self, setup: Setup, folder: Path, film: bool = False) -> None:
        self.setup = setup
        self.loop = self.clock = Loop(setup.seed)
        self.random: Random = self.loop.random
        self.film = Film(cast(Any, self.loop), film)
        self.counts: Counter[str] = Counter()
        self.network = Network(self.loop)
        self.network.resolve = self._resolve
        self.disk = Disk(self.loop, folder)
        data = DataPlan(samples=22, global_batch=4)
        self.script = Script(setup.feature_level, setup.total_steps, setup.step_ms / 1000, setup.every, data)
        self.kubernetes = Kubernetes(self.loop)
        self.checks = ShippedChecks(self)
        self.api_away, self.api_slowness, self.lag = False, 1.0, 0.0
        self.streams: list[Stream] = []
        self.own_checkpoint = 0
        self.pods: dict[str, SimPod] = {}
        self.containers: dict[str, Pod] = {}
        self.operators: list[Process] = []
        self.operators_away = False
        """No operator is started, meanwhile."""
        self.writer: Process | None = None
        """The process whose request is served."""
        self.previous, self.previous_pods = bool(setup.previous), set[str]()
        """Are operators of the release before, and which pods are?"""
        self.crash_after: dict[str, int] = {}
        self.hung: list[Process] = []
        """For good."""
        self.gone = set[str]()
        """Nodes that are cut off for good; a person ends them when all else is well."""
        self._unread: set[str] = set()
        self._gangs: dict[WorldId, Gang] = {}
        self._ips = 0
        self._pointed: tuple[str, str, float] = ("", "", 0.0)
        names = [f"node-{number}" for number in range(setup.workers + 2)]
        self.nodes = {name: Node(self, name, self._start) for name in names}
        Scheduler(self, self.nodes)
        self.kubernetes.changed.append(self._changed)
        self.kubernetes.saving = self.checks.saving
        self.kubernetes.created = self.checks.pod_created
        self.disk.wrote, self.disk.claimed = self.checks.wrote, self.checks.claimed
        self.disk.pruned = self.checks.pruned
        self._submit()
        for number in range(setup.operators):
            self.start_operator(number)

    # ---- the cluster

    def _submit(self) -> None:
        meta = {"name": JOB, "namespace": "default", "uid": "", "generation": 1}
        body = {"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta}
        path = "/apis/ropeteam.dev/v1alpha1/namespaces/default/trainingjobs"
        self.kubernetes.handle("POST", path, {}, {**body, "spec": self.setup.spec()})

    @property
    def job(self) -> Object | None:
        return self.kubernetes.find("TrainingJob", JOB)

    @property
    def status(self) -> JobStatus:
        return JobStatus.model_validate((self.job or {}).get("status") or {})

    def edit(self, **changes: Any) -> None:
        if job := self.job:
            self.kubernetes.edit(job, lambda new: new["spec"].update(changes))

    def next_ip(self) -> str:
        self._ips += 1
        return f"10.0.{self._ips // 250}.{self._ips % 250 + 1}"

    def api_seconds(self) -> float:
        return (0.002 + 0.01 * self.random.random()) * self.api_slowness

    def _changed(self, event: str, obj: Object) -> None:
        if obj["kind"] == "Service" and event != "DELETED":
            term = obj["spec"]["selector"]["ropeteam.dev/term"]
            if term != self._pointed[1]:
                self._pointed = self._pointed[1], term, self.loop.now

    def _resolve(self, node: str, address: str) -> str:
        """kube-proxy of a node; it may be behind for a while."""
        if address != SERVICE_IP:
            return address
        before, term, since = self._pointed
        lag = 0.1 + (hash_of(node, term) % 100) / 100
        if self.loop.now < since + STALE_SECONDS * (hash_of(term, node) % 10 == 0) + lag and before:
            term = before
        for pod in self.containers.values():
            if pod.is_coordinator and pod.label("term") == term and pod.process and pod.process.alive:
                return pod.ip
        return ""

    # ---- processes

    def _start(self, pod: Pod) -> Process:
        name = pod.name if not pod.restarts else f"{pod.name}/{pod.restarts}"
        process = Process(self.loop, name, pod.node.name, pod.ip)
        process.previous = pod.uid in self.previous_pods
        self.network.hosts[pod.ip] = process
        self.containers[pod.uid] = pod
        main = containers.coordinator if pod.is_coordinator else containers.agent
        process.spawn(lambda: main(self, process, pod))
        return process

    def start_operator(self, number: int) -> None:
        if self.operators_away:
            return
        process = Process(self.loop, f"operator-{number}", f"operator-{number}", f"10.2.0.{number + 1}")
        process.previous = self.previous
        self.operators = [each for each in self.operators if each.node != process.node] + [process]
        self.network.hosts[process.ip] = process
        process.spawn(lambda: operator_main(self, process))

    def operator_ended(self, process: Process) -> None:
        """An operator ended: its Deployment starts another."""
        if process in self.operators:
            self.loop.after(2.0, self._again, process)

    def _again(self, process: Process) -> None:
        if process in self.operators and not process.alive:
            self.start_operator(int(process.node.rpartition("-")[2]))

    def operator_is_well(self) -> bool:
        reach = all(self.network.reaches(each.node, CONTROL) for each in self.operators)
        well = all(each.alive and not each.frozen for each in self.operators)
        return well and reach and not self.api_away and not self.network.slowness and self.api_slowness == 1.0

    def all_is_well(self) -> bool:
        partition = self.network.partitions or not all(node.in_touch for node in self.nodes.values())
        return not partition and self.operator_is_well()

    def called(self, process: Process) -> None:
        """Between two calls to the API server: the place to die."""
        if process.name in self.crash_after:
            self.crash_after[process.name] -= 1
            if self.crash_after[process.name] < 0:
                del self.crash_after[process.name]
                self.counts["operator crashes between calls"] += 1
                process.die()
                self.loop.after(5.0, self._again, process)

    # ---- output

    def block_stdout(self, process: Process) -> None:
        self._unread.add(process.name)

    def read_stdout(self, process: Process) -> None:
        if process.name in self._unread:
            self._unread.discard(process.name)
            if process not in self.hung:
                process.thaw()

    def prints(self, process: Process | None) -> None:
        """lines.py waits for nobody; without it a full pipe stops the process that writes."""
        if process and process.name in self._unread and not _LINES:
            self.counts["stopped by stdout"] += 1
            process.freeze()

    # ---- what ranks and checks query

    def store_answers(self, plan: Plan) -> bool:
        live = (pod for pod in self.pods.values() if pod.process.alive)
        return any(
            p.identity.pod_ip == plan.store_host and p.open.get(plan.world_id) == plan.store_port
            for p in live
        )

    def gang(self, rank: Rank) -> Gang:
        world_id = rank.plan.world_id
        if world_id not in self._gangs:
            self._gangs[world_id] = SiteGang(cast(Any, self), rank.plan)
        self.checks.plan_is_one(self._gangs[world_id], rank)
        return self._gangs[world_id]

    def live_pods(self) -> list[SimPod]:
        return [pod for pod in self.pods.values() if pod.process.alive]

    def live_ranks(self) -> list[Rank]:
        return [rank for pod in self.live_pods() for rank in pod.alive.values() if rank.alive]

    def live_containers(self, coordinators: bool) -> list[Pod]:
        found = (pod for pod in self.containers.values() if pod.is_coordinator == coordinators)
        return [pod for pod in found if pod.process and pod.process.alive]

    # ---- time

    def run(self, seconds: float) -> None:
        with self._voices():
            self.loop.run(self.loop.now + seconds)

    def run_events(self, count: int) -> None:
        done = 0

        def enough() -> bool:
            nonlocal done
            done += 1
            return done >= count

        with self._voices():
            self.loop.run(self.loop.now + 5.0, enough)

    @contextlib.contextmanager
    def _voices(self) -> Iterator[None]:
        logging.getLogger("ropeteam").disabled = True
        with contextlib.redirect_stderr(cast(Any, containers.LogLines(self))):
            yield

    @property
    def over(self) -> bool:
        if self.job is None:
            return not self.kubernetes.all("Pod")
        status = self.status
        suspended = bool(self.job["spec"].get("suspend")) and status.holds(ConditionType.SUSPENDED)
        running = any(pod.process and pod.process.alive for pod in self.containers.values())
        return (status.finished or suspended) and not running

    def stop_faults(self) -> None:
        """End all faults that heal alone or by hand; a taint says which machines will not come back."""
        self.network.heal()
        self.api_away, self.api_slowness, self.lag = False, 1.0, 0.0
        self.disk.slowness, self.disk.error, self.disk.hung = 1.0, None, False
        self.disk.stale.clear()
        self.crash_after.clear()
        for node in self.nodes.values():
            if node.name in self.gone:
                node.lose_power()
                node.taint_out_of_service()
            else:
                node.come_back()
        for pod in self.live_pods():
            pod.stopped = False
            pod.process.thaw()
        people.end_hung_foreign_pods(self)
        for each in (*self.operators, *(p.process for p in self.containers.values() if p.process)):
            self._unread.discard(each.name)
            if each not in self.hung:
                each.thaw()
        for number in range(self.setup.operators):
            self._again(self.operators[number])

    def settle(self, more: float = 0.0) -> None:
        """The quiet end, within QUIET_SECONDS and `more`."""
        self.stop_faults()
        self.edit(suspend=False)
        limit = self.loop.now + QUIET_SECONDS + more
        while not self.over and self.loop.now < limit:
            self.run(10.0)
            people.vouch(self)
        status = self.status
        require(self.over, "quiet end: it never came", status.state, [c.message for c in status.conditions])
        failed = status.condition(ConditionType.FAILED)
        if failed and failed.holds:
            require(bool(failed.reason and failed.message), "a failure has a reason", failed)
        self.checks.final()

    def end(self) -> None:
        self.loop.forget()
        if _BACKGROUND:  # it holds the tasks of processes that were killed
            _BACKGROUND._tasks -= {t for t in _BACKGROUND._tasks if t.get_loop() is self.loop}
