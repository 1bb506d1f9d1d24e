"""etcd, API server, controller manager, scheduler and CoreDNS, as processes of this machine.

They listen on the lab's bridge and nowhere else. Limits: etcd does not sync its files; nothing here is meant
to outlive a power cut.
"""

from __future__ import annotations

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from lab.kube import network
from lab.kube.daemons import START_SECONDS, Daemons
from lab.kube.pki import Pki
from lab.waiting import wait_until

ETCD = f"http://{network.CONTROL_PLANE}:2379"
COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local {{
    kubeconfig {kubeconfig}
    ttl 5
  }}
  cache 5
}}
"""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:kube-proxy", "system:kube-scheduler", "system:apiserver"]},
        {"level": "None", "userGroups": ["system:nodes", "system:masters"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ],
}


class ControlPlane:
    """`tools`: the folder of programs; `folder`: state, logs and pids."""

    def __init__(self, tools: Path, folder: Path, daemons: Daemons) -> None:
        self._tools, self._folder, self._daemons = tools, folder, daemons
        self.pki = Pki(folder / "pki", f"https://{network.CONTROL_PLANE}:6443")
        self.audit_log = folder / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        return self.pki.folder / "admin.kubeconfig"

    def create(self) -> None:
        """Keys and settings."""
        pki = self.pki
        pki.create()
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        addresses = (network.CONTROL_PLANE, network.FIRST_SERVICE, "127.0.0.1")
        pki.issue(
            "apiserver", "/CN=kube-apiserver", *(f"DNS:{n}" for n in names), *(f"IP:{a}" for a in addresses)
        )
        pki.kubeconfig("admin", "/O=system:masters/CN=admin")
        pki.kubeconfig("controller-manager", "/CN=system:kube-controller-manager")
        pki.kubeconfig("scheduler", "/CN=system:kube-scheduler")
        pki.kubeconfig("proxy", "/CN=system:kube-proxy")
        (self._folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
        corefile = COREFILE.format(address=network.CONTROL_PLANE, kubeconfig=self.kubeconfig)
        (self._folder / "Corefile").write_text(corefile)

    def start(self) -> None:
        self.start_etcd()
        self.start_apiserver()
        wait_until("the API server says that it is ready", self.is_ready, START_SECONDS)
        pki = self.pki.folder
        own = [
            f"--{flag}={pki}/controller-manager.kubeconfig"
            for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        ]
        self._start(
            "kube-controller-manager", *own, "--leader-elect=false", "--use-service-account-credentials",
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
            f"--cluster-cidr={network.PODS}", "--allocate-node-cidrs",
            "--controllers=*,-bootstrap-signer-controller,-token-cleaner-controller",
            f"--bind-address={network.CONTROL_PLANE}",
        )  # fmt: skip
        own = [
            f"--{flag}={pki}/scheduler.kubeconfig"
            for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        ]
        self._start("kube-scheduler", *own, "--leader-elect=false", f"--bind-address={network.CONTROL_PLANE}")
        self.start_dns()

    def start_etcd(self) -> None:
        self._start(
            "etcd", f"--data-dir={self._folder}/etcd", f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}", f"--listen-peer-urls=http://{network.CONTROL_PLANE}:2380",
            f"--initial-advertise-peer-urls=http://{network.CONTROL_PLANE}:2380",
            f"--initial-cluster=default=http://{network.CONTROL_PLANE}:2380", "--unsafe-no-fsync",
        )  # fmt: skip

    def start_apiserver(self) -> None:
        pki = self.pki.folder
        self._start(
            "kube-apiserver", f"--etcd-servers={ETCD}", "--secure-port=6443",
            f"--bind-address={network.CONTROL_PLANE}", f"--advertise-address={network.CONTROL_PLANE}",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", "--authorization-mode=Node,RBAC", "--allow-privileged",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-cluster-ip-range={network.SERVICES}", "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={self._folder}/audit-policy.json", f"--audit-log-path={self.audit_log}",
        )  # fmt: skip

    def start_dns(self) -> None:
        self._start("coredns", f"-conf={self._folder}/Corefile")

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        self._daemons.stop(name, number)

    def is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.pki.folder / "ca.crt"))
        context.load_cert_chain(self.pki.folder / "admin.crt", self.pki.folder / "admin.key")
        try:
            with urllib.request.urlopen(f"{self.pki.server}/readyz", context=context, timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _start(self, program: str, *flags: str) -> None:
        self._daemons.start(program, (self._tools / program, *flags), cwd=self._folder)
