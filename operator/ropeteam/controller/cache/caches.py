"""The caches of the operator: jobs, their pods and Services, and whether nodes are ready. A job whose text is
not cached is read from the API server each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ropeteam.api.job import KIND
from ropeteam.controller.cache import parsing
from ropeteam.controller.cache.budget import Budget
from ropeteam.controller.cache.informer import Informer, Key, MultiNamespaceInformer, WatchSpec
from ropeteam.controller.client.apiclient import ApiClient, NotFound, ObjectRef
from ropeteam.core.seen.classify import is_end_reported
from ropeteam.core.seen.observation import PodSeen, ServiceSeen

T = TypeVar("T")


class EndedPods:
    """UIDs of deleted pods whose end the kubelet had reported: the last `MOST`. They prove that nothing of
    the pod runs any more, where events came so quickly that no reconcile observed the pod between its end and
    its deletion. Limits: no pods that were deleted while there was no watch, or before this process."""

    MOST = 16_384

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}

    def record(self, seen: tuple[str, PodSeen]) -> None:
        """Record a deleted pod, if it had ended. `seen`: the cached value, with the UID of the job."""
        _, pod = seen
        if is_end_reported(pod):
            self._uids[pod.uid] = None
        if len(self._uids) > self.MOST:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: str) -> bool:
        """Whether the end of this pod was reported before it was deleted, as far as is recorded."""
        return uid in self._uids


@dataclass(frozen=True)
class Caches:
    """The informers. Pods and Services come with the UID of their job. A client may read a job that is not
    cached as a whole."""

    client: ApiClient
    jobs: MultiNamespaceInformer[parsing.CachedJob]
    pods: MultiNamespaceInformer[tuple[str, PodSeen]]
    services: MultiNamespaceInformer[tuple[str, ServiceSeen]]
    nodes: MultiNamespaceInformer[parsing.CachedNode]
    """Empty without cluster-wide permissions."""
    ended: EndedPods = field(default_factory=EndedPods)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All informers, each to be run by a task of its own."""
        return (*self.jobs.parts, *self.pods.parts, *self.services.parts, *self.nodes.parts)

    async def job_with_text(self, key: Key) -> parsing.CachedJob | None:
        """The job, read from the API server if its text is not cached. None: there is no such job. Raises
        ApiError, connection errors."""
        job = next(iter(self.jobs.values_of(key)), None)
        if job is None or job.text:
            return job
        try:
            return parsing.job(await self.client.get(ObjectRef(KIND, *key), parsing.job_text))
        except NotFound:  # the watch lags
            return None

    def node_is_lost(self, name: str) -> bool:
        """Whether the node is NotReady or gone: its kubelet reports no state of pods any more. False also if
        no node at all is cached, since we may have no permission to read nodes, and for the name ""."""
        if not name or not self.nodes.knows_any():
            return False
        return not any(node.ready for node in self.nodes.values_of(Key("", name)))

    def node_has_ended(self, name: str, deletion_proves_it: bool) -> bool:
        """Whether nothing runs there any more: an administrator has set the out-of-service taint, or the node
        is deleted and that proves it. False also if no node at all is cached."""
        if not self.nodes.knows_any():
            return False
        seen = tuple(self.nodes.values_of(Key("", name)))
        return any(node.out_of_service for node in seen) or (not seen and deletion_proves_it)

    def jobs_with_pods_on(self, node: str) -> tuple[Key, ...]:
        """The jobs with a cached pod on this node. Looks at all pods."""
        keys = self.pods.known_keys()
        return tuple(key for key in keys if any(pod.node == node for _, pod in self.pods.values_of(key)))


def make_caches(
    client: ApiClient, namespaces: tuple[str, ...], enqueue: Callable[[Key], None], with_nodes: bool = True
) -> Caches:
    """The caches, which are filled once their informers run. `enqueue` is called with the key of each job
    that has changed, or whose pods, Services or nodes have. No `namespaces`: all. `with_nodes`: watch nodes,
    which needs a cluster-wide role.
    """

    def enqueue_jobs_on(node: Key) -> None:
        for key in caches.jobs_with_pods_on(node.name):
            enqueue(key)

    def informers(spec: WatchSpec[T]) -> MultiNamespaceInformer[T]:
        """Informers of one kind: one for each namespace, or one for all."""
        return MultiNamespaceInformer(
            Informer(client, spec, enqueue, namespace) for namespace in namespaces or ("",)
        )

    nodes = WatchSpec("Node", "", parsing.own_key, parsing.node)
    budget = Budget()
    jobs = WatchSpec(
        KIND, "", parsing.own_key, parsing.job, parsing.job_event, budget.reserve, budget.release
    )
    ended = EndedPods()
    caches = Caches(
        client=client,
        ended=ended,
        jobs=informers(jobs),
        pods=informers(
            WatchSpec("Pod", parsing.MANAGED, parsing.job_key, parsing.pod, on_delete=ended.record)
        ),
        services=informers(WatchSpec("Service", parsing.MANAGED, parsing.job_key, parsing.service)),
        nodes=MultiNamespaceInformer((Informer(client, nodes, enqueue_jobs_on),) if with_nodes else ()),
    )
    return caches
