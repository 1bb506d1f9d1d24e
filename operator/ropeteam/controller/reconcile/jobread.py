"""A job with its Service and pods as one moment of the caches has them: what a reconcile begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropeteam.api.job import Metadata
from ropeteam.api.status import JobStatus
from ropeteam.controller.cache.caches import Caches
from ropeteam.controller.cache.informer import Key
from ropeteam.core.objects import manifests
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import PodSeen, ServiceSeen


@dataclass(frozen=True)
class JobRead:
    """One job, as the caches have it."""

    metadata: Metadata
    spec: dict[str, Any]
    """As written, not validated; empty if there is a `spec_error`."""
    spec_error: str
    """The error because of which the spec was left out of the cache, as text; "": it is there."""
    status: JobStatus
    service: ServiceSeen | None
    pods: tuple[PodSeen, ...]
    """By name; no pods of an earlier job of this name."""

    @property
    def key_id(self) -> str:
        """Id of the operator key that the token of these pods is derived from; "": no pod has one yet."""
        return manifests.key_id_of(self.status, self.pods)


async def read_job(caches: Caches, key: Key) -> JobRead | None:
    """Read one job. None: there is no such job (any more). Raises ApiError, connection errors: a job whose
    text is not cached is read from the API server. Raises ValidationError for metadata or a status that no
    operator of ours has written."""
    job = await caches.job_with_text(key)
    if job is None:
        return None
    raw = job.parsed()
    metadata = Metadata.model_validate(raw["metadata"])
    return JobRead(
        metadata=metadata,
        spec=raw["spec"],
        spec_error=job.spec_error,
        status=JobStatus.model_validate(raw["status"]),
        service=_service(caches, key, metadata.uid),
        pods=_pods(caches, key, metadata.uid),
    )


def _service(caches: Caches, key: Key, job_uid: str) -> ServiceSeen | None:
    """The job's Service, by name: we create no other. None: it is not in the cache."""
    found = (service for uid, service in caches.services.values_of(key) if uid == job_uid)
    return next((service for service in found if service.name == names.service(key.name)), None)


def _pods(caches: Caches, key: Key, job_uid: str) -> tuple[PodSeen, ...]:
    """The job's pods by name, those on lost nodes with `node_lost`, which no kubelet reports."""
    pods = (pod for uid, pod in caches.pods.values_of(key) if uid == job_uid)
    return tuple(
        pod.model_copy(update={"node_lost": True}) if caches.node_is_lost(pod.node) else pod
        for pod in sorted(pods, key=lambda pod: pod.name)
    )
