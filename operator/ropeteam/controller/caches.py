"""The caches that the operator reads: jobs, their pods and Services, and whether nodes are ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropeteam.api.job import KIND
from ropeteam.controller import reading
from ropeteam.controller.cluster import ApiClient, Object
from ropeteam.controller.informer import Informer, Key, Lens
from ropeteam.core.observation import PodSeen, ServiceSeen


@dataclass(frozen=True)
class Caches:
    """What the informers hold. Pods and Services come with the UID of their job."""

    jobs: Informer[Object]
    pods: Informer[tuple[str, PodSeen]]
    services: Informer[tuple[str, ServiceSeen]]
    nodes: Informer[bool]

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        return self.jobs, self.pods, self.services, self.nodes

    def job(self, key: Key) -> Object | None:
        return next(iter(self.jobs.of(key)), None)

    def node_is_lost(self, name: str) -> bool:
        """NotReady, or gone. Without any node we may not see them: then nothing is known."""
        if not name or not self.nodes.known_keys():
            return False
        return self.nodes.of(Key("", name)) != (True,)

    def jobs_on(self, node: str) -> tuple[Key, ...]:
        keys = self.pods.known_keys()
        return tuple(key for key in keys if any(pod.node == node for _, pod in self.pods.of(key)))


def make_caches(client: ApiClient, namespace: str, ring: Callable[[Key], None]) -> Caches:
    """`ring` is called with the key of a job that looks different now. Empty `namespace`: all."""

    def ring_jobs_on(node: Key) -> None:
        for key in caches.jobs_on(node.name):
            ring(key)

    pods = Lens("Pod", reading.MANAGED, reading.job_key, reading.pod, namespace)
    services = Lens("Service", reading.MANAGED, reading.job_key, reading.service, namespace)
    caches = Caches(
        jobs=Informer(client, Lens(KIND, "", reading.own_key, reading.job, namespace), ring),
        pods=Informer(client, pods, ring),
        services=Informer(client, services, ring),
        nodes=Informer(client, Lens("Node", "", reading.own_key, reading.node_is_ready), ring_jobs_on),
    )
    return caches
