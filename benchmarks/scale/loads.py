"""Load on the cluster: training jobs, and batch/Jobs of the same size beside them."""

from __future__ import annotations

import asyncio
from typing import Any

from ropeteam.api.job import API_VERSION, KIND
from ropeteam.controller.client.apiclient import ApiClient

Object = dict[str, Any]
_AT_ONCE = 20
_IMAGE = "registry.example/train:1"
_COMMAND = ["torchrun", "train.py"]
_BATCH = "/apis/batch/v1/namespaces/default/jobs"


def training_job(number: int, workers: int) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"scale-{number:04}", "namespace": "default"},
        "spec": {"workers": workers, "image": _IMAGE, "command": _COMMAND},
    }


def batch_job(number: int, pods: int) -> Object:
    container = {"name": "trainer", "image": _IMAGE, "command": _COMMAND}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"bare-{number:04}", "namespace": "default"},
        "spec": {"parallelism": pods, "completions": pods, "template": {"spec": spec}},
    }


async def create_training_jobs(client: ApiClient, count: int, workers: int) -> None:
    await _in_turn(client, [training_job(number, workers) for number in range(count)], "")


async def create_batch_jobs(client: ApiClient, count: int, pods: int) -> None:
    await _in_turn(client, [batch_job(number, pods) for number in range(count)], _BATCH)


async def _in_turn(client: ApiClient, objects: list[Object], path: str) -> None:
    """A few at a time, as fast as they are taken."""
    waiting = list(reversed(objects))

    async def work() -> None:
        while waiting:
            obj = waiting.pop()
            await (client.request("POST", path, body=obj) if path else client.create(obj))

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def end_workers(client: ApiClient, job: str, workers: int) -> None:
    """As kubelets do when the agents exit 0 on release."""
    ended = {"exitCode": 0, "reason": "Completed"}
    status = {"name": "trainer", "image": _IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    patch = {
        "status": {"phase": "Succeeded", "containerStatuses": [{**status, "state": {"terminated": ended}}]}
    }
    for slot in range(workers):
        path = f"/api/v1/namespaces/default/pods/{job}-{slot}-1/status"
        await client.request("PATCH", path, body=patch)
