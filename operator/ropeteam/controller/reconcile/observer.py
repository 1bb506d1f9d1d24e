"""The input of `decide` for one job, gathered into one frozen Observation.

Sources: the caches; the API server's answer to a dry run of the worker pod, requested once per generation;
and the coordinator, which receives the desired state of the last decision and answers with its report.
Limits: a Secret or NetworkPolicy is never read; that it exists is known from the API server's answer to our
create request.
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
from ropeteam.controller.client.apiclient import (
    REFUSALS,
    ApiClient,
    ApiError,
    Object,
    OwnedObjectExists,
    QuotaExceeded,
)
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
"""Characters. The API server repeats the refused object, up to a whole spec, and the text is cached."""
_LOCKED_OUT = (
    " (the job was created with an operator key that is no longer accepted: give the operator that key as a "
    "previous key)"
)


@dataclass
class JobCache:
    """State of one job that is kept between reconciles. All of it can be lost: it is fetched again."""

    uid: str
    leases: Leases
    desired: Desired | None = None
    """The desired state of the last decision, for the coordinator."""
    tried_generation: int = -1
    refusal: Refusal | None = None
    policy: PolicySeen = PolicySeen()
    secret: str = ""
    """Name of the Secret that the API server last confirmed, and when, by the clock of this process."""
    secret_at: float = 0.0
    written_at: datetime | None = None
    why: str = ""
    holders: Holders = field(default_factory=Holders)
    clock: JobClock = field(default_factory=JobClock)
    _auth: tuple[Keys, int, RequestAuth] | None = None

    def auth(self, keys: Keys, contract: int) -> RequestAuth:
        """The RequestAuth of this coordinator, reused because it keeps the challenge."""
        if self._auth is None or self._auth[:2] != (keys, contract):
            self._auth = keys, contract, auth_for(keys, contract)
        return self._auth[2]


@dataclass
class JobCaches:
    """The JobCache of each job; a job that was deleted and created again starts empty."""

    _all: dict[Key, JobCache] = field(default_factory=dict)

    def of(self, key: Key, uid: str, now: float = 0.0) -> JobCache:
        """The cache of this job. `now`: by the clock of this process, for a new cache."""
        cache = self._all.get(key)
        if cache is None or cache.uid != uid:
            cache = self._all[key] = JobCache(uid, Leases(now))
        return cache

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
    """Whether a node whose object is gone counts as a node on which nothing runs any more."""

    async def observe(self, key: Key) -> Observation | None:
        """Observe one job. None: there is no such job (any more)."""
        job = await self.caches.job(key)
        if job is None:
            return None
        raw = job.parsed()
        metadata = Metadata.model_validate(raw["metadata"])
        cache = self.job_caches.of(key, metadata.uid, self.own_clock())
        status = JobStatus.model_validate(raw["status"])
        service = self._service(key, metadata.uid)
        pods = self._pods(key, metadata.uid)
        own = self.keys.of(manifests.key_of(status, pods))
        report, error = await self._fetch_report(cache, status, service, pods)
        now = self.clock()
        observed = Observation(
            now=now,
            job_time=cache.clock.time(status, now, self.own_clock(), self.ahead()),
            metadata=metadata,
            spec=raw["spec"],
            spec_error=job.spec_error,
            status=status,
            pods=pods,
            service=service,
            policy=cache.policy,
            secret_exists=cache.secret == names.secret(metadata, own.id),
            secret_age=self.own_clock() - cache.secret_at,
            key_id=own.id,
            written_at=cache.written_at,
            report=report,
            report_error=error,
            dead_nodes=self._dead_nodes(status),
            ended_pods=self._ended_pods(status),
            reachable_seconds=cache.holders.reachable_seconds(self.own_clock()),
            held_slots=cache.holders.of(status, self.own_clock()),
            silent_coordinators=cache.leases.of(status, self.own_clock()),
            defaults=self.defaults,
        )
        return observed.model_copy(update={"refusal": await self._refusal(cache, observed)})

    def _dead_nodes(self, status: JobStatus) -> tuple[str, ...]:
        names = {each.node for each in status.coordinator.previous if each.node}
        ended = (name for name in sorted(names) if self.caches.node_has_ended(name, self.deletion_proves_end))
        return tuple(ended)

    def _ended_pods(self, status: JobStatus) -> tuple[str, ...]:
        previous = [each.pod_uid for each in status.coordinator.previous]
        previous += [slot.previous_pod_uid for slot in status.slots]
        return tuple(uid for uid in previous if uid in self.caches.ended)

    def _service(self, key: Key, job_uid: str) -> ServiceSeen | None:
        """The job's Service, by name: we create no other."""
        found = (service for uid, service in self.caches.services.of(key) if uid == job_uid)
        return next((service for service in found if service.name == names.service(key.name)), None)

    def _pods(self, key: Key, job_uid: str) -> tuple[PodSeen, ...]:
        pods = (pod for uid, pod in self.caches.pods.of(key) if uid == job_uid)
        return tuple(
            pod.model_copy(update={"node_lost": True}) if self.caches.node_is_lost(pod.node) else pod
            for pod in sorted(pods, key=lambda pod: pod.name)
        )

    async def _fetch_report(
        self, cache: JobCache, status: JobStatus, service: ServiceSeen | None, pods: tuple[PodSeen, ...]
    ) -> tuple[JobReport | None, str]:
        """Send the desired state to the job's coordinator, signed with the key of its pods. Returns its
        report and the error.
        """
        address = status.coordinator.address
        if cache.desired is None or service is None or not address:
            return None, ""
        key_id = manifests.key_of(status, pods)
        keys = Keys(self.keys.of(key_id).token(cache.uid), cache.uid, cache.desired.term)
        contracts = (pod.contract for pod in pods if pod.uid == status.coordinator.pod_uid)
        auth = cache.auth(keys, next(contracts, contract.VERSION))
        try:
            report = await self.coordinators.send_desired(
                address, auth, cache.leases.with_acknowledgement(cache.desired)
            )
        except Unreachable as error:
            return None, f"{error}{'' if not key_id or self.keys.accepts(key_id) else _LOCKED_OUT}"
        cache.leases.record(report, self.own_clock())
        if status.coordinator.previous:
            cache.holders.forget()
        else:
            cache.holders.record(cache.desired, report, self.own_clock())
        return report, ""

    async def _refusal(self, cache: JobCache, observed: Observation) -> Refusal | None:
        generation = observed.metadata.generation
        if observed.status.finished or cache.tried_generation == generation:
            return cache.refusal
        if rules.validate(observed.spec):
            return None  # `decide` reports these faults better than a dry run of half a spec
        spec = TrainingJobSpec.model_validate(observed.spec)
        try:
            cache.refusal = await self._dry_run_as_allowed(observed, spec)
        except QuotaExceeded:
            return cache.refusal  # nothing is known of the pod, and a running job has its pods already
        cache.tried_generation = generation
        return cache.refusal

    async def _dry_run_as_allowed(self, observed: Observation, spec: TrainingJobSpec) -> Refusal | None:
        """Dry run of the pod as written, and if Pod Security refuses that, as a user that is not root."""
        pod = workerpod.dry_run_pod(observed, spec)
        refusal = await self._dry_run(pod)
        if refusal is None or not refusal.by_pod_security:
            return refusal
        user = nonroot.user_of(pod)
        with suppress(QuotaExceeded):  # the quota is checked last: Pod Security has let it pass
            if await self._dry_run(workerpod.dry_run_pod(observed, spec, user)) is not None:
                return refusal
        return refusal.model_copy(update={"user": user})

    async def _dry_run(self, pod: Object) -> Refusal | None:
        """One dry run. Raises QuotaExceeded, ApiError for transient errors."""
        try:
            await self.client.create(pod, dry_run=True)
        except OwnedObjectExists:
            pass
        except QuotaExceeded:
            raise
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            return Refusal(message=error.message[:_LONGEST_REFUSAL])
        return None
