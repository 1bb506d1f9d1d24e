"""A real control plane on this machine's loopback, with KWOK in place of nodes.

etcd, API server, controller manager, scheduler and KWOK, as processes; nothing else of the machine is
touched. What differs from a production cluster, so that none of it is the limit: etcd does not sync its
files, and client-side limits (20 and 50 requests a second) are lifted for the scheduler and for the
controller manager, which makes the pods of batch/Jobs. The API server's own limits stay, and apply to the
operator, which speaks as a service account.
Service addresses are loopback addresses: a process that listens there is a Service's pod.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from lab.kube import programs
from lab.kube.daemons import START_SECONDS, Daemons
from lab.kube.pki import Pki
from lab.waiting import wait_until_async

from ropeteam.api.crd import crd
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient, ApiError

HOST = "127.0.0.1"
SERVICES = "127.200.0.0/21"
OPERATOR = "system:serviceaccount:ropeteam-system:ropeteam"
ADMIN = "admin"
NODES = 200
_CONTROLLERS = "*,-node-lifecycle-controller,-node-ipam-controller,-bootstrap-signer-controller"
"""KWOK nodes send no heartbeats here."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "users": [OPERATOR]},
        {
            "level": "Metadata",
            "users": [ADMIN],
            "verbs": ["create", "delete"],
            "resources": [{"group": "ropeteam.dev"}, {"group": "", "resources": ["pods"]}],
        },
        {"level": "None"},
    ],
}


def _stage(name: str, kind: str, when: list[tuple[str, str]], then: dict[str, Any]) -> str:
    selector = {"matchExpressions": [{"key": key, "operator": operator} for key, operator in when]}
    reference = {"apiGroup": "v1", "kind": kind}
    spec = {"resourceRef": reference, "selector": selector, "next": then}
    meta = {"name": name}
    return json.dumps(
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": meta, "spec": spec}
    )


POD_STATUS = """
phase: Running
podIP: 10.200.0.1
startTime: {{ Now | Quote }}
conditions:
{{ range list "Initialized" "Ready" "ContainersReady" }}
- {type: {{ . }}, status: "True", lastTransitionTime: {{ Now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ end }}
"""
"""As KWOK's own stages "pod-fast" make it, but the pods of a batch/Job do not end at once."""
NODE_STATUS = """
phase: Running
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: fake
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
allocatable: {cpu: "64", memory: 512Gi, pods: "110"}
capacity: {cpu: "64", memory: 512Gi, pods: "110"}
"""
STAGES = (
    _stage("node-ready", "Node", [(".status.phase", "DoesNotExist")], {"statusTemplate": NODE_STATUS}),
    _stage(
        "pod-ready",
        "Pod",
        [(".metadata.deletionTimestamp", "DoesNotExist"), (".status.podIP", "DoesNotExist")],
        {"statusTemplate": POD_STATUS},
    ),
    _stage(
        "pod-delete",
        "Pod",
        [(".metadata.deletionTimestamp", "Exists")],
        {"finalizers": {"empty": True}, "delete": True},
    ),
)


@dataclass(frozen=True)
class RealCluster:
    """A running one."""

    client: ApiClient
    """As administrator."""
    folder: Path
    pki: Pki
    daemons: Daemons
    addresses: list[str]
    """Of Services."""

    def cpu_seconds(self) -> dict[str, float]:
        """Used so far, by each program."""
        found = {name: self.daemons.find(name) for name in self.daemons.names()}
        times = {name: process.cpu_times() for name, process in found.items() if process is not None}
        return {name: float(each.user + each.system) for name, each in times.items()}

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def operator_kubeconfig(self) -> Path:
        return self.pki.folder / "operator.kubeconfig"


@asynccontextmanager
async def real_cluster() -> AsyncIterator[RealCluster]:
    folder = Path(tempfile.mkdtemp(prefix="ropeteam-scale-"))
    ports = free_ports(4)
    pki, daemons = Pki(folder / "pki", f"https://{HOST}:{ports[0]}"), Daemons(folder)
    try:
        _write(folder, pki)
        _start_server(folder, pki, daemons, ports)
        async with ApiClient(partial(access.load, pki.folder / "admin.kubeconfig")) as client:
            await wait_until_async("the API server is ready", lambda: _is_ready(client), START_SECONDS)
            _start_others(folder, pki, daemons, ports[3])
            await _install(client)
            addresses = [str(address) for address in ipaddress.ip_network(SERVICES).hosts()]
            yield RealCluster(client, folder, pki, daemons, addresses)
    finally:
        for name in ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            daemons.stop(name)
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _write(folder: Path, pki: Pki) -> None:
    pki.create()
    first = str(next(ipaddress.ip_network(SERVICES).hosts()))
    pki.issue("apiserver", "/CN=kube-apiserver", f"IP:{HOST}", f"IP:{first}", "DNS:localhost")
    pki.kubeconfig(ADMIN, f"/O=system:masters/CN={ADMIN}")
    pki.kubeconfig("component", "/O=system:masters/CN=component")
    pki.kubeconfig("operator", f"/O=system:serviceaccounts/CN={OPERATOR}")
    (folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
    config = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
    options = {"podPlayStageParallelism": 16, "nodePlayStageParallelism": 4, "podsOnNodeSyncParallelism": 4}
    documents = (json.dumps({**config, "options": options}), *STAGES)
    (folder / "kwok.yaml").write_text("\n---\n".join(documents))


def _start_server(folder: Path, pki: Pki, daemons: Daemons, ports: list[int]) -> None:
    etcd, peers = (f"http://{HOST}:{port}" for port in ports[1:3])
    _start(
        daemons, "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592", "--log-level=warn",
    )  # fmt: skip
    _start(
        daemons, "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={ports[0]}",
        f"--bind-address={HOST}", f"--advertise-address={HOST}", "--endpoint-reconciler-type=none",
        f"--tls-cert-file={pki.folder}/apiserver.crt", f"--tls-private-key-file={pki.folder}/apiserver.key",
        f"--client-ca-file={pki.folder}/ca.crt", "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.folder}/sa.pub",
        f"--service-account-signing-key-file={pki.folder}/sa.key",
        f"--service-cluster-ip-range={SERVICES}",
        f"--audit-policy-file={folder}/audit-policy.json", f"--audit-log-path={folder}/audit.log",
    )  # fmt: skip


def _start_others(folder: Path, pki: Pki, daemons: Daemons, port: int) -> None:
    kubeconfig = f"--kubeconfig={pki.folder}/component.kubeconfig"
    own = (kubeconfig, "--leader-elect=false", "--secure-port=0")
    _start(
        daemons, "kube-controller-manager", *own, "--kube-api-qps=5000", "--kube-api-burst=10000",
        f"--service-account-private-key-file={pki.folder}/sa.key", f"--controllers={_CONTROLLERS}",
    )  # fmt: skip
    _start(daemons, "kube-scheduler", *own, "--kube-api-qps=5000", "--kube-api-burst=10000")
    _start(
        daemons, "kwok", kubeconfig, f"--config={folder}/kwok.yaml", "--manage-all-nodes",
        f"--server-address={HOST}:{port}", f"--node-ip={HOST}", "-v=WARN",
    )  # fmt: skip


def _start(daemons: Daemons, program: str, *flags: str) -> None:
    daemons.start(program, (programs.ensure(PROGRAMS) / program, *flags))


async def _is_ready(client: ApiClient) -> bool:
    try:
        async with client.open("/readyz"):
            return True
    except (ApiError, aiohttp.ClientError, OSError):
        return False


async def _install(client: ApiClient) -> None:
    """The definition of TrainingJobs, the operator's rights, and the nodes."""
    await client.create(crd())
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "ropeteam"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": OPERATOR}],
    }
    await client.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding)
    await asyncio.gather(*(_add_node(client, f"node-{number:03}") for number in range(NODES)))


async def _add_node(client: ApiClient, name: str) -> None:
    meta = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    await client.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    taints = {"spec": {"taints": None}}  # the API server thinks a new node is not ready
    await client.request("PATCH", f"/api/v1/nodes/{name}", body=taints)
