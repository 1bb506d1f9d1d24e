"""The operator as a process: the round of reconcile/reconciler.py, able to die between any two calls.

    read the job -> send to the coordinator and receive its report -> read the pods -> decide -> save -> act
Caches may be behind by `lag` seconds. A conflict forgets the decision. What it remembers between rounds dies
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tests.sim.clock import Process, Task

from ropeteam.api.defaults import Defaults, JobPolicy
from ropeteam.api.status import JobStatus
from ropeteam.controller.reconcile.exchange import Exchange
from ropeteam.controller.reconcile.jobstates import JobState
from ropeteam.controller.reconcile.leases import Leases
from ropeteam.controller.reconcile.progresslimit import ProgressRateLimiter
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.objects.actions import CreatePolicy, CreateSecret
from ropeteam.core.seen.bounds import bounded
from ropeteam.core.seen.observation import Observation, PolicySeen
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.desired import Desired, JobReport

if TYPE_CHECKING:
    from tests.sim.kubernetes import View
    from tests.sim.world import World

SITE = "operator"
KEY_ID = "k1"
CALL_TIMEOUT = 3.0
REACTION, RESYNC, PACED = 0.02, 600.0, 1.0
_DEFAULTS = Defaults(
    operator_image="ropeteam:sim", policy=JobPolicy(operator_from=({"namespaceSelector": {}},))
)


class Answers(Protocol):
    """A coordinator's HTTP side."""

    site: str
    running: bool
    frozen: bool

    def put_desired(self, desired: Desired) -> JobReport: ...


class Operator:
    def __init__(self, world: World) -> None:
        self._world = world
        self._task: Task | None = None
        self._wakeup = self._sleeps = False
        self.lag = 0.0
        self.crash_after: int | None = None
        """Die after this many more calls to the API server or the coordinator."""
        self._polling = False
        self.start()

    # ---- life

    @property
    def alive(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """A new process: it knows nothing but what the API server returns."""
        if self._task is None:
            self._job = JobState("uid", Exchange(Leases(self._world.clock.now)))
            self._own = self._world.kubernetes.view(0.0)
            """The operator's own last write: its cache is never behind that."""
            self._seen_until = 0.0
            self._rate_limit = ProgressRateLimiter()
            self._wakeup = self._sleeps = self._polling = False
            self.crash_after = None
            self._task = self._world.clock.spawn(self._run())

    def kill(self) -> None:
        if self._task is not None:
            self._task.kill()
            self._task = None

    def ring(self) -> None:
        """Something changed; a cache that is behind wakes the operator when it has the change."""
        if self.lag:
            self._world.clock.after(self.lag + REACTION, self._receive)
        self._receive()

    def catch_up(self) -> None:
        """The caches are fresh again."""
        self.lag = 0.0
        self._receive()

    def _receive(self) -> None:
        """Something changed in the cluster: the next round comes at once, or after the one under way."""
        if self._sleeps and not self._wakeup and self._task is not None:
            self._task.wake(REACTION)
        self._wakeup = True

    # ---- rounds

    def _run(self) -> Process:
        while True:
            self._wakeup = False
            again = yield from self._round()
            if self._wakeup:
                yield REACTION
                continue
            self._sleeps = True
            yield RESYNC if again is None else max(again, REACTION)
            self._sleeps = False

    def _round(self) -> Process:
        world = self._world
        view = max(self._own, self._cached(), key=lambda view: view.version)
        report, error = yield from self._poll(view)
        pods = self._cached()
        if not world.kubernetes.job.exists:
            return None
        seen = self._observe(view, pods, report, error)
        decision = decide(seen)
        world.checks.decided(seen, decision)
        writes = decision.status != seen.status
        if writes and not self._rate_limit.permits(seen.status, decision.status, seen.now):
            return PACED
        if writes:
            saved = yield from self._save(view, decision)
            if not saved:
                return 0.1
        last = self._job.last
        sent, last.desired = last.desired, decision.desired
        yield from self._act(decision)
        return (
            0.0 if writes or decision.actions or sent != decision.desired else decision.requeue_after_seconds
        )

    def _cached(self) -> View:
        """A cache may be behind, but never goes back."""
        self._seen_until = max(self._seen_until, self._world.clock.now - self.lag)
        return self._world.kubernetes.view(self._seen_until)

    def _save(self, view: View, decision: Decision) -> Process:
        world = self._world
        yield world.api_seconds()
        status = decision.status
        if world.codec:
            status = JobStatus.model_validate(status.to_json())
            world.checks.same("status through JSON", status, decision.status)
        saved = world.kubernetes.write_status(status, view.version)
        if saved:
            world.film.wrote_status(view.status, status, decision.why)
            world.moments["write"] += 1
            self._job.last.written_at = world.kubernetes.time()
            self._own = world.kubernetes.view(world.clock.now)
            world.checks.saved(view.status, status)
        yield self._called()
        return saved

    def _act(self, decision: Decision) -> Process:
        world, created = self._world, self._job.created
        for action in decision.actions:
            yield world.api_seconds()
            world.checks.acts(action)
            world.film.write("operator", str(action))
            world.kubernetes.execute(action)
            if isinstance(action, CreateSecret):
                created.secret, created.secret_at = action.name, world.clock.now
            if isinstance(action, CreatePolicy):
                created.policy = PolicySeen(name=action.manifest["metadata"]["name"])
            yield self._called()

    def _called(self) -> float:
        """Between two calls: the place to die. Returns how long it takes to continue."""
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self._world.film.write("operator", "crashes between two calls")
                self.kill()
        return 0.0

    # ---- eyes

    def _observe(self, job: View, rest: View, report: JobReport | None, error: str) -> Observation:
        now, own_now, known = self._world.kubernetes.time(), self._world.clock.now, self._job
        exchange, created = known.exchange, known.created
        seen = Observation(
            now=now,
            job_time=known.clock.time(job.status, now, own_now),
            metadata=job.metadata,
            spec=job.spec,
            status=job.status,
            pods=rest.pods,
            service=rest.service,
            secret_exists=created.secret != "",
            secret_age=own_now - created.secret_at,
            policy=created.policy,
            key_id=KEY_ID,
            written_at=known.last.written_at,
            report=report,
            report_error=error,
            reachable_seconds=exchange.holders.reachable_seconds(own_now),
            held_slots=exchange.holders.held_slots(job.status, own_now),
            silent_coordinators=exchange.leases.silent_coordinators(job.status, own_now),
            defaults=_DEFAULTS,
        )
        if self._world.codec:
            again = Observation.model_validate_json(seen.model_dump_json())
            self._world.checks.same("observation through JSON", again, seen)
        return seen

    def _poll(self, view: View) -> Process:
        """PUT /desired: (report, "") or (None, why not)."""
        desired, exchange = self._job.last.desired, self._job.exchange
        if desired is None or view.service is None:
            return None, ""
        answers: list[JobReport | str] = []
        task = self._task

        def answered(answer: JobReport | str) -> None:
            if not answers and task is not None and task is self._task and self._polling:
                answers.append(answer)
                task.wake(0.0)

        self._polling = True
        self._put(exchange.leases.with_acknowledgement(desired), answered)
        yield CALL_TIMEOUT
        self._polling = False
        yield self._called()
        if not answers:
            return None, "no answer within 3 s"
        (answer,) = answers
        if isinstance(answer, str):
            return None, answer
        previous = view.status.coordinator.previous
        exchange.record(desired, answer, self._world.clock.now, has_previous=bool(previous))
        return answer, ""

    def _put(self, desired: Desired, answer: Callable[[JobReport | str], None]) -> None:
        world = self._world
        server = world.behind_service()
        if server is None:
            world.clock.after(REACTION, answer, "connection refused")
            return
        network, site = world.network, server.site
        if world.codec:
            desired = codec.decode(Desired, codec.encode(desired))

        def arrive() -> None:
            if not server.running or server.frozen:
                return
            report = server.put_desired(desired)
            if world.codec:
                report = codec.decode(JobReport, codec.encode(report))
                world.checks.same("report within bounds", bounded(report, len(desired.slots)), report)
            world.clock.after(network.delay(site, SITE), network.carry, site, SITE, lambda: answer(report))

        world.clock.after(network.delay(SITE, site), network.carry, SITE, site, arrive)
