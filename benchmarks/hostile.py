"""Load of other tenants on a real cluster, for benchmarks/tenants.py.

    python -m benchmarks.hostile harmless|hostile KUBECONFIG     until SIGTERM

Both cost the API server the same: objects are created, patched and deleted at one rate. Hostile are
TrainingJobs of every shape, beside false coordinators; harmless are the same objects under a definition with
the same fields in another API group, which no operator of ours watches. Those have a controller too, with the
requests of any controller: it watches, and for each object it writes a status and an event once.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml
from lab.kube import falsecoordinator, images
from lab.kube.site import ROOT, false_coordinator
from lab.waiting import wait_until_async

from ropeteam.api.job import API_VERSION, KIND
from ropeteam.controller.client import access, apiclient
from ropeteam.controller.client.apiclient import AlreadyGone, ApiClient, ApiError, NotFound, ObjectRef
from ropeteam.core.seen import names

Object = dict[str, Any]
SPACES = [f"crowd-{number}" for number in range(10)]
CHURN = "churn"
"""The namespace of what comes and goes."""
PODS, CONFIG_MAPS, SERVICES, JOBS = 10_000, 5_000, 2_000, 200
A_SECOND = 1
"""Objects created, patched and deleted. With three, as large as these, the API server of a small machine
needs most of a core, whatever they are, and everything on it is slow."""
OPERATORS = 2
"""As many as the chart has."""
OTHER_GROUP, OTHER_KIND = "other.example.com", "OtherJob"
_AT_ONCE = 20
_OURS = {names.MANAGED_BY: "ropeteam", names.JOB: "no-such-job", names.TERM: "x", names.SLOT: "9" * 40}


def _meta(name: str, space: str, **more: Any) -> Object:
    return {"name": name, "namespace": space, **more}


def _job(spec: Object, name: str, space: str) -> Object:
    base = {"image": images.TRAINER, "command": ["true"], "workers": 2, "suspend": True}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": _meta(name, space), "spec": {**base, **spec}}


def _nested(levels: int) -> orjson.Fragment:
    """As text: our own client would not write it."""
    return orjson.Fragment('{"metadata":{"x":' + '{"a":' * levels + "{}" + "}" * levels + "}}")


_CLAIM = {"volume": {"persistentVolumeClaim": {"claimName": "no-such-claim"}}}
_UNPLACED = {"spec": {"schedulerName": "nobody", "containers": [{"name": "trainer"}]}}
_PORT = {"spec": {"containers": [{"name": "trainer", "ports": [{"name": {}, "containerPort": 1}]}]}}
SHAPES: dict[str, Object] = {
    "deep": {"template": _nested(800)},
    "wide": {"template": {"metadata": {"x": {f"key{number}": [] for number in range(20_000)}}}},
    "unplaced": {"template": _UNPLACED, "suspend": False},
    "port": {"template": _PORT, "suspend": False},
    "absent": {"image": "registry.invalid/none:1", "suspend": False, "template": _UNPLACED},
    "crowded": {"workers": 4096},
    "misfit": {"strategy": {"parallelism": {"tensor": 7}}, "suspend": False},
    "volume": {"checkpoint": _CLAIM, "template": _UNPLACED, "suspend": False},
}
"""Specs that the API server accepts and that cost an operator most."""


def hostile(number: int, space: str = "") -> Object:
    shape = list(SHAPES)[number % len(SHAPES)]
    return _job(SHAPES[shape], f"{shape}-{number}", space or SPACES[number % len(SPACES)])


def coming(number: int, space: str) -> Object:
    """Of those that come and go. None starts pods: on one machine with the nodes these would be felt."""
    made = hostile(number, space)
    return {**made, "spec": {**made["spec"], "suspend": True}}


def harmless(number: int, space: str) -> Object:
    """An object of the other kind, with the same spec."""
    return {**coming(number, space), "apiVersion": f"{OTHER_GROUP}/v1alpha1", "kind": OTHER_KIND}


async def define_other(client: ApiClient) -> None:
    """Create the other definition, and register its path in our client."""
    made = yaml.safe_load((ROOT / "crds" / "ropeteam.dev_trainingjobs.yaml").read_text())
    plural = f"{OTHER_KIND.lower()}s"
    names = {
        "kind": OTHER_KIND,
        "plural": plural,
        "singular": OTHER_KIND.lower(),
        "listKind": f"{OTHER_KIND}List",
    }
    made["metadata"] = {"name": f"{plural}.{OTHER_GROUP}"}
    made["spec"] |= {"group": OTHER_GROUP, "names": names}
    await client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=made)
    find_other()


def find_other() -> None:
    apiclient._API_PATHS[OTHER_KIND] = (f"/apis/{OTHER_GROUP}/v1alpha1", f"{OTHER_KIND.lower()}s")


def _pod(number: int) -> Object:
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]}
    meta = _meta(f"pod-{number}", SPACES[number % len(SPACES)])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _config_map(number: int) -> Object:
    meta = _meta(f"map-{number}", SPACES[number % len(SPACES)])
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"x": "y" * 1000}}


def _service(number: int) -> Object:
    spec = {"clusterIP": "None", "ports": [{"port": 29402}]}
    meta = _meta(f"service-{number}", SPACES[number % len(SPACES)], labels=_OURS)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


async def _namespace(client: ApiClient, name: str) -> None:
    """One in which pods may be made: it has its service account."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    await wait_until_async(f"{name} has its service account", lambda: _is_there(client, account), 60)


async def _is_there(client: ApiClient, path: str) -> bool:
    try:
        await client.request("GET", path)
    except NotFound:
        return False
    return True


async def beforehand(client: ApiClient, share: float = 1.0) -> None:
    """Everything that is there before the honest job is. `share`: of all, to try it out."""
    await define_other(client)
    for space in SPACES:
        await _namespace(client, space)
    kinds = ((_pod, PODS), (_config_map, CONFIG_MAPS), (_service, SERVICES), (hostile, JOBS))
    await _in_turn(client, (make(number) for make, count in kinds for number in range(int(count * share))))


async def _in_turn(client: ApiClient, objects: Iterator[Object]) -> None:
    """A few at a time, as fast as they are taken."""

    async def work() -> None:
        for obj in objects:
            await client.create(obj)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def churn(client: ApiClient, make: Callable[[int, str], Object]) -> None:
    """For ever: an object is created, patched a second later, and deleted after another."""
    async with asyncio.TaskGroup() as group:
        for _ in range(OPERATORS if make is harmless else 0):
            group.create_task(_watch(client))
        for number in itertools.count():
            group.create_task(_life(client, make(number, CHURN)))
            await asyncio.sleep(1 / A_SECOND)


async def _watch(client: ApiClient) -> None:
    """As an operator does: receive each change."""
    async with client.watch(f"/apis/{OTHER_GROUP}/v1alpha1/{OTHER_KIND.lower()}s", {}) as answer:
        async for _ in answer.content.iter_any():
            pass


async def _handle(client: ApiClient, made: Object) -> None:
    """As an operator does: write a status and an event."""
    fact = {
        "type": "Suspended",
        "status": "True",
        "reason": "Suspended",
        "lastTransitionTime": made["metadata"]["creationTimestamp"],
    }
    space, name = made["metadata"]["namespace"], made["metadata"]["name"]
    status = {"state": "Suspended", "conditions": [fact]}
    await client.merge(ObjectRef(made["kind"], space, name, "status"), {"status": status})
    about = {"apiVersion": made["apiVersion"], "kind": made["kind"], "namespace": space, "name": name}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": _meta(name, space), "involvedObject": about}
    await client.create({**event, "type": "Normal", "reason": "Suspended", "message": "No pod runs."})


async def _life(client: ApiClient, obj: Object) -> None:
    with suppress(ApiError, AlreadyGone):
        made = await client.create(obj)
        if made["kind"] == OTHER_KIND:
            await _handle(client, made)
        await asyncio.sleep(1)
        await client.merge(ObjectRef.of(obj), {"metadata": {"annotations": {"changed": "yes"}}})
        await asyncio.sleep(1)
        await client.delete(ObjectRef.of(obj), uid=made["metadata"]["uid"])


async def false_coordinators(client: ApiClient) -> None:
    """A job for each kind of answer, beside whose coordinator a pod of its tenant answers."""
    for how in falsecoordinator.ANSWERS:
        job = await client.create(_job({"template": _UNPLACED, "suspend": False}, f"false-{how}", CHURN))
        await client.create(false_coordinator(job, how))


async def main(kind: str, kubeconfig: Path) -> None:
    find_other()
    async with ApiClient(partial(access.load, kubeconfig)) as client:
        await _namespace(client, CHURN)
        if kind == "hostile":
            await false_coordinators(client)
        await churn(client, coming if kind == "hostile" else harmless)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
