"""The two servers: the real one as processes of this machine, the local one inside this process.

Neither has a controller, a scheduler or a kubelet: what changes was changed by a request. The real one
listens on 127.0.0.1 only, speaks to etcd over a socket file, and ends with `real()`.
Limits: its port is chosen before it listens; another process may take it in between.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import orjson
from lab.kube import programs
from lab.kube.pki import Pki
from lab.waiting import wait_until_async
from tests.differential.scenario import Answer, Call, encode, resolve

from ropeteam.local import resources as r
from ropeteam.local.api.store import Store
from ropeteam.local.api.trainingjobs import crd, rule_errors
from ropeteam.local.api.validation import RequestOptions
from ropeteam.local.api.verbs import Verbs
from ropeteam.local.apiserver import ApiServer
from ropeteam.local.node.kubelet import Kubelet
from ropeteam.local.node.services import Services
from ropeteam.local.resources import Catalog

PROGRAMS = ("etcd", "kube-apiserver")
TOKEN = "differential-test"
_START_SECONDS, _CALL_SECONDS = 300, 15
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True)
class Server:
    """A server: its URL, and requests to it."""

    url: str
    session: aiohttp.ClientSession

    async def play(self, calls: Sequence[Call], namespace: str) -> list[Answer]:
        """The answers to a scenario's calls."""
        made = await self.request(
            Call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}), namespace, []
        )
        assert made.status == 201, made.body
        seen: list[Answer] = []
        for call in calls:
            try:
                seen.append(await self.request(call, namespace, seen))
            except (aiohttp.ClientError, TimeoutError) as error:  # no HTTP, or none that is whole
                seen.append(Answer(0, "", (), f"{type(error).__name__}: the connection broke"))
        return seen

    async def request(self, call: Call, namespace: str = "", seen: Sequence[Answer] = ()) -> Answer:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": call.accept, "Content-Type": call.content}
        query = {name: str(value) for name, value in resolve(dict(call.query), namespace, seen).items()}
        async with self.session.request(
            call.verb,
            self.url + resolve(call.path, namespace, seen),
            data=encode(resolve(call.body, namespace, seen)),
            headers=headers,
            params=query,
            timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS),
        ) as answer:
            raw = await answer.read()
            body = _parse(raw, answer.content_type, is_watch="watch" in call.query and answer.status == 200)
            warnings = tuple(answer.headers.getall("Warning", ()))
            return Answer(answer.status, answer.content_type, warnings, body)


def _parse(raw: bytes, content: str, is_watch: bool) -> object:
    if is_watch:
        return [orjson.loads(line) for line in raw.splitlines()]
    return orjson.loads(raw) if "json" in content and raw else raw.decode(errors="replace")


def why_not() -> str:
    """Why the real server cannot be started. Empty: it can, or with ROPETEAM_E2E is built first."""
    missing = [name for name in PROGRAMS if not (programs.folder() / name).exists()]
    if not missing or os.environ.get("ROPETEAM_E2E"):
        return ""
    return (
        f"NOT COMPARED with a real API server: no {', '.join(missing)} in {programs.folder()}. Build them "
        "with `python -m lab.kube.programs` (20 minutes, needs Go), or "
        "give a folder in ROPETEAM_CLUSTER_TOOLS"
    )


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[Server]:
    """`folder`: for data, keys and logs."""
    here = all((programs.folder() / name).exists() for name in PROGRAMS)
    binaries = programs.folder() if here else programs.ensure()
    keys = Pki(folder / "pki", "")
    keys.create()
    (folder / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    port, etcd = _free_port(), "unix://localhost:1"
    with _running(binaries / "etcd", folder, *_etcd_flags(folder, etcd)):  # noqa: SIM117
        with _running(binaries / "kube-apiserver", folder, *_apiserver_flags(folder, etcd, port)):
            async with _session(ssl=False) as session:
                server = Server(f"https://127.0.0.1:{port}", session)
                await _started(server, "/readyz", folder)
                made = await server.request(Call("POST", _CRDS, crd()))
                assert made.status == 201, made.body
                for known in ("", "/v1alpha1", f"/v1alpha1/trainingjobs?limit={port}"):
                    await _started(server, f"/apis/ropeteam.dev{known}", folder)
                yield server


def _etcd_flags(folder: Path, url: str) -> list[str]:
    peer = "unix://localhost:2"
    return [
        f"--data-dir={folder}/etcd", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}", "--unsafe-no-fsync",
    ]  # fmt: skip


def _apiserver_flags(folder: Path, etcd: str, port: int) -> list[str]:
    return [
        f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={port}",
        f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens",
        "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder}/pki/sa.pub",
        f"--service-account-signing-key-file={folder}/pki/sa.key",
        "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
    ]  # fmt: skip


@contextmanager
def _running(program: Path, folder: Path, *flags: str) -> Iterator[None]:
    with (folder / f"{program.name}.log").open("wb") as log:
        process = subprocess.Popen([program, *flags], cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    """None of the ports that the kernel assigns: the server binds it seconds later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 29_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def _started(server: Server, path: str, folder: Path) -> None:
    def what() -> str:
        log = (folder / "kube-apiserver.log").read_text(errors="replace")[-3000:]
        return f"kube-apiserver answers {path}; its log ends with:\n{log}\n"

    await wait_until_async(what, partial(_answers, server, path), _START_SECONDS)


async def _answers(server: Server, path: str) -> bool:
    try:
        return (await server.request(Call("GET", path))).status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


@asynccontextmanager
async def local(folder: Path) -> AsyncIterator[Server]:
    """Our server without its kubelet, its Services and its garbage collector."""
    store = Store()
    store.revision = 1_000_000  # numbers that occur nowhere else
    verbs = Verbs(store, Catalog(), {r.from_crd(crd()).name: rule_errors})
    for name in ("default", "kube-system"):
        verbs.create(r.NAMESPACES, "", {"metadata": {"name": name}}, RequestOptions())
    verbs.create(r.CRDS, "", crd(), RequestOptions())
    services = Services(store, "127.1")
    verbs.allocate_address = services.allocate_address
    server = ApiServer(verbs, Kubelet(verbs, folder, "127.1"), services, TOKEN)
    url = await server.start("127.0.0.1")
    try:
        async with _session() as session:
            yield Server(url, session)
    finally:
        await server.stop()


def _session(ssl: bool = True) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl, limit=0))
