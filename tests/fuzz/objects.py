"""Objects of the API server, of each kind that the operator reads, as its informers get them: as bytes.

Around the object is a running job with all that belongs to it, and what the caches then hold is observed and
decided about, twice. No exception but those that an informer handles; the decision can be written, and so can
what it would make. Of a TrainingJob, whose status nobody but the operator may write, one that is no status
fails its own job alone.
`outlines`: the same TrainingJobs as kopf gets them. It handles nothing, so there each is JSON, with what an
API server itself writes into each object.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import orjson
from aiohttp.base_protocol import BaseProtocol
from pydantic import ValidationError
from tests.builders import NOON, a_job
from tests.core.fake_cluster import FakeCluster
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign
from tests.fuzz.specs import SPECS

from ropeteam.api.job import API_VERSION, Metadata
from ropeteam.api.status import JobStatus
from ropeteam.controller.cache import informer, parsing
from ropeteam.controller.cache.caches import make_caches
from ropeteam.controller.cache.informer import Informer, Key
from ropeteam.controller.client import apiclient, boundedjson
from ropeteam.controller.client.apiclient import ApiClient, Object, ObjectRef
from ropeteam.controller.client.coordinator import Coordinators, CoordinatorUnreachable
from ropeteam.controller.kopfwatch.outline import _ReducedBody
from ropeteam.controller.reconcile.admission import PodCheck
from ropeteam.controller.reconcile.exchange import CoordinatorLink
from ropeteam.controller.reconcile.jobread import read_job
from ropeteam.controller.reconcile.jobstates import JobStates
from ropeteam.controller.reconcile.observer import Observer
from ropeteam.controller.settings import OperatorKey, OperatorKeys
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import CreatePod, CreateService
from ropeteam.core.seen.view import with_changes
from ropeteam_trainer.contract import codec

KINDS = ("TrainingJob", "Pod", "Service", "Node")
JOB = Key("lab", "mnist")
_LIST, _WATCH = b"list ", b"watch "


@cache
def world() -> dict[str, list[Object]]:
    """A running job of two workers, by kind, as an API server shows it."""
    fake = FakeCluster(a_job(2, checkpoint={"volume": {"nfs": {"server": "s", "path": "/"}}}))
    fake.play(until=lambda seen: seen.status.state == "Running")
    seen, found = fake.observe(), dict[str, list[Object]]()
    meta = seen.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    job = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": meta, "spec": seen.spec}
    found["TrainingJob"] = [job | {"status": seen.status.to_json()}]
    manifests = [
        a.manifest for d in fake.decisions for a in d.actions if isinstance(a, CreatePod | CreateService)
    ]
    uids = {pod.name: pod.uid for pod in seen.pods}
    for manifest in manifests:
        found.setdefault(manifest["kind"], []).append(dict(manifest))
    for pod in found["Pod"]:
        pod["metadata"] |= {"uid": uids[pod["metadata"]["name"]]}
        pod["spec"] |= {"nodeName": "node-0"}
        pod["status"] = _running(pod)
    assert seen.service
    found["Service"][0]["metadata"] |= {"uid": seen.service.uid}
    found["Service"][0]["spec"] |= {"clusterIP": "10.0.0.1"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    found["Node"] = [_node(f"node-{n}") | {"status": ready} for n in (0, 1)]
    for objects in found.values():
        for number, obj in enumerate(objects):
            obj["metadata"] |= {
                "resourceVersion": str(number + 2),
                "creationTimestamp": "2026-11-20T12:00:00Z",
            }
    return found


def _node(name: str) -> Object:
    taint = {"key": "example.com/x", "effect": "NoSchedule"}
    meta = {"name": name, "uid": f"uid-{name}", "labels": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}


def _running(pod: Object) -> Object:
    def states(containers: list[Object], state: Object) -> list[Object]:
        return [{"name": each["name"], "restartCount": 0, "state": state} for each in containers]

    spec, done = pod["spec"], {"terminated": {"exitCode": 0, "reason": "Completed"}}
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": states(spec["containers"], {"running": {"startedAt": "2026-11-20T12:00:00Z"}}),
        "initContainerStatuses": states(spec.get("initContainers", []), done),
    }


def page(objects: list[Object]) -> Object:
    return {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": objects}


def _is_the_servers(path: mutations.Path) -> bool:
    """Fields of a page or an event that the server writes itself, whatever a client requests."""
    inside = path[2 if path[0] == "items" else 1 :]
    return not inside or inside == ("metadata",) or (inside[0] == "metadata" and inside[1] in parsing.READ)


def draw(chance: Random, kind: str, exact: bool = False) -> bytes:
    """`exact`: JSON, as a server writes it."""
    objects = copy.deepcopy(world()[kind])
    if kind == "TrainingJob":
        objects[0]["spec"] = chance.choice(SPECS)
    whole: Object = page(objects)
    how = chance.choice((_LIST, _WATCH))
    if how == _WATCH:
        obj = chance.choice(objects)
        obj["metadata"]["resourceVersion"] = "10"
        whole = {"type": chance.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED")), "object": obj}
    of_ours = kind == "TrainingJob" and chance.random() < 0.8

    def keep(path: mutations.Path) -> bool:
        return path[0] not in ("items", "object") or _is_the_servers(path) or (of_ours and "status" in path)

    text = mutations.written(mutations.bent(chance, whole, keep, exact))
    return how + (mutations.damaged(chance, text) if not exact and chance.random() < 0.1 else text)


class Api:
    """Requests of an informer, and of a check of the pod, to an API server."""

    chance = Random(0)

    def __init__(self, kind: str, case: bytes) -> None:
        self.pages = {ObjectRef(each).path: orjson.dumps(page(objects)) for each, objects in world().items()}
        self.line = b""
        if case.startswith(_LIST):
            self.pages[ObjectRef(kind).path] = case.removeprefix(_LIST)
        else:
            self.line = case.removeprefix(_WATCH)

    async def request(self, method: str, path: str, *, params: Any, most_bytes: int) -> Object:  # noqa: ARG002
        assert method == "GET"
        if len(self.pages[path]) > most_bytes:
            raise boundedjson.ResponseTooLarge(f"more than {most_bytes} bytes")
        return apiclient._parse_answer(self.pages[path])

    @asynccontextmanager
    async def watch(self, *_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(content=stream(self.line + b"\n"))

    async def create(self, obj: Object, *, dry_run: bool = False) -> Object:
        assert dry_run
        orjson.dumps(obj)
        return obj


def stream(content: bytes) -> aiohttp.StreamReader:
    """That has ended."""
    loop = asyncio.get_running_loop()
    reader = aiohttp.StreamReader(BaseProtocol(loop), 1 << 30, loop=loop)
    reader.feed_data(content)
    reader.feed_eof()
    return reader


class Silent:
    async def send_desired(self, *_: object) -> None:
        raise CoordinatorUnreachable("10.0.0.1: no answer within 3 s")


async def attempt(case: bytes, kind: str) -> list[str]:
    client = cast(ApiClient, Api(kind, case))
    caches = make_caches(client, (), lambda _: None)
    (cached,) = (each for each in caches.informers if each.kind == kind)
    for each in caches.informers:
        if each is not cached:
            await each.list()
    if not await _received(cached, case):
        return ["unreadable as a whole"]
    coordinators = cast(Coordinators, Silent())
    keys = OperatorKeys((OperatorKey(b"k" * 32),))
    link = CoordinatorLink(coordinators, keys, lambda: 0.0)
    observer = Observer(caches, keys, a_job().defaults, lambda: NOON, lambda: 0.0)
    return [await _decided(link, observer, PodCheck(client))]


async def _received(cached: Informer[Any], case: bytes) -> bool:
    try:
        await cached.list()
        if case.startswith(_WATCH):
            await cached._watch()
    except informer._UNREADABLE:
        return False
    return True


async def _decided(link: CoordinatorLink, observer: Observer, pod_check: PodCheck) -> str:
    job = await observer.caches.job_with_text(JOB)
    if job is None:
        return "passed over"
    try:
        Metadata.model_validate(job.parsed()["metadata"])
        JobStatus.model_validate(job.parsed()["status"])
    except ValidationError:
        return "not as the server and we write it"
    why, states = "", JobStates()
    for _ in range(2):
        read = await read_job(observer.caches, JOB)
        assert read
        state = states.state_of(JOB, read.metadata.uid, 0.0)
        report, error = await link.exchange(read, state.exchange, state.last.desired)
        seen = observer.observe(read, state, report, error)
        decision = decide(with_changes(seen, refusal=await pod_check.refusal(seen, state.admission)))
        orjson.dumps(decision.status.to_json())
        for action in decision.actions:
            orjson.dumps([str(action), getattr(action, "manifest", None)])
        if decision.desired:
            codec.encode(decision.desired)
        state.last.desired, why = decision.desired, decision.why
    return "refused" if job.spec_error or "spec" in why else "decided about"


async def outlined(case: bytes) -> list[str]:
    """As kopf reads it."""
    how = _LIST if case.startswith(_LIST) else _WATCH
    content = _ReducedBody(stream(case.removeprefix(how) + b"\n"))
    texts = [await content.read()] if how == _LIST else [line async for line in content.iter_chunked(1)]
    for each in texts:
        assert not boundedjson.is_deeper(orjson.loads(each), 6)
    return ["shown in outline" if texts else "the watch ends"]


@asynccontextmanager
async def _opened(kind: str) -> AsyncIterator[Attempt]:
    world()
    yield partial(attempt, kind=kind)


@asynccontextmanager
async def _outlines() -> AsyncIterator[Attempt]:
    yield outlined


CAMPAIGNS = (
    *(
        Campaign(f"{kind.lower()}s", "objects", 10_000, partial(draw, kind=kind), partial(_opened, kind))
        for kind in KINDS
    ),
    Campaign("outlines", "objects", 10_000, partial(draw, kind="TrainingJob", exact=True), _outlines),
)
