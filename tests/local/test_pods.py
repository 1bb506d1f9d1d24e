"""Pods as real processes: states, restarts, grace, volumes, environment, logs, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from lab.local.client import CORE, JOBS, Client, alive
from lab.waiting import wait_until_async

Object = dict[str, Any]


def main_of(pod: Object) -> Object:
    return pod["status"]["containerStatuses"][0]


def ended(pod: Object) -> Object:
    return main_of(pod)["state"]["terminated"]


def condition(pod: Object, kind: str) -> Object:
    return next(c for c in pod["status"]["conditions"] if c["type"] == kind)


def pid_of(pod: Object) -> int:
    return int(main_of(pod)["containerID"].removeprefix("local://"))


async def log_of(api: Client, name: str, **query: str) -> str:
    return await api.get(f"{CORE}/pods/{name}/log", **query)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def kill(pod: Object, number: int = signal.SIGKILL) -> None:
    os.kill(pid_of(pod), number)


async def test_a_pod_runs_and_succeeds(api: Client):
    await api.run("p", "sh", "-c", "echo out; echo err >&2")
    pod = await api.phase("p", "Succeeded")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (0, "Completed")
    assert condition(pod, "Ready") == condition(pod, "Ready") | {"status": "False", "reason": "PodCompleted"}
    assert pod["spec"]["nodeName"] == "local"
    assert pod["status"]["podIP"].startswith("127.")
    assert await log_of(api, "p") == "out\nerr\n"
    assert await log_of(api, "p", tailLines="1") == "err\n"
    reasons = [e["reason"] for e in (await api.get(f"{CORE}/events"))["items"]]
    assert reasons.count("ImageNotUsed") == 1
    await api.call("DELETE", f"{CORE}/pods/p")
    await api.gone(f"{CORE}/pods/p")


async def test_a_volume_that_is_not_served_is_reported_and_the_pod_can_go(api: Client):
    for name, kind in (("a", "nfs"), ("b", "csi")):
        await api.run(name, "true", volumes=[{"name": "v", kind: {}}])
        await api.wait_for(f"{CORE}/events", lambda seen: "FailedMount" in str(seen))
        assert (await api.get(f"{CORE}/pods/{name}"))["status"]["phase"] == "Pending"
        await api.call("DELETE", f"{CORE}/pods/{name}")
        await api.gone(f"{CORE}/pods/{name}")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)]
)
async def test_exit_codes_are_those_of_a_container(api: Client, script: str, code: int):
    await api.run("p", "sh", "-c", script)
    assert ended(await api.phase("p", "Failed"))["exitCode"] == code


async def test_a_command_that_is_not_found_is_reported(api: Client):
    await api.run("p", "no-such-command")
    pod = await api.phase("p", "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (127, "StartError")
    assert '"no-such-command": executable file not found in $PATH' in ended(pod)["message"]


async def test_a_file_that_cannot_be_executed_is_reported(api: Client, tmp_path: Path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    await api.run("p", str(script))
    pod = await api.phase("p", "Failed")
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (127, "StartError")


async def test_python3_in_a_pod_is_the_one_of_this_environment(api: Client):
    await api.run("p", "python3", "-c", "import sys; print(sys.prefix)")
    await api.phase("p", "Succeeded")
    assert (await log_of(api, "p")).strip() == sys.prefix


async def test_always_restarts_and_the_previous_log_stays(api: Client):
    await api.run("p", "sh", "-c", "echo run; sleep 60", restartPolicy="Always")
    first = await api.logged("p", "run")
    await kill(first)
    again = await api.wait_for(f"{CORE}/pods/p", lambda p: main_of(p)["restartCount"] and main_of(p)["ready"])
    assert main_of(again)["lastState"]["terminated"]["exitCode"] == 137
    assert pid_of(again) != pid_of(first)
    assert again["status"]["phase"] == "Running"
    assert await log_of(api, "p", previous="true") == "run\n"


async def test_a_log_that_does_not_exist_yet_is_refused_with_the_reason(api: Client):
    await api.run("p", "sleep", "60")
    await api.phase("p", "Running")
    _, answer = await api.call("GET", f"{CORE}/pods/p/log", previous="true")
    assert answer["message"] == 'previous terminated container "main" in pod "p" not found'
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]
    await api.run("q", "true", container={"env": env})
    await api.wait_for(f"{CORE}/pods/q", lambda pod: "not found" in str(pod["status"]))
    _, answer = await api.call("GET", f"{CORE}/pods/q/log")
    assert answer["message"] == 'container "main" in pod "q" is waiting to start: secret "none" not found'


async def test_on_failure_restarts_until_success(api: Client, tmp_path: Path):
    script = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"
    await api.run("p", "sh", "-c", script, restartPolicy="OnFailure")
    pod = await api.phase("p", "Succeeded")
    assert main_of(pod)["restartCount"] == 1


async def test_with_restart_policy_never_a_container_starts_once(api: Client):
    await api.run("p", "sleep", "60")
    await kill(await api.phase("p", "Running"))
    pod = await api.phase("p", "Failed")
    assert main_of(pod)["restartCount"] == 0


async def test_init_containers_go_first_and_one_by_one(api: Client):
    def step(name: str, text: str) -> Object:
        mounts = [{"name": "v", "mountPath": "/v"}]
        return {"name": name, "image": "i", "command": ["sh", "-c", text], "volumeMounts": mounts}

    init = [step("a", "echo a >> /v/log"), step("b", "echo b >> /v/log")]
    container = {"volumeMounts": [{"name": "v", "mountPath": "/w"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    await api.run("p", "cat", "/w/log", container=container, initContainers=init, volumes=volumes)
    pod = await api.phase("p", "Succeeded")
    assert await log_of(api, "p") == "a\nb\n"
    assert all("terminated" in row["state"] for row in pod["status"]["initContainerStatuses"])
    await api.run("q", "true", initContainers=[step("a", "exit 4"), step("b", "true")], volumes=volumes)
    pod = await api.phase("q", "Failed")
    assert "waiting" in main_of(pod)["state"]


async def test_grace_is_sigterm_and_the_object_waits(api: Client):
    await api.run("p", "sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    await api.logged("p", "up")
    watch = api.watch(f"{CORE}/pods", fieldSelector="metadata.name=p")
    events = [await anext(watch)]  # it watches, before the pod may be gone
    await api.call("DELETE", f"{CORE}/pods/p")
    async for event in watch:
        events.append(event)
        if event["type"] == "DELETED":
            break
    last = events[-1]["object"]
    assert ended(last)["exitCode"] == 7
    leaving = [e["object"] for e in events if "deletionTimestamp" in e["object"]["metadata"]]
    assert main_of(leaving[0])["ready"]


async def test_who_ignores_sigterm_is_killed_after_its_grace(api: Client):
    await api.run("p", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    pod = await api.logged("p", "up")
    await api.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 600})
    assert alive(pid_of(pod))
    await api.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 1})
    await api.gone(f"{CORE}/pods/p")
    assert not alive(pid_of(pod))


async def test_no_grace_is_sigkill_at_once(api: Client):
    await api.run("p", "sh", "-c", "trap 'sleep 60' TERM; echo up; while :; do sleep 0.05; done")
    pod = await api.logged("p", "up")
    await api.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 0})
    assert (await api.call("GET", f"{CORE}/pods/p"))[0] == 404, "as on a real server: nobody is waited for"

    async def is_dead() -> bool:
        return not alive(pid_of(pod))

    await wait_until_async("the process is dead", is_dead)


async def test_descendants_die_with_the_command(api: Client, tmp_path: Path):
    text = f"setsid sleep 600 & echo $! > {tmp_path}/pid; setsid setsid sleep 600 & exit 0"
    await api.run("p", "sh", "-c", text)
    await api.phase("p", "Succeeded")
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_shim_that_is_killed_takes_the_command_along(api: Client):
    await api.run("p", "sleep", "600")
    pod = await api.phase("p", "Running")
    os.kill(parent_of(pid_of(pod)), signal.SIGKILL)
    assert ended(await api.phase("p", "Failed"))["exitCode"] == 137

    async def dead() -> bool:
        return not alive(pid_of(pod))

    await wait_until_async("all processes are dead", dead)


async def test_a_missing_claim_keeps_the_pod_pending_and_coming_lets_it_run(api: Client):
    container = {"volumeMounts": [{"name": "d", "mountPath": "/data"}]}
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "ckpt"}}]
    await api.run("p", "sh", "-c", "echo kept >> /data/file", container=container, volumes=volumes)
    pod = await api.wait_for(f"{CORE}/pods/p", lambda p: p["status"].get("conditions"))
    scheduled = condition(pod, "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert 'persistentvolumeclaim "ckpt" not found' in scheduled["message"]
    assert pod["status"]["phase"] == "Pending"
    await api.run("never", "true", container=container, volumes=volumes)
    await api.call("DELETE", f"{CORE}/pods/never")
    await api.gone(f"{CORE}/pods/never")
    claim_spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "ckpt"}, "spec": claim_spec}
    claim = await api.create(f"{CORE}/persistentvolumeclaims", body)
    assert claim["status"]["phase"] == "Bound"
    await api.phase("p", "Succeeded")
    assert (api.cluster.home / "claims/default/ckpt/file").read_text() == "kept\n"


async def test_environment_from_all_its_sources(api: Client):
    await api.create(f"{CORE}/configmaps", {"metadata": {"name": "c"}, "data": {"k": "from map"}})
    fields = ("metadata.uid", "status.podIP", "spec.nodeName", "metadata.labels['app']")
    env: list[Object] = [
        {"name": f"F{n}", "valueFrom": {"fieldRef": {"fieldPath": f}}} for n, f in enumerate(fields)
    ]
    env += [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)-$$(A)-$(NONE)"},
        {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "O", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": True}}},
    ]
    await api.create(f"{CORE}/configmaps", {"metadata": {"name": "all"}, "data": {"X": "of all"}})
    whole = [
        {"prefix": "P_", "configMapRef": {"name": "all"}},
        {"secretRef": {"name": "no", "optional": True}},
    ]
    script = 'echo "$P_X|$F0|$F1|$F2|$F3|$B|$M|$S|$O|$POD_IP|$1"'
    body: Object = {"name": "main", "image": "i", "command": ["sh", "-c", script, "-"], "args": ["$(A)"]}
    body |= {"env": env, "envFrom": whole}
    meta = {"name": "p", "labels": {"app": "x"}}
    spec = {"containers": [body], "restartPolicy": "Never"}
    await api.create(f"{CORE}/pods", {"metadata": meta, "spec": spec})
    waits = await api.wait_for(f"{CORE}/pods/p", lambda p: "CreateContainerConfigError" in str(p["status"]))
    assert main_of(waits)["state"]["waiting"]["message"] == 'secret "s" not found'
    await api.create(f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"k": "hidden"}})
    pod = await api.phase("p", "Succeeded")
    uid, ip = pod["metadata"]["uid"], pod["status"]["podIP"]
    assert (
        await log_of(api, "p")
    ).strip() == f"of all|{uid}|{ip}|local|x|a-$(A)-$(NONE)|from map|hidden||{ip}|a"


async def test_mount_paths_are_rewritten_where_the_spec_names_them(api: Client, tmp_path: Path):
    await api.create(f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"token": "t0ken"}})
    volumes = [
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "h", "hostPath": {"path": str(tmp_path)}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [("s", "/ropeteam-token"), ("h", "/ropeteam"), ("m", "/dev/shm")]
    container = {
        "volumeMounts": [{"name": n, "mountPath": p} for n, p in mounts],
        "env": [{"name": "J", "value": '{"a":"/ropeteam/x","no":"/ropeteam-other","t":"/ropeteam-token/t"}'}],
        "workingDir": "/ropeteam",
    }
    text = 'cat /ropeteam-token/token; pwd; echo "$J"; ls -d /dev/shm'
    await api.run("p", "sh", "-c", text, container=container, volumes=volumes)
    pod = await api.phase("p", "Succeeded")
    folder = api.cluster.home / "pods" / pod["metadata"]["uid"] / "volumes/s"
    first, second, third = (await log_of(api, "p")).splitlines()
    assert (first, third) == (f"t0ken{tmp_path}", "/dev/shm")
    assert second == f'{{"a":"{tmp_path}/x","no":"/ropeteam-other","t":"{folder}/t"}}'
    assert (folder / "token").stat().st_mode & 0o777 == 0o600


async def test_the_working_directory_is_the_pods_its_jobs_or_the_clusters(api: Client, tmp_path: Path):
    notes = {"annotations": {"ropeteam.dev/workdir": str(tmp_path)}}
    kind = {"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob"}
    job = {**kind, "metadata": {"name": "j", **notes}, "spec": {"workers": 1, "command": ["true"]}}
    owner = await api.create(JOBS, job)
    ref = {**kind, "name": "j", "uid": owner["metadata"]["uid"]}
    for name, meta in (("a", notes), ("b", {"ownerReferences": [ref]}), ("c", {})):
        body = {"containers": [{"name": "main", "image": "i", "command": ["pwd"]}], "restartPolicy": "Never"}
        await api.create(f"{CORE}/pods", {"metadata": {"name": name, **meta}, "spec": body})
        await api.phase(name, "Succeeded")
    assert [await log_of(api, name) for name in "abc"] == [f"{tmp_path}\n"] * 2 + [f"{Path.cwd()}\n"]


async def test_who_looks_for_a_container_by_its_environment_finds_only_it(api: Client):
    mark = secrets.token_hex(16)
    env = [{"name": "MARK", "value": mark}]
    await api.run("p", "sleep", "60", container={"env": env})
    pod = await api.phase("p", "Running")
    assert processes_with(mark.encode()) == [pid_of(pod)]


def processes_with(text: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if text in path.read_bytes():
                found.append(int(path.parent.name))
    return found


async def test_a_log_is_followed_to_its_end(api: Client, tmp_path: Path):
    go = tmp_path / "go"
    await api.run("p", "sh", "-c", f"echo one; until test -e {go}; do sleep 0.02; done; echo two")
    await api.phase("p", "Running")
    follow = asyncio.create_task(log_of(api, "p", follow="true"))
    await api.logged("p", "one")
    assert not follow.done()
    go.touch()
    assert await follow == "one\ntwo\n"


async def test_sigkill_of_the_cluster_leaves_no_pod_process(tmp_path: Path):
    arguments = ["-m", "ropeteam.local", "--home", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    await process.stdout.readline()
    pids = await _start_pods_through(tmp_path / "kubeconfig")
    process.kill()
    await process.wait()

    async def dead() -> bool:
        return not any(alive(pid) for pid in pids)

    await wait_until_async("all processes are dead", dead)


async def _start_pods_through(kubeconfig: Path) -> list[int]:
    """Two pods with a detached descendant each; the pids of all."""
    text = await asyncio.to_thread(kubeconfig.read_text)
    url = yaml.safe_load(text)["clusters"][0]["cluster"]["server"]
    folder = kubeconfig.parent
    async with aiohttp.ClientSession() as session:
        for name in "ab":
            file = folder / name
            text = f"setsid sleep 600 & echo $$ $! > {file}.new; mv {file}.new {file}; wait"
            container = {"name": "main", "image": "i", "command": ["sh", "-c", text]}
            body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
            async with session.post(f"{url}{CORE}/pods", json=body) as answer:
                assert answer.status == 201

    async def written() -> bool:
        return all((folder / name).exists() for name in "ab")

    await wait_until_async("both pods have written", written)
    pids = [int(pid) for name in "ab" for pid in (folder / name).read_text().split()]
    assert all(alive(pid) for pid in pids)
    return pids


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_containers_folder_in_memory_ends_with_it(api: Client, number: int):
    """However it ends: on a node its own /dev/shm would be gone."""
    env = [{"name": "ROPETEAM_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
    text = (
        "mkdir /dev/shm/ropeteam-$ROPETEAM_POD_UID && touch /dev/shm/ropeteam-$ROPETEAM_POD_UID/x; sleep 600"
    )
    await api.run("p", "sh", "-c", text, container={"env": env})
    pod = await api.phase("p", "Running")
    folder = Path(f"/dev/shm/ropeteam-{pod['metadata']['uid']}")

    async def made() -> bool:
        return (folder / "x").exists()

    await wait_until_async("the file is there", made)
    os.kill(pid_of(pod), number)
    await api.phase("p", "Failed")
    assert not await made()
