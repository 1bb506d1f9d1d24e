"""Watches: what was missed comes in order, what is not selected does not, garbage is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import CORE, JOBS, config, job, pod
from tests.differential.lists import ONE_META, TABLE
from tests.differential.scenario import At, Scenario, delete, get, patch, post, scenario, watch

CONFIGS, PODS = f"{CORE}/configmaps", f"{CORE}/pods"
A = f"{CONFIGS}/a"
_BEFORE = get(CONFIGS)
_SINCE = At(0, "metadata.resourceVersion")
_STORY = (
    _BEFORE,
    post(CONFIGS, config("a", labels={"see": "me"})),
    post(CONFIGS, config("b")),
    patch(A, {"data": {"a": "2"}}),
    patch(A, {"metadata": {"labels": None}}),
    patch(f"{CONFIGS}/b", {"metadata": {"labels": {"see": "me"}}}),
    delete(f"{CONFIGS}/b"),
    delete(A),
)


def scenarios() -> Iterator[Scenario]:
    yield scenario("watch/all that happened", *_STORY, watch(CONFIGS, resourceVersion=_SINCE))
    yield scenario("watch/selected", *_STORY, watch(CONFIGS, resourceVersion=_SINCE, labelSelector="see=me"))
    one = {"fieldSelector": "metadata.name=b"}
    yield scenario("watch/one", *_STORY, watch(CONFIGS, resourceVersion=_SINCE, **one))
    yield scenario(
        "watch/resumed", *_STORY, watch(CONFIGS, resourceVersion=At(3, "metadata.resourceVersion"))
    )
    yield scenario(
        "watch/up to date",
        *_STORY[:3],
        _BEFORE,
        watch(CONFIGS, resourceVersion=At(3, "metadata.resourceVersion")),
    )
    # The list makes the server's watch cache as new as what was made; else older states are sent, too.
    yield scenario("watch/from now", *_STORY[:4], _BEFORE, watch(CONFIGS))
    yield scenario("watch/from zero", *_STORY[:4], _BEFORE, watch(CONFIGS, resourceVersion="0"))
    yield scenario("watch/nothing", watch(CONFIGS))
    # Not "1": whether a real server still knows it depends on what it wrote before its watch cache was full.
    for version in ("x", "-1", "99999999", "1.5"):
        yield scenario(f"watch/version {version}", *_STORY[:2], watch(CONFIGS, resourceVersion=version))
    yield scenario("watch/bad selector", watch(CONFIGS, labelSelector="a===b"))
    yield scenario("watch/bad field", watch(CONFIGS, fieldSelector="data.a=1"))
    yield scenario("watch/bad timeout", watch(CONFIGS, timeoutSeconds="x"))
    yield scenario("watch/bad word", *_STORY[:2], watch(CONFIGS, watch="perhaps"))
    yield scenario("watch/one, by path", *_STORY[:2], watch(A))
    yield scenario("watch/nowhere", watch(f"{CORE}/things"))
    yield scenario("watch/with a limit", *_STORY[:3], watch(CONFIGS, limit="1"))
    yield scenario("watch/with a token", *_STORY[:3], watch(CONFIGS, **{"continue": "x"}))
    yield from _initial()
    yield from _others()


def _initial() -> Iterator[Scenario]:
    marked = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
    match = {"resourceVersionMatch": "NotOlderThan"}
    # The list makes the server's watch cache as new as what was made; else the mark may come before an event.
    made = (*_STORY[:3], _BEFORE)
    yield scenario("initial/events", *made, watch(CONFIGS, **marked, **match))
    yield scenario(
        "initial/events of version zero", *made, watch(CONFIGS, resourceVersion="0", **marked, **match)
    )
    yield scenario("initial/events since", *made, watch(CONFIGS, resourceVersion=_SINCE, **marked, **match))
    yield scenario("initial/without match", *made, watch(CONFIGS, **marked))
    yield scenario("initial/without bookmarks", *made, watch(CONFIGS, sendInitialEvents="true", **match))
    yield scenario("initial/of jobs", post(JOBS, job()), watch(JOBS, **marked, **match))
    yield scenario("initial/none wanted", *made, watch(CONFIGS, sendInitialEvents="false", **match))
    yield scenario("initial/not a watch", *made, get(CONFIGS, sendInitialEvents="true"))
    yield scenario("initial/table", *made, watch(CONFIGS, accept=TABLE, **marked, **match))


def _others() -> Iterator[Scenario]:
    before = get(JOBS)
    since: dict[str, Any] = {"resourceVersion": _SINCE}
    x = f"{JOBS}/x"
    states = (
        before, post(JOBS, job(finalizers=["a.b/c"])), patch(f"{x}/status", {"status": {"state": "Running"}}),
        patch(x, {"spec": {"suspend": True}}), patch(x, {}), delete(x),
        patch(x, {"metadata": {"finalizers": None}}),
    )  # fmt: skip
    yield scenario("watch/a job's life", *states, watch(JOBS, **since))
    yield scenario("watch/tables of jobs", *states, watch(JOBS, accept=TABLE, **since))
    yield scenario("watch/tables of pods", get(PODS), post(PODS, pod()), watch(PODS, accept=TABLE, **since))
    yield scenario("watch/metadata", *states, watch(JOBS, accept=ONE_META, **since))
    there = post(PODS, pod(nodeName="somewhere"))
    yield scenario("watch/a pod goes", get(PODS), there, delete(f"{PODS}/p"),
                   delete(f"{PODS}/p", gracePeriodSeconds=0), watch(PODS, **since))  # fmt: skip
    yield scenario("watch/a pod goes at once", get(PODS), there, delete(f"{PODS}/p", gracePeriodSeconds=0),
                   watch(PODS, **since))  # fmt: skip
    bare = post(PODS, pod())
    gone = (get(PODS), bare, delete(f"{PODS}/p"))
    yield scenario("watch/a pod goes, never scheduled", *gone, watch(PODS, **since))
    held = post(CONFIGS, config("a", finalizers=["a.b/c"]))
    let_go = patch(A, {"metadata": {"finalizers": None}})
    yield scenario("watch/let go", _BEFORE, held, delete(A), let_go, watch(CONFIGS, **since))
    refused = (post(CONFIGS, config("a")), post(CONFIGS, config("A_b")), patch(A, {"data": "x"}))
    yield scenario("watch/what was refused", _BEFORE, *refused, watch(CONFIGS, **since))
    dry = (
        post(CONFIGS, config("a"), dryRun="All"),
        post(CONFIGS, config("b")),
        delete(f"{CONFIGS}/b", dryRun="All"),
    )
    yield scenario("watch/what was dry", _BEFORE, *dry, watch(CONFIGS, **since))
    three = [post(CONFIGS, config(n)) for n in "cab"]
    yield scenario("watch/all deleted", _BEFORE, *three, delete(CONFIGS), watch(CONFIGS, **since))
