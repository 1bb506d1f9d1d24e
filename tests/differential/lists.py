"""Lists: selectors, pages, versions, tables and metadata only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.bodies import ALL_JOBS, CORE, JOBS, SMALLEST, config, job, pod
from tests.differential.scenario import At, Scenario, get, patch, post, scenario

CONFIGS, PODS = f"{CORE}/configmaps", f"{CORE}/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
ONE_META = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
META_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
LABELS = (
    "n=1", "n==1", "n!=1", "n", "!n", "n in (0,1)", "n notin (0,1)", "n in (0, 1), odd!=1", " n = 1 ", "n>0",
    "n<2", "odd,n!=0", "none=1", "n=", "n in ()", "n in (0", "n===1", "=1", "n in", "a b", "n=a b", "!", ",",
    "n=1,", "n!=1,!m", "n>x", "kubernetes.io/x=1", "a/b/c=1", "n=-", "n=" + "a" * 64, "n in (0,,1)", "!n=1",
)  # fmt: skip
FIELDS = (
    "metadata.name=c1", "metadata.name!=c1", "metadata.namespace={ns}", "metadata.name==c1",
    "metadata.name=c1,metadata.name=c2", "metadata.labels.n=1", "data.a=1", "metadata.name", "metadata.name=",
    "x", "metadata.name in (c1)", "=", "metadata.uid=x",
)  # fmt: skip
POD_FIELDS = (
    "spec.nodeName=somewhere", "spec.nodeName=", "status.phase=Pending", "status.phase!=Failed",
    "spec.restartPolicy=Never", "status.podIP=", "spec.hostNetwork=false", "spec.containers=x",
    "spec.schedulerName=default-scheduler", "spec.serviceAccountName=", "status.nominatedNodeName=",
    "status.reason=x",
)  # fmt: skip
JOB_FIELDS = ("metadata.name=x", "metadata.namespace={ns}", "spec.workers=2", "status.state=Running")
EVENT_FIELDS = (
    "involvedObject.name=x", "involvedObject.kind=TrainingJob,involvedObject.name=x", "reason=Started",
    "type=Normal", "involvedObject.uid=u", "source=ropeteam", "message=x",
)  # fmt: skip
_MADE = tuple(post(CONFIGS, config(f"c{n}", labels={"n": str(n), "odd": str(n % 2)})) for n in range(5))


def scenarios() -> Iterator[Scenario]:
    yield scenario("list/empty", get(CONFIGS), get(JOBS), get(PODS))
    yield scenario("list/all", *_MADE, get(CONFIGS))
    for text in LABELS:
        yield scenario(f"label/{text}", *_MADE[:3], get(CONFIGS, labelSelector=text))
    for text in FIELDS:
        yield scenario(f"field/{text}", *_MADE[:3], get(CONFIGS, fieldSelector=text))
    pods = post(PODS, pod("a", nodeName="somewhere")), post(PODS, pod("b"))
    for text in POD_FIELDS:
        yield scenario(f"pod-field/{text}", *pods, get(PODS, fieldSelector=text))
    for text in JOB_FIELDS:
        yield scenario(f"job-field/{text}", post(JOBS, job()), get(JOBS, fieldSelector=text))
    event = {
        "metadata": {"name": "e"},
        "reason": "Started",
        "type": "Normal",
        "source": {"component": "ropeteam"},
    }
    event["involvedObject"] = {"kind": "TrainingJob", "name": "x", "namespace": "{ns}", "uid": "u"}
    for text in EVENT_FIELDS:
        yield scenario(
            f"event-field/{text}", post(f"{CORE}/events", event), get(f"{CORE}/events", fieldSelector=text)
        )
    yield scenario("list/jobs by label", post(JOBS, job(labels={"a": "b"})), get(JOBS, labelSelector="a=b"))
    yield scenario(
        "list/jobs of all by label",
        post(JOBS, job(labels={"u": "{ns}"})),
        get(ALL_JOBS, labelSelector="u={ns}"),
    )
    yield from _pages()
    yield from _versions()
    yield from _tables()


def _pages() -> Iterator[Scenario]:
    first = get(CONFIGS, limit=2)
    rest: dict[str, Any] = {"continue": At(5, "metadata.continue")}
    yield scenario("page/two and the rest", *_MADE, first, get(CONFIGS, **rest))
    yield scenario("page/two, two, one", *_MADE, first, get(CONFIGS, limit=2, **rest),
                   get(CONFIGS, limit=2, **rest | {"continue": At(6, "metadata.continue")}))  # fmt: skip
    late = post(CONFIGS, config("c9"))
    yield scenario("page/of the past", *_MADE, first, late, get(CONFIGS, **rest))
    change = patch(f"{CONFIGS}/c3", {"data": {"a": "changed"}})
    yield scenario("page/of the past, changed", *_MADE, first, change, get(CONFIGS, **rest))
    yield scenario("page/with labels", *_MADE, get(CONFIGS, limit=1, labelSelector="odd=1"),
                   get(CONFIGS, labelSelector="odd=1", **rest))  # fmt: skip
    yield scenario("page/exactly all", *_MADE, get(CONFIGS, limit=5))
    yield scenario("page/more than all", *_MADE, get(CONFIGS, limit=50))
    for limit in ("0", "-1", "x"):
        yield scenario(f"page/limit {limit}", *_MADE, get(CONFIGS, limit=limit))
    for token in ("x", "e30", "{}"):
        yield scenario(f"page/token {token}", *_MADE[:1], get(CONFIGS, limit=1, **{"continue": token}))
    with_version = get(CONFIGS, resourceVersion="1", **rest)
    yield scenario("page/token and version", *_MADE, first, with_version)


def _versions() -> Iterator[Scenario]:
    own: Any = At(1, "metadata.resourceVersion")
    made = (*_MADE[:2], get(CONFIGS))
    listed = At(2, "metadata.resourceVersion")
    for path, verb in ((CONFIGS, "list"), (f"{CONFIGS}/c0", "get")):
        for version in ("0", "1", "x", "-1", ""):
            yield scenario(f"version/{verb} {version or 'empty'}", *made, get(path, resourceVersion=version))
        yield scenario(f"version/{verb} newest", *made, get(path, resourceVersion=listed))
        yield scenario(f"version/{verb} future", *made, get(path, resourceVersion="99999999"))
    for match in ("Exact", "NotOlderThan", "Perhaps"):
        query = {"resourceVersionMatch": match}
        yield scenario(f"version/{match} newest", *made, get(CONFIGS, resourceVersion=listed, **query))
        yield scenario(f"version/{match} without version", *made, get(CONFIGS, **query))
        yield scenario(f"version/{match} zero", *made, get(CONFIGS, resourceVersion="0", **query))
    late = post(CONFIGS, config("late"))
    past = get(CONFIGS, resourceVersion=own, resourceVersionMatch="Exact")
    yield scenario("version/Exact past", *_MADE[:2], late, past)


def _tables() -> Iterator[Scenario]:
    made = post(JOBS, job())
    state = {"state": "Running", "workers": {"summary": "1/2"}, "progress": {"step": 7, "summary": "7%"}}
    running = patch(f"{JOBS}/x/status", {"status": state})
    for path, verb in ((JOBS, "list"), (f"{JOBS}/x", "get")):
        yield scenario(f"table/job {verb}", made, get(path, accept=TABLE))
        yield scenario(f"table/running job {verb}", made, running, get(path, accept=TABLE))
        for include in ("None", "Object", "Everything"):
            yield scenario(
                f"table/job {verb} {include}", made, get(path, accept=TABLE, includeObject=include)
            )
    yield scenario("table/nothing there", get(f"{JOBS}/x", accept=TABLE))
    yield scenario("table/empty", get(JOBS, accept=TABLE))
    yield scenario("table/create", post(JOBS, job()), get(f"{CORE}/pods", accept=TABLE))
    bodies = {
        "pods": pod("p"), "configmaps": config("p"),
        "services": {"metadata": {"name": "p"}, "spec": {"ports": [{"port": 80}]}},
        "secrets": {"metadata": {"name": "p"}, "data": {"a": "dA=="}},
        "events": {"metadata": {"name": "p"}, "reason": "Go", "message": "m", "type": "Normal",
                   "involvedObject": {"kind": "Pod", "name": "x", "namespace": "{ns}"}},
    }  # fmt: skip
    for plural, body in bodies.items():
        path = f"{CORE}/{plural}"
        yield scenario(f"table/{plural}", post(path, body), get(path, accept=TABLE))
        yield scenario(
            f"metadata/{plural}",
            post(path, body),
            get(path, accept=META_LIST),
            get(f"{path}/p", accept=ONE_META),
        )
    yield scenario("table/namespace", get("/api/v1/namespaces/{ns}", accept=TABLE))
    yield scenario("table/pages", made, post(JOBS, job("y", SMALLEST)), get(JOBS, accept=TABLE, limit=1))
    yield scenario("metadata/job", made, get(JOBS, accept=META_LIST), get(f"{JOBS}/x", accept=ONE_META))
    for accept in (TABLE.replace("v=v1;", "v=v1beta1;"), "application/json;as=Chair;v=v1;g=meta.k8s.io"):
        yield scenario(f"table/{accept}", made, get(JOBS, accept=accept))
