"""Everything `decide` may know about one job, gathered into one frozen Observation.

Sources: the caches; the API server's answer to a dry run of the worker pod, asked once per generation; and
the coordinator, which is told what the last decision wants and answers with its report.
Limits: a Secret or NetworkPolicy is never read; that it exists is what the API server said when we created
it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from ropeteam.api.defaults import Defaults
from ropeteam.api.job import Metadata, TrainingJobSpec
from ropeteam.api.rules import validate as rules
from ropeteam.api.status import JobStatus
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import REFUSALS, AlreadyOurs, ApiClient, ApiError, Object
from ropeteam.controller.client.coordinator import Coordinators, RequestAuth, Unreachable, auth_for
from ropeteam.controller.reconcile.holders import Holders
from ropeteam.controller.reconcile.jobclock import JobClock
from ropeteam.controller.reconcile.leases import Leases
from ropeteam.controller.settings import OperatorKeys
from ropeteam.core.objects import manifests, nonroot, workerpod
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Observation, PodSeen, PolicySeen, Refusal, ServiceSeen
from ropeteam_trainer import contract
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.signing import Keys
from ropeteam_trainer.system.clocks import boot_seconds

_LONGEST_REFUSAL = 4096
"""Characters. The API server repeats what it refuses, up to a whole spec, and this is remembered."""
_LOCKED_OUT = (
    " (the job was made with an operator key that is not accepted any more: give that to the operator as a "
    "previous key)"
)


class _QuotaIsFull(Exception):
    """Nothing is known of the pod then, and a job that runs has its pods already."""


@dataclass
class JobCache:
    """What is remembered of one job between two looks. All of it can be lost: it is asked again."""

    uid: str
    leases: Leases
    desired: Desired | None = None
    """What the last decision wants the coordinator to know."""
    tried_generation: int = -1
    refusal: Refusal | None = None
    policy: PolicySeen = PolicySeen()
    secret: str = ""
    """Name of the one that the API server last said to exist, and when, by the clock of this process."""
    secret_at: float = 0.0
    written_at: datetime | None = None
    why: str = ""
    holders: Holders = field(default_factory=Holders)
    clock: JobClock = field(default_factory=JobClock)
    _auth: tuple[Keys, int, RequestAuth] | None = None

    def auth(self, keys: Keys, contract: int) -> RequestAuth:
        """One for each coordinator: it remembers the challenge."""
        if self._auth is None or self._auth[:2] != (keys, contract):
            self._auth = keys, contract, auth_for(keys, contract)
        return self._auth[2]


@dataclass
class JobCaches:
    """By job; a job that was deleted and made anew starts empty."""

    _all: dict[Key, JobCache] = field(default_factory=dict)

    def of(self, key: Key, uid: str, now: float = 0.0) -> JobCache:
        """`now`: by the clock of this process, for one that is new."""
        memory = self._all.get(key)
        if memory is None or memory.uid != uid:
            memory = self._all[key] = JobCache(uid, Leases(now))
        return memory

    def forget(self, key: Key) -> None:
        self._all.pop(key, None)


@dataclass(frozen=True)
class Observer:
    caches: Caches
    job_caches: JobCaches
    client: ApiClient
    coordinators: Coordinators
    keys: OperatorKeys
    defaults: Defaults
    clock: Callable[[], datetime]
    own_clock: Callable[[], float] = boot_seconds
    ahead: Callable[[], float] = float
    """Seconds by which the wall clock of the operator that led before us was ahead of ours, if known."""
    deletion_proves_end: bool = False
    """Of a node whose object is gone: nothing runs on it any more."""

    async def observe(self, key: Key) -> Observation | None:
        """None: there is no such job (any more)."""
        job = await self.caches.job(key)
        if job is None:
            return None
        raw = job.parsed()
        metadata = Metadata.model_validate(raw["metadata"])
        memory = self.job_caches.of(key, metadata.uid, self.own_clock())
        status = JobStatus.model_validate(raw["status"])
        service = self._service(key, metadata.uid)
        pods = self._pods(key, metadata.uid)
        own = self.keys.of(manifests.key_of(status, pods))
        report, error = await self._ask(memory, status, service, pods)
        now = self.clock()
        seen = Observation(
            now=now,
            job_time=memory.clock.time(status, now, self.own_clock(), self.ahead()),
            metadata=metadata,
            spec=raw["spec"],
            spec_fault=job.fault,
            status=status,
            pods=pods,
            service=service,
            policy=memory.policy,
            secret_exists=memory.secret == names.secret(metadata, own.id),
            secret_age=self.own_clock() - memory.secret_at,
            key_id=own.id,
            written_at=memory.written_at,
            report=report,
            report_error=error,
            dead_nodes=self._dead_nodes(status),
            ended_pods=self._ended_pods(status),
            answered_for=memory.holders.answered_for(self.own_clock()),
            held=memory.holders.of(status, self.own_clock()),
            unheard=memory.leases.of(status, self.own_clock()),
            defaults=self.defaults,
        )
        return seen.model_copy(update={"refusal": await self._refusal(memory, seen)})

    def _dead_nodes(self, status: JobStatus) -> tuple[str, ...]:
        names = {each.node for each in status.coordinator.former if each.node}
        ended = (name for name in sorted(names) if self.caches.node_has_ended(name, self.deletion_proves_end))
        return tuple(ended)

    def _ended_pods(self, status: JobStatus) -> tuple[str, ...]:
        former = [each.pod_uid for each in status.coordinator.former]
        former += [slot.old_pod_uid for slot in status.slots]
        return tuple(uid for uid in former if uid in self.caches.ended)

    def _service(self, key: Key, job_uid: str) -> ServiceSeen | None:
        """The one of that name: any other is not one that we have made."""
        found = (seen for uid, seen in self.caches.services.of(key) if uid == job_uid)
        return next((seen for seen in found if seen.name == names.service(key.name)), None)

    def _pods(self, key: Key, job_uid: str) -> tuple[PodSeen, ...]:
        pods = (pod for uid, pod in self.caches.pods.of(key) if uid == job_uid)
        return tuple(
            pod.model_copy(update={"node_lost": True}) if self.caches.node_is_lost(pod.node) else pod
            for pod in sorted(pods, key=lambda pod: pod.name)
        )

    async def _ask(
        self, memory: JobCache, status: JobStatus, service: ServiceSeen | None, pods: tuple[PodSeen, ...]
    ) -> tuple[JobReport | None, str]:
        """The job's coordinator, with the key of its pods."""
        address = status.coordinator.address
        if memory.desired is None or service is None or not address:
            return None, ""
        key_id = manifests.key_of(status, pods)
        keys = Keys(self.keys.of(key_id).token(memory.uid), memory.uid, memory.desired.term)
        told = (pod.contract for pod in pods if pod.uid == status.coordinator.pod_uid)
        auth = memory.auth(keys, next(told, contract.VERSION))
        try:
            report = await self.coordinators.tell(address, auth, memory.leases.said_back(memory.desired))
        except Unreachable as error:
            return None, f"{error}{'' if not key_id or self.keys.accepts(key_id) else _LOCKED_OUT}"
        memory.leases.heard(report, self.own_clock())
        if status.coordinator.former:
            memory.holders.forget()
        else:
            memory.holders.heard(memory.desired, report, self.own_clock())
        return report, ""

    async def _refusal(self, memory: JobCache, seen: Observation) -> Refusal | None:
        generation = seen.metadata.generation
        if seen.status.finished or memory.tried_generation == generation:
            return memory.refusal
        if rules.validate(seen.spec):
            return None  # `decide` says so better than a pod made from half a spec
        spec = TrainingJobSpec.model_validate(seen.spec)
        try:
            memory.refusal = await self._judged(seen, spec)
        except _QuotaIsFull:
            return memory.refusal
        memory.tried_generation = generation
        return memory.refusal

    async def _judged(self, seen: Observation, spec: TrainingJobSpec) -> Refusal | None:
        """As written, and if Pod Security refuses that, as a user that is not root."""
        pod = workerpod.sample(seen, spec)
        refusal = await self._try(pod)
        if refusal is None or not refusal.by_pod_security:
            return refusal
        user = nonroot.user_of(pod)
        with suppress(_QuotaIsFull):  # which is looked at last: Pod Security has let it pass
            if await self._try(workerpod.sample(seen, spec, user)) is not None:
                return refusal
        return refusal.model_copy(update={"user": user})

    async def _try(self, pod: Object) -> Refusal | None:
        """Raises _QuotaIsFull, ApiError for trouble that may pass."""
        try:
            await self.client.create(pod, dry_run=True)
        except AlreadyOurs:
            pass
        except ApiError as error:
            if "exceeded quota" in error.message:
                raise _QuotaIsFull from None
            if error.status not in REFUSALS:
                raise
            return Refusal(message=error.message[:_LONGEST_REFUSAL])
        return None
