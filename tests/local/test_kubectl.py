"""The real kubectl against the local cluster: what a user types."""

from __future__ import annotations

import asyncio
import os
import shutil

import yaml
from lab.local.client import CORE, JOBS, Client
from lab.waiting import wait_until_async, within
from tests.local.conftest import Kubectl

MERGE = "application/merge-patch+json"
JOB = """
apiVersion: ropeteam.dev/v1alpha1
kind: TrainingJob
metadata: {name: mnist}
spec:
  workers: 2
  image: pytorch
  command: [python, train.py]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: busybox, command: [sh, -c, "echo hello; sleep 60"]}
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: hello}, ports: [{port: 8080}]}
"""


async def test_a_job_from_apply_to_delete(api: Client, kubectl: Kubectl):
    assert "trainingjob.ropeteam.dev/mnist created" in await kubectl("apply", "-f", "-", text=JOB)
    assert "unchanged" in await kubectl("apply", "-f", "-", text=JOB)
    patched = JOB.replace("command:", "suspend: true\n  command:")
    assert "configured" in await kubectl("apply", "-f", "-", text=patched)
    assert "serverside-applied" in await kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", text=JOB
    )
    status = {"state": "Running", "workers": {"summary": "1/2"}, "reason": "AllReady"}
    await api.call("PATCH", f"{JOBS}/mnist/status", {"status": status}, content=MERGE)
    head, row = (await kubectl("get", "tj")).splitlines()
    assert head.split() == ["NAME", "STATE", "READY", "STEP", "PROGRESS", "ETA", "FAILURES", "AGE"]
    assert row.split()[:3] == ["mnist", "Running", "1/2"]
    assert "AllReady" in await kubectl("get", "tj", "mnist", "-o", "wide")
    shown = yaml.safe_load(await kubectl("get", "tj", "mnist", "-o", "yaml"))
    assert shown["spec"]["recovery"]["maxFailures"] == 10
    uid = shown["metadata"]["uid"]
    subject = {"kind": "TrainingJob", "name": "mnist", "namespace": "default", "uid": uid}
    event = {"metadata": {"name": "e"}, "involvedObject": subject, "reason": "GangStarted", "message": "go"}
    await api.create(f"{CORE}/events", event | {"type": "Normal"})
    described = await kubectl("describe", "tj", "mnist")
    assert "GangStarted" in described
    assert "Max Failures" in described
    assert "deleted" in await kubectl("delete", "tj", "mnist")
    assert "NotFound" in await kubectl("get", "tj", "mnist", fails=True)


async def test_mistakes_in_a_manifest_are_explained(kubectl: Kubectl):
    unknown = JOB.replace("workers:", "wrokers:")
    output = await kubectl("apply", "-f", "-", text=unknown, fails=True)
    assert 'strict decoding error: unknown field "spec.wrokers"' in output
    output = await kubectl("apply", "-f", "-", text=JOB.replace("workers: 2", "workers: 0"), fails=True)
    assert 'The TrainingJob "mnist" is invalid: spec.workers: Invalid value: 0' in output


async def test_lists_are_sorted_by_their_time_of_creation(kubectl: Kubectl):
    for name in ("first", "second"):
        await kubectl("apply", "-f", "-", text=SERVICE.replace("front", name))
    output = await kubectl("get", "services", "--sort-by=.metadata.creationTimestamp")
    assert [line.split()[0] for line in output.splitlines()] == ["NAME", "first", "second"]
    assert "CLUSTER-IP" in output


async def test_what_the_local_cluster_does_not_have_is_answered_with_what_it_has(kubectl: Kubectl):
    await kubectl("apply", "-f", "-", text=POD)
    await kubectl("wait", "--for=condition=Ready", "pod/hello", "--timeout=60s")
    output = await kubectl("exec", "hello", "--", "true", fails=True)
    assert "the local cluster has no exec: a pod is processes of this machine, with address 127." in output
    output = await kubectl("port-forward", "hello", "8080:8080", fails=True)
    assert "the local cluster has no port-forward" in output


async def test_wait_sees_a_condition(api: Client, kubectl: Kubectl):
    await kubectl("apply", "-f", "-", text=JOB)
    listeners = api.cluster.store.listeners
    before = len(listeners)
    waits = asyncio.create_task(kubectl("wait", "--for=condition=Complete", "--timeout=170s", "tj/mnist"))
    gone = asyncio.create_task(kubectl("wait", "--for=delete", "--timeout=170s", "tj/mnist"))

    async def both_watch() -> bool:
        return len(listeners) >= before + 2

    await wait_until_async("both clients watch", both_watch)
    row = {"type": "Complete", "status": "True", "reason": "Done", "message": "all ranks are done"}
    row["lastTransitionTime"] = "2030-01-01T00:00:00Z"
    change = {"status": {"conditions": [row]}}
    status, answer = await api.call("PATCH", f"{JOBS}/mnist/status", change, content=MERGE)
    assert status == 200, answer
    assert "condition met" in await waits
    await kubectl("delete", "tj", "mnist")
    assert "condition met" in await gone


async def test_a_pod_from_apply_to_delete(kubectl: Kubectl):
    await kubectl("apply", "-f", "-", text=POD + "---" + SERVICE)
    await kubectl("wait", "--for=condition=Ready", "pod/hello", "--timeout=170s")
    head, row = (await kubectl("get", "pods", "-o", "wide")).splitlines()
    assert head.split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert row.split()[:4] == ["hello", "1/1", "Running", "0"]
    assert await kubectl("logs", "hello") == "hello\n"
    follow = asyncio.create_task(kubectl("logs", "-f", "hello"))
    described = await kubectl("describe", "pod", "hello")
    assert "ImageNotUsed" in described
    assert "local/127." in described
    assert "8080/TCP" in await kubectl("get", "service", "front")
    assert "pod/hello" in await kubectl("get", "all")
    assert "ImageNotUsed" in await kubectl("get", "events")
    assert "Selector:" in await kubectl("describe", "service", "front")
    assert 'pod "hello" deleted' in await kubectl("delete", "pod", "hello", "--grace-period=1")
    assert await follow == "hello\n"
    assert "No resources found" in await kubectl("get", "pods")


async def test_get_w_prints_each_change(cluster, api: Client, kubectl: Kubectl):
    await kubectl("apply", "-f", "-", text=JOB)
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    arguments = ["--kubeconfig", str(cluster.kubeconfig), "get", "tj", "-w"]
    child = await asyncio.create_subprocess_exec(str(program), *arguments, stdout=asyncio.subprocess.PIPE)
    assert child.stdout
    head, first = await child.stdout.readline(), await child.stdout.readline()
    change = {"status": {"state": "Running"}}
    await api.call("PATCH", f"{JOBS}/mnist/status", change, content=MERGE)
    second = await within("kubectl shows the change", child.stdout.readline())
    child.kill()
    await child.communicate()
    assert [line.split()[:2] for line in (head, first, second)][0::2] == [
        [b"NAME", b"STATE"],
        [b"mnist", b"Running"],
    ]


async def test_the_rest_that_people_try(kubectl: Kubectl):
    assert "Number of pods that train together" in await kubectl("explain", "tj.spec.workers")
    assert "trainingjobs" in await kubectl("api-resources")
    assert "v1.32.0" in await kubectl("version")
    assert "local   Ready" in await kubectl("get", "nodes")
    assert "default" in await kubectl("get", "ns")
    made = ("create", "configmap", "c", "--from-literal=a=b")
    output = await kubectl(*made, fails=True)
    assert "does not support protobuf" in output
    assert "add `--dry-run=client -o yaml | kubectl apply -f -`" in output
    text = await kubectl(*made, "--dry-run=client", "-o", "yaml")
    await kubectl("create", "-f", "-", text=text)
    await kubectl("label", "configmap", "c", "x=y")
    assert "configmap/c" in await kubectl("get", "cm", "-l", "x=y", "-o", "name")
    await kubectl("annotate", "configmap", "c", "note=x")
    await kubectl("patch", "configmap", "c", "-p", '{"data":{"a":"c"}}')
    await kubectl("delete", "cm,secret", "--all")
