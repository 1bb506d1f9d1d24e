"""The API server as a client sees it: verbs, conflicts, watches, validation, discovery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lab.local.client import CORE, JOBS, Client

Object = dict[str, Any]

MERGE = "application/merge-patch+json"


def job(name: str = "x", **spec: Any) -> Object:
    """The smallest TrainingJob."""
    body = {"workers": 1, "command": ["python", "train.py"], **spec}
    return {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": body,
    }


def config(name: str, **meta: Any) -> Object:
    return {"metadata": {"name": name, **meta}, "data": {"a": "1"}}


async def test_who_has_no_token_stays_out(api: Client):
    for path in ("/api/v1/pods", "/wrong-token/api/v1/pods", "/apis"):
        async with api.session.get(api.cluster.url + path) as answer:
            assert answer.status == 401
    async with api.session.get(f"{api.cluster.url}/{api.cluster.token}/api/v1/pods") as answer:
        assert answer.status == 200


async def test_a_new_object_gets_identity_and_defaults(api: Client):
    made = await api.create(JOBS, job())
    assert made["metadata"]["uid"]
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["recovery"]["lostSeconds"] == 5
    status, again = await api.call("POST", JOBS, job())
    assert (status, again["reason"]) == (409, "AlreadyExists")
    named = await api.create(f"{CORE}/configmaps", {"metadata": {"generateName": "c-"}})
    assert named["metadata"]["name"].startswith("c-")


async def test_a_dry_run_answers_in_full_and_stores_nothing(api: Client):
    made = await api.create(JOBS, job(), dryRun="All")
    assert made["spec"]["recovery"]
    assert (await api.call("GET", f"{JOBS}/x"))[0] == 404
    status, answer = await api.call(
        "POST", f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": {}}, dryRun="All"
    )
    assert (status, answer["message"]) == (422, 'Pod "p" is invalid: spec.containers: Required value')


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"workers": 0},
            "spec.workers: Invalid value: 0: spec.workers in body should be greater than or equal to 1",
        ),
        ({"workers": "two"}, 'spec.workers in body must be of type integer: "string"'),
        ({"launcher": "Ssh"}, 'spec.launcher: Unsupported value: "Ssh": supported values: "Auto", "PerRank"'),
        ({"workers": None}, "spec.workers"),
    ],
)
async def test_what_cannot_work_is_refused_with_a_real_servers_message(api: Client, spec: Object, text: str):
    status, answer = await api.call("POST", JOBS, job(**spec))
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["message"].startswith('TrainingJob.ropeteam.dev "x" is invalid: ')
    assert text in answer["message"]


async def test_rules_between_fields_hold_on_creation_and_on_change(api: Client):
    status, answer = await api.call("POST", JOBS, job(recovery={"lostSeconds": 100, "fenceSeconds": 50}))
    assert status == 422, answer
    made = await api.create(JOBS, job())
    made["spec"]["workers"] = 2
    status, answer = await api.call("PUT", f"{JOBS}/x", made)
    assert (status, "spec.workers" in answer["message"]) == (422, True)


async def test_an_unknown_field_is_an_error_a_warning_or_dropped(api: Client):
    status, answer = await api.call("POST", JOBS, job(wrokers=3), fieldValidation="Strict")
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.wrokers"' in answer["message"]
    made = await api.create(JOBS, job(wrokers=3))
    assert "wrokers" not in made["spec"]


async def test_a_stale_writer_gets_409_and_the_same_content_is_no_write(api: Client):
    first = await api.create(f"{CORE}/configmaps", config("c"))
    status, second = await api.call("PUT", f"{CORE}/configmaps/c", first | {"data": {"a": "2"}})
    assert status == 200
    status, answer = await api.call("PUT", f"{CORE}/configmaps/c", first | {"data": {"a": "3"}})
    assert (status, answer["reason"]) == (409, "Conflict")
    _, same = await api.call("PUT", f"{CORE}/configmaps/c", second)
    assert same["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_status_and_spec_do_not_touch_each_other(api: Client):
    made = await api.create(JOBS, job())
    made["spec"]["suspend"], made["status"] = True, {"state": "Running"}
    _, after = await api.call("PUT", f"{JOBS}/x/status", made)
    assert after["spec"]["suspend"] is False
    assert after["status"]["state"] == "Running"
    assert after["metadata"]["generation"] == 1
    _, later = await api.call(
        "PATCH",
        f"{JOBS}/x",
        {"spec": {"suspend": True}, "status": {}},
        content=MERGE,
    )
    assert later["status"]["state"] == "Running"
    assert later["metadata"]["generation"] == 2


async def test_all_four_kinds_of_patch_change_the_object(api: Client):
    path = f"{CORE}/configmaps/c"
    await api.create(f"{CORE}/configmaps", config("c", labels={"k": "v"}))
    applied: Object = {"apiVersion": "v1", "kind": "ConfigMap"}
    kinds = {
        "application/merge-patch+json": {"data": {"a": None, "b": "2"}},
        "application/json-patch+json": [{"op": "add", "path": "/metadata/labels/c~1d", "value": "3"}],
        "application/strategic-merge-patch+json": {"data": {"e": "4"}, "$setElementOrder/x": []},
        "application/apply-patch+yaml": applied | {"data": {"f": "5"}},
    }
    for content, change in kinds.items():
        status, seen = await api.call("PATCH", path, change, content=content, fieldManager="me")
        assert status == 200, seen
    assert seen["data"] == {"b": "2", "e": "4", "f": "5"}
    assert seen["metadata"]["labels"] == {"k": "v", "c/d": "3"}
    test = [{"op": "test", "path": "/data/b", "value": "no"}]
    assert (await api.call("PATCH", path, test, content="application/json-patch+json"))[0] == 422
    made, _ = await api.call(
        "PATCH", f"{CORE}/configmaps/new", applied, content="application/apply-patch+yaml", fieldManager="me"
    )
    assert made == 201


async def test_lists_select_and_come_in_pages(api: Client):
    for number in range(5):
        await api.create(
            f"{CORE}/configmaps", config(f"c{number}", labels={"n": str(number), "odd": str(number % 2)})
        )
    path = f"{CORE}/configmaps"

    async def names(**query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await api.get(path, **query))["items"]]

    assert await names(labelSelector="odd=1") == ["c1", "c3"]
    assert await names(labelSelector="n in (0,1),odd!=1") == ["c0"]
    assert await names(labelSelector="!n") == []
    assert await names(fieldSelector="metadata.name=c4") == ["c4"]
    first = await api.get(path, limit="2")
    await api.create(path, config("c9"))
    rest = await api.get(path, **{"continue": first["metadata"]["continue"]})
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c2", "c3", "c4", "c9"]


async def test_a_watch_resumes_where_it_was(api: Client):
    path = f"{CORE}/configmaps"
    since = (await api.get(path))["metadata"]["resourceVersion"]
    await api.create(path, config("a", labels={"see": "me"}))
    await api.create(path, config("b"))
    for name, change in (
        ("a", {"data": {"x": "y"}}),
        ("a", {"metadata": {"labels": None}}),
        ("b", {"metadata": {"labels": {"see": "me"}}}),
    ):
        await api.call("PATCH", f"{path}/{name}", change, content=MERGE)
    events = api.watch(path, resourceVersion=since, labelSelector="see=me", timeoutSeconds="1")
    assert [(event["type"], event["object"]["metadata"]["name"]) async for event in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]
    fresh = [event async for event in api.watch(path, timeoutSeconds="1")]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in fresh] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
    ]


async def test_a_watch_from_before_the_compaction_gets_410(api: Client):
    path = f"{CORE}/configmaps"
    since = (await api.get(path))["metadata"]["resourceVersion"]
    await api.create(path, config("a"))
    api.cluster.store.compact()
    events = [event async for event in api.watch(path, resourceVersion=since)]
    assert [(event["type"], event["object"]["code"]) for event in events] == [("ERROR", 410)]


async def test_a_silent_watch_gets_bookmarks(api: Client):
    api.cluster.server.bookmark_seconds = 0.05
    path = f"{CORE}/configmaps"
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    events = api.watch(path, allowWatchBookmarks="true", timeoutSeconds="5", **options)
    first, second = await anext(events), await anext(events)
    assert first["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert second["type"] == "BOOKMARK"


async def test_a_delete_for_another_uid_is_refused(api: Client):
    await api.create(f"{CORE}/configmaps", config("c"))
    status, _ = await api.call("DELETE", f"{CORE}/configmaps/c", {"preconditions": {"uid": "other"}})
    assert status == 409
    assert (await api.call("DELETE", f"{CORE}/configmaps/c"))[0] == 200
    assert (await api.call("DELETE", f"{CORE}/configmaps/c"))[0] == 404


async def test_finalizers_hold_an_object_and_orphans_go(api: Client):
    owner = await api.create(JOBS, job() | {"metadata": {"name": "x", "finalizers": ["a.b/c"]}})
    ref = {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "x",
        "uid": owner["metadata"]["uid"],
    }
    await api.create(f"{CORE}/secrets", {"metadata": {"name": "s", "ownerReferences": [ref]}})
    await api.create(
        f"{CORE}/secrets", {"metadata": {"name": "t", "ownerReferences": [ref | {"uid": "none"}]}}
    )
    await api.gone(f"{CORE}/secrets/t")
    await api.call("DELETE", f"{JOBS}/x")
    held = await api.get(f"{JOBS}/x")
    assert held["metadata"]["deletionTimestamp"]
    assert (await api.call("GET", f"{CORE}/secrets/s"))[0] == 200
    change = {"metadata": {"finalizers": None}}
    await api.call("PATCH", f"{JOBS}/x", change, content=MERGE)
    await api.gone(f"{JOBS}/x")
    await api.gone(f"{CORE}/secrets/s")


async def test_a_namespace_takes_its_content_with_it(api: Client):
    await api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await api.create("/api/v1/namespaces/team/configmaps", config("c"))
    assert (await api.call("POST", "/api/v1/namespaces/none/configmaps", config("c")))[0] == 404
    await api.call("DELETE", "/api/v1/namespaces/team")
    await api.gone("/api/v1/namespaces/team")
    assert (await api.get("/api/v1/configmaps"))["items"] == []


async def test_an_immutable_secret_and_a_running_pod_stay_as_they_are(api: Client):
    secret = {"metadata": {"name": "s"}, "immutable": True, "stringData": {"token": "t"}}
    made = await api.create(f"{CORE}/secrets", secret)
    assert made["data"] == {"token": "dA=="}
    assert (await api.call("PUT", f"{CORE}/secrets/s", made | {"data": {"token": "dQ=="}}))[0] == 422
    await api.run("p", "sleep", "60")
    pod = await api.phase("p", "Running")
    pod["spec"]["containers"][0]["command"] = ["true"]
    pod["metadata"].pop("resourceVersion")
    status, answer = await api.call("PUT", f"{CORE}/pods/p", pod)
    assert (status, "may not change fields" in answer["message"]) == (422, True)


async def test_bad_requests_are_answered_never_a_crash(api: Client):
    url, headers = api.cluster.url, {"Authorization": f"Bearer {api.cluster.token}"}
    async with api.session.post(f"{url}{CORE}/pods", data=b"{[", headers=headers) as answer:
        assert answer.status == 400
    for method, path, body, code in [
        ("POST", f"{CORE}/pods", [], 400),
        ("POST", f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": None}, 422),
        ("POST", f"{CORE}/configmaps", {"metadata": {"name": "Bad_Name"}}, 422),
        ("GET", f"{CORE}/nothing", None, 404),
        ("GET", f"{CORE}/pods?labelSelector=a%3D%3D%3Db", None, 400),
        ("GET", f"{CORE}/pods?watch=1&resourceVersion=x", None, 500),  # a real one answers that too
        ("PUT", f"{CORE}/pods", {}, 405),
    ]:
        status, answer = await api.call(method, path, body)
        assert (status, answer["kind"]) == (code, "Status"), (path, answer)


async def test_events_do_not_pile_up(api: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ropeteam.local.api.gc.EVENT_LIMIT", 3)
    for number in range(6):
        await api.create(f"{CORE}/events", {"metadata": {"name": f"e{number}"}})
    await asyncio.sleep(0)
    await api.wait_for(f"{CORE}/events", lambda seen: len(seen["items"]) == 3)


async def test_orphans_stay_when_the_client_requests_it(api: Client):
    owner = await api.create(f"{CORE}/configmaps", config("owner"))
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api.create(f"{CORE}/configmaps", config("child", ownerReferences=[ref]))
    await api.call("DELETE", f"{CORE}/configmaps/owner", propagationPolicy="Orphan")
    assert (await api.get(f"{CORE}/configmaps/child"))["metadata"]["ownerReferences"] == []


async def test_a_collection_is_deleted_by_selector(api: Client):
    for name in "abc":
        await api.create(f"{CORE}/configmaps", config(name, labels={"x": name}))
    await api.call("DELETE", f"{CORE}/configmaps", labelSelector="x in (a,b)", dryRun="All")
    assert len((await api.get(f"{CORE}/configmaps"))["items"]) == 3
    await api.call("DELETE", f"{CORE}/configmaps", labelSelector="x in (a,b)")
    assert [item["metadata"]["name"] for item in (await api.get(f"{CORE}/configmaps"))["items"]] == ["c"]


async def test_a_crd_brings_its_kind_and_takes_it_away(api: Client):
    shape = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": shape}}
    names = {"plural": "toys", "kind": "Toy"}
    spec = {"group": "a.b", "scope": "Cluster", "names": names, "versions": [version]}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = await api.create(crds, {"metadata": {"name": "toys.a.b"}, "spec": spec})
    assert {row["type"] for row in made["status"]["conditions"]} == {"NamesAccepted", "Established"}
    toy = {"apiVersion": "a.b/v1", "kind": "Toy", "metadata": {"name": "t"}, "spec": {"n": 1, "m": 2}}
    toy = await api.create("/apis/a.b/v1/toys", toy)
    assert toy["spec"] == {"n": 1}
    assert (await api.get("/apis/a.b/v1"))["resources"][0]["name"] == "toys"
    assert (await api.get("/apis/a.b"))["preferredVersion"]["version"] == "v1"
    await api.call("DELETE", f"{crds}/toys.a.b")
    await api.gone("/apis/a.b/v1/toys")
    assert not [row for row in (await api.get("/apis"))["groups"] if row["name"] == "a.b"]
