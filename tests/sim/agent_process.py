"""An agent as a process: the real machine/step.py, and what carries out its effects in simulated time.

Events reach the machine one at a time, in the order in which they happened. A frozen process (SIGSTOP, a
paused VM) sees nothing; on waking it sees all of it at once, late. When it dies its ranks die with it
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tests.sim import stores
from tests.sim.clock import Timer
from tests.sim.kubelet import Pod
from tests.sim.network import Connection
from tests.sim.ranks import Rank

from ropeteam_trainer.agent.machine import effects, events, report
from ropeteam_trainer.agent.machine import step as machine
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import Claim, Held, Superseded
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.fence import renew_seconds
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.messages import AgentReport, Grant, Hang, Orders
from ropeteam_trainer.contract.world import CheckpointRef, Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch, Run

if TYPE_CHECKING:
    from tests.sim.coordinator_process import Coordinator
    from tests.sim.servers import Memory
    from tests.sim.world import World

TICK_SECONDS = 0.5
LAUNCH = Launch(run=Run.SCRIPT, argv=("train.py",), python="python", text="PerRank (python)")


def pod_environment(pod: Pod, container: int = 0) -> dict[str, str]:
    env = pod.manifest["spec"]["containers"][container].get("env") or ()
    return {entry["name"]: entry["value"] for entry in env if "value" in entry}


class Agent:
    def __init__(self, world: World, pod: Pod) -> None:
        self._world, self.pod, self.site = world, pod, pod.uid
        self.config = codec.decode(WorkerConfig, pod_environment(pod)[config.CONFIG])
        node = pod.kubelet.name if pod.kubelet else ""
        ip = f"10.0.0.{pod.uid[4:]}"
        self.identity = PodIdentity(pod.slot, pod.incarnation, pod.uid, ip, node, b"token")
        self.state = machine.initial_state(self.config, self.identity, LAUNCH, world.clock.now)
        self.alive, self.frozen = True, False
        self.ranks: dict[int, Rank] = {}
        self.every_rank: list[Rank] = []
        self._starting: dict[int, WorldId] = {}
        """Ranks whose start is under way, and the world that starts them."""
        self.stores: dict[WorldId, int] = {}
        """The ports of those stores."""
        self._polls_without_answer = 0
        self.restore: tuple[CheckpointRef, ...] = ()
        self.memory: Memory | None = None
        """Outlives ranks."""
        self._connection: Connection | None = None
        self._last_sent: AgentReport | None = None
        self._last_sent_at = self._reached_at = 0.0
        self._received_at = 0.0
        self._leader, self._answered_at, self._awake_since = (0, 0), world.clock.now, world.clock.now
        """The newest coordinator that has answered, and when the newest report that it answered was sent."""
        self._sent: list[float] = []
        """When each report of this connection was sent."""
        self._backlog: deque[events.Event | Callable[[], events.Event]] = deque()
        """Not yet handled: the process handles one event at a time, and reads what came while it was frozen
        when it is awake."""
        self._busy = False
        self._timer: Timer = world.clock.after(0.01, self._connect)
        self._ticker: Timer = world.clock.after(TICK_SECONDS, self._tick)
        world.agents[pod.uid] = self

    # ---- life, as a Container of the kubelet

    def terminate(self) -> None:
        self.see(events.Terminated())

    def kill(self) -> None:
        self._end()
        if self._connection:
            self._connection.close(by=self)

    def vanish(self) -> None:
        for rank in self.ranks.values():
            rank.silent = True
        self._end()
        if self._connection:
            self._connection.vanish()

    def _end(self) -> None:
        self.alive = False
        self._timer.cancel()
        self._ticker.cancel()
        self.stores.clear()
        for rank in list(self.ranks.values()):
            rank.die(ProcessExit(None, 9))

    def freeze(self, seconds: float) -> None:
        if self.alive and not self.frozen:
            self.frozen = True
            self._world.clock.after(seconds, self.thaw)

    def thaw(self) -> None:
        if not self.alive or not self.frozen:
            return
        self.frozen, self._awake_since = False, self._world.clock.now
        self._handle()

    @property
    def is_awake(self) -> bool:
        """And has been, for two looks at its clock and a kill."""
        return not self.frozen and self._world.clock.now > self._awake_since + 3 * TICK_SECONDS

    @property
    def coordinator(self) -> Coordinator | None:
        """The one to which it is connected."""
        connection = self._connection
        return cast("Coordinator", connection.server) if connection and connection.open else None

    # ---- the machine

    def see(self, event: events.Event | Callable[[], events.Event]) -> None:
        self._backlog.append(event)
        if not self._busy:
            self._handle()

    def _handle(self) -> None:
        self._busy = True
        while self._backlog and self.alive and not self.frozen:
            event = self._backlog.popleft()
            event = event() if callable(event) else event
            self.state, effects = machine.step(self.state, event, self._world.clock.now)
            for effect in effects:
                self._carry_out(effect)
            if self.alive:
                self._send_report()
        self._busy = False

    def _tick(self) -> None:
        self._ticker = self._world.clock.after(TICK_SECONDS, self._tick)
        if self.frozen:
            return
        self._watch_connection()
        heartbeats = {
            rank.number: heartbeat
            for rank in self.ranks.values()
            if rank.alive and (heartbeat := rank.send_heartbeat())
        }
        if heartbeats:
            self.see(events.HeartbeatsRead(self.ranks[min(heartbeats)].started_in, heartbeats))
        self.see(events.Tick())
        if self.is_awake:
            self._world.checks.alone(self, self._world.clock.now - self._answered_at)
            missed = stores.is_missed(self) or stores.is_unnoticed(self._world, self)
            self._polls_without_answer = self._polls_without_answer + 1 if missed else 0
            self._world.checks.store_is_missed(self, self._polls_without_answer)

    def _carry_out(self, effect: effects.Effect) -> None:
        world, clock, random = self._world, self._world.clock, self._world.random
        match effect:
            case effects.ClaimRun(plan):
                clock.after(world.disk.write_seconds(), self._claim, plan)
            case effects.StartRanks(plan, ranks, fork, restore):
                self.restore = restore
                world.checks.ranks_start(self, plan)
                world.begins(plan)
                self._starting.update(dict.fromkeys(ranks, plan.world_id))
                clock.after(0.05 if fork else 0.3 + random.random(), self._start_ranks, plan, ranks)
            case effects.KillRanks(world_id, ranks):
                world.film.write(self.pod.name, f"kills ranks {ranks} of {world_id}")
                world.checks.keeping.kills(self, ranks)
                for number in ranks:
                    rank = None if number in self._starting else self.ranks.get(number)
                    clock.after(0.01 + 0.2 * random.random(), self._kill_rank, world_id, number, rank)
            case effects.TerminateRanks(world_id, ranks):
                for number in ranks:
                    if rank := self._process(world_id, number):
                        rank.signalled(15)
            case effects.ShowStacks(world_id, ranks):
                for number in ranks:
                    self.see(events.StackShown(world_id, number, Hang()))
            case effects.SendToRank(world_id, number, message):
                if rank := self._process(world_id, number):
                    rank.receive(message)
            case effects.HostStore(world_id):
                clock.after(0.05 + 0.3 * random.random(), stores.opens, world, self, world_id)
            case effects.CloseStore(world_id):
                self.stores.pop(world_id, None)
            case effects.WriteManifest(held, grant):
                clock.after(world.disk.write_seconds(), self._write_manifest, held, grant)
            case effects.Prune(held, keep):
                self._prune(held, keep)
            case effects.DropLink():
                self._drop()
            case effects.WarmUp():
                pass
            case effects.Exit(code):
                self._exit(code)

    def _exit(self, code: int) -> None:
        self._world.film.write(self.pod.name, f"exits with {code}")
        checks, now = self._world.checks, self._world.clock.now
        members = checks.pods(checks.newest.plan) if checks.newest else frozenset()
        held = {slot.slot: slot.incarnation for slot in self._world.kubernetes.job.status.slots}
        agents = [agent for agent in self._world.live_agents() if agent.pod.uid in members]
        mates = [agent for agent in agents if agent.pod.incarnation == held.get(agent.pod.slot)]
        reported = [agent for agent in mates if now - agent._answered_at < agent.config.timeouts.lost / 2]
        checks.agent_exits(code, [agent.pod.name for agent in reported if agent.state.completed is None])
        self.kill()
        if self.pod.kubelet:
            self.pod.kubelet.exited(self.pod, code)

    # ---- effects that take time

    def _start_ranks(self, plan: Plan, ranks: tuple[int, ...]) -> None:
        """Ranks of which no kill was requested meanwhile."""
        if not self.alive:
            return
        if self.frozen:
            self._world.clock.after(0.5, self._start_ranks, plan, ranks)
            return
        known, started_in = self.state.world, plan.started_in(self.pod.slot)
        started = [number for number in ranks if self._starting.get(number) == plan.world_id]
        if known is None or known.started_in != started_in or not started:
            return
        if plan.origin is None:
            self.memory = None
        if started_in == plan.world_id:
            self.ranks = {}
        for number in started:
            del self._starting[number]
            self.ranks[number] = rank = self._world.rank(self, plan, number)
            self._world.clock.after(0.1 + 0.5 * self._world.random.random(), rank.when_awake, rank.boot)
            self.every_rank.append(rank)
        self.every_rank = [rank for rank in self.every_rank if rank.alive]
        self._world.checks.ranks_live(self)
        self.see(events.RanksStarted(started_in))

    def _process(self, world_id: WorldId, number: int) -> Rank | None:
        rank = self.ranks.get(number)
        return rank if rank is not None and rank.started_in == world_id else None

    def _kill_rank(self, world_id: WorldId, number: int, rank: Rank | None) -> None:
        """`rank`: the process when the kill was requested. One that was never started is gone as well: its
        kill is answered all the same."""
        if rank is None and number in self._starting:
            del self._starting[number]
            self.see(events.RankExited(world_id, number, ProcessExit(None, 9)))
        elif rank := rank or self._process(world_id, number):
            rank.signalled(9)

    def on_message(self, rank: Rank, message: FromRank) -> None:
        self.see(events.RankMessage(rank.started_in, rank.number, message))

    def reaped(self, rank: Rank, exit: ProcessExit) -> None:
        """Read its page once more, kill all descendants, then report it to the machine. That a signal
        takes it apart may be seen before."""
        world_id, heartbeat = rank.started_in, rank.send_heartbeat()
        if heartbeat:
            self.see(events.HeartbeatsRead(world_id, {rank.number: heartbeat}))
        if exit.signal is not None and not rank.finished and self._world.random.random() < 0.7:
            self.see(events.RankDying(world_id, rank.number, exit))
        event = events.RankExited(world_id, rank.number, replace(exit, reached_end=rank.finished))
        self._world.clock.after(0.01 + 0.1 * self._world.random.random(), self.see, event)

    def _claim(self, plan: Plan) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._world.clock.after(0.5, self._claim, plan)
            return
        disk = self._world.disk
        try:
            held = disk.carry_out(journal.claim(Claim(plan.world_id, self.pod.uid)))
        except Superseded as found:
            self.see(events.RunSuperseded(found.by, plan.world_id))
            return
        self._world.checks.keeping.claims(self, plan.world_id)
        lives_on = plan.origin or self.pod.slot != self.config.lead_slot
        if self._world.setup.exact and self.state.world and lives_on:
            self._world.checks.continues(self._world.ranks_of(self.state.world.plan), plan)
        restore = disk.carry_out(journal.lineage(held, plan.restore))
        ancestors = disk.carry_out(journal.ancestors(restore))
        self.see(events.RunClaimed(plan.world_id, held, restore, ancestors))

    def _write_manifest(self, held: Held, grant: Grant) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._world.clock.after(0.5, self._write_manifest, held, grant)
            return
        try:
            ref = self._world.disk.carry_out(journal.commit(held, grant))
        except OSError:
            self.see(events.ManifestFailed(grant.ref))
            return
        except Superseded as found:
            self.see(events.RunSuperseded(found.by, held.claim.world_id))
            return
        self._world.moments["manifest"] += 1
        self._world.checks.manifest_written(self, grant)
        self._world.film.write(self.pod.name, f"writes the manifest of step {ref.step}, world {ref.world_id}")
        lost = self._world.confirmations_lost and self._world.random.random() < 0.5
        self.see(events.ManifestFailed(grant.ref) if lost else events.ManifestWritten(ref))

    def _prune(self, held: Held, keep: tuple[CheckpointRef, ...]) -> None:
        try:
            self._world.disk.carry_out(journal.prune(held, keep))
        except Superseded as found:
            self.see(events.RunSuperseded(found.by, held.claim.world_id))

    # ---- the link

    def _connect(self) -> None:
        world = self._world
        server = world.behind_service(stale=True)
        if server is None or self.frozen or not world.network.reaches(self.site, server.site):
            self._timer = world.clock.after(0.3 + 0.4 * world.random.random(), self._connect)
            return
        self._connection, self._last_sent = world.network.connect(self, server), None
        self._received_at, self._sent = world.clock.now, []
        server.accepted(self._connection)
        self.see(events.LinkUp())

    def _drop(self) -> None:
        """The connection is over, from either side; another one is tried soon."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close(by=self)
            self._timer.cancel()
            self._timer = self._world.clock.after(0.3 + 0.4 * self._world.random.random(), self._connect)
            self.see(events.LinkLost())

    def _watch_connection(self) -> None:
        """TCP_USER_TIMEOUT: what is not acknowledged for lostSeconds ends the connection."""
        connection, now = self._connection, self._world.clock.now
        if connection is None or (
            connection.open and self._world.network.reaches(self.site, connection.server.site)
        ):
            self._reached_at = now
        elif now - self._reached_at > self.config.timeouts.lost:
            self._drop()

    def received(self, connection: Connection, message: Any) -> None:
        if connection is self._connection:
            self._received_at = self._world.clock.now
            orders = codec.decode(Orders, message) if isinstance(message, bytes) else message
            assert orders.answers is not None
            self._note(orders)
            sent = self._sent[orders.answers - 1]
            self.see(lambda: events.OrdersReceived(orders, self._world.clock.now - sent))

    def _note(self, orders: Orders) -> None:
        """A superseded agent gives no sign of life."""
        if (orders.term, orders.boot) >= self._leader:
            self._leader = orders.term, orders.boot
            self._answered_at = max(self._answered_at, self._sent[(orders.answers or 1) - 1])

    def closed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._drop()

    def _send_report(self) -> None:
        """A report, at once when there is news, else when the lease requires one."""
        connection, now = self._connection, self._world.clock.now
        if connection is None or not connection.open:
            return
        reported = report.agent_report(self.state)
        lease = renew_seconds(self.config.timeouts.lost)
        if (
            self._last_sent is not None
            and now - self._last_sent_at < lease
            and report.urgent_part(reported) == report.urgent_part(self._last_sent)
        ):
            return
        self._last_sent, self._last_sent_at = reported, now
        silent = now - self._received_at
        if silent > 3 * self.config.timeouts.lost:
            self._drop()
            return
        if silent >= self.config.timeouts.lost:
            reported = replace(reported, applied_orders=0)  # requests an answer
        self._sent.append(now)
        reported = replace(reported, number=len(self._sent))
        connection.send(self, codec.encode(reported) if self._world.codec else reported)
