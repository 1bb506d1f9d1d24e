"""Content of a job's Secret, and which of the operator's keys it comes of."""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until_async
from tests.controller.house import job, observation, operator_of

from ropeteam.api.job import Metadata
from ropeteam.api.status import CoordinatorStatus, JobStatus, SlotStatus
from ropeteam.controller.assembly import Operator
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.cache.parsing import pod
from ropeteam.controller.client.apiclient import AlreadyGone, ObjectRef
from ropeteam.controller.reconcile.executor import secret_manifest
from ropeteam.controller.settings import OperatorKey, OperatorKeys, SettingsError, load_keys, read
from ropeteam.core.objects.actions import CreateSecret
from ropeteam.core.objects.manifests import key_id_of
from ropeteam.core.seen.names import secret as secret_name
from ropeteam.core.seen.observation import PodSeen, Role
from ropeteam.local.cluster import LocalCluster
from ropeteam_trainer.contract import seals

OLD, NEW = OperatorKey(b"o" * 32), OperatorKey(b"n" * 32)
BEFORE, NOW, BOTH = OperatorKeys((OLD,)), OperatorKeys((NEW,)), OperatorKeys((NEW, OLD))


def entries(keys: OperatorKeys, key: OperatorKey, uid: str = "uid", folder: str = "") -> dict[str, str]:
    made = secret_manifest(CreateSecret("name", uid, {}, {}, key.id, folder), "space", keys)
    assert made["immutable"]
    return {name: base64.b64decode(text).decode() for name, text in made["data"].items()}


def test_a_secret_holds_the_jobs_token_and_the_key_of_its_folder() -> None:
    held = entries(NOW, NEW, folder="folder")
    assert bytes.fromhex(held["token"]) == NEW.token("uid")
    assert set(held) == {"token", seals.FILE}
    assert held[seals.FILE] == entries(NOW, NEW, "made anew", "folder")[seals.FILE]
    assert held[seals.FILE] != entries(NOW, NEW, folder="other")[seals.FILE]


def test_a_job_without_checkpoints_has_a_token_alone() -> None:
    assert set(entries(NOW, NEW)) == {"token"}


def test_while_keys_change_a_job_keeps_its_own_and_knows_what_was_signed_with_the_other(
    tmp_path: Path,
) -> None:
    def keys(held: dict[str, str]) -> seals.Keys:
        (tmp_path / "keys").write_text(held[seals.FILE])
        return seals.read_keys(str(tmp_path / "keys"))

    old, new = entries(BOTH, OLD, folder="f"), entries(BOTH, NEW, folder="f")
    assert bytes.fromhex(old["token"]) == OLD.token("uid")
    assert bytes.fromhex(new["token"]) == NEW.token("uid")
    assert keys(new)[0] == keys(entries(NOW, NEW, folder="f"))[0]
    assert keys(old)[0] == keys(entries(BEFORE, OLD, folder="f"))[0]
    saved = seals.signed("m", b'{"a":1}', keys(entries(BEFORE, OLD, folder="f")))
    assert seals.is_valid("m", saved, keys(new))


def test_previous_keys_need_no_file_and_each_has_a_line(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(NEW.secret.hex())
    previous = tmp_path / "previous"
    settings = read(["--key-file", str(tmp_path / "key"), "--previous-key-file", str(previous)], {})
    assert load_keys(settings) == NOW
    previous.write_text("")
    assert load_keys(settings) == NOW
    other = OperatorKey(b"p" * 32)
    previous.write_text(f"{OLD.secret.hex()}\n{other.secret.hex()}\n")
    assert load_keys(settings).accepted == (NEW, OLD, other)
    previous.write_text("abcd")
    with pytest.raises(SettingsError, match=f"{previous} is shorter"):
        load_keys(settings)


def test_a_pod_shows_by_its_secret_with_which_key_it_was_made() -> None:
    name = secret_name(Metadata(name="a-job", uid="0123456789"), OLD.id)
    volumes: list[Any] = [{"name": "x"}, {"name": "ropeteam-token", "secret": {"secretName": name}}]
    meta = {"name": "a-job-0-1", "uid": "u"}
    assert pod({"metadata": meta, "spec": {"volumes": volumes}})[1].key_id == OLD.id
    assert pod({"metadata": meta, "spec": {"volumes": volumes[:1]}})[1].key_id == ""
    assert pod({"metadata": meta})[1].key_id == ""


def test_a_jobs_key_is_that_of_the_pods_that_status_names() -> None:
    status = JobStatus(
        coordinator=CoordinatorStatus(pod_uid="c"),
        slots=(SlotStatus(slot=0, pod_uid="w", previous_pod_uid="leaves"),),
    )

    def seen(**keys: str) -> str:
        pods = (PodSeen(name=uid, uid=uid, role=Role.WORKER, key_id=key) for uid, key in keys.items())
        return key_id_of(status, tuple(pods))

    assert seen(foreign="x", w="old", c="coordinators") == "coordinators"
    assert seen(foreign="x", w="old") == "old"
    assert seen(foreign="x", leaves="old") == "old"
    assert seen(foreign="x", w="") == ""


async def key_seen(operator: Operator) -> tuple[str, bool]:
    for informer in operator.caches.informers:
        await informer.list()
    seen = await observation(operator)
    assert seen is not None
    return seen.key_id, seen.secret_exists


async def test_a_job_keeps_its_key_while_it_has_pods_and_then_gets_a_secret_with_the_new_one(
    tmp_path: Path,
) -> None:
    async with LocalCluster(tmp_path / "home") as cluster:
        file = cluster.home / "operator.key"
        async with operator_of(cluster) as operator:
            await operator.client.create(job())

            async def named() -> bool:
                found = await operator.client.get(ObjectRef("TrainingJob", "default", "job"))
                return bool(found.get("status", {}).get("coordinator", {}).get("podUID"))

            await wait_until_async("status has the coordinator pod", named)
        old = OperatorKey(bytes.fromhex(file.read_text()))
        (cluster.home / "operator.key.previous").write_text(old.secret.hex())
        file.write_text(NEW.secret.hex())
        async with operator_of(cluster, works=False) as operator:
            assert await key_seen(operator) == (old.id, False), "not seen by this operator yet"

            async def made() -> bool:
                await operator.reconciler(Key("default", "job"))
                return await key_seen(operator) == (old.id, True)

            async def gone() -> bool:
                pods = await operator.client.items(ObjectRef("Pod", "default"), "ropeteam.dev/job=job")
                for meta in (each["metadata"] for each in pods):
                    with suppress(AlreadyGone):
                        place = ObjectRef("Pod", "default", meta["name"])
                        await operator.client.delete(place, uid=meta["uid"], grace_seconds=0)
                return not pods

            await wait_until_async("a Secret with the old key is there", made)

            await wait_until_async("all pods are gone", gone)
            assert await key_seen(operator) == (NEW.id, False)
