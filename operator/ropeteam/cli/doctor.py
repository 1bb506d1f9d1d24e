"""`ropeteam doctor`: reads the state of this machine, a cluster, a namespace and a job there.

Nothing is changed: every request is a GET. Objects that RBAC forbids are reported as not known. Of Secrets
only metadata is requested, their values stay at the server.
"""

from __future__ import annotations

import asyncio
import json
import platform
import shutil
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp
import click

from ropeteam.api.claims import claims
from ropeteam.api.job import API_VERSION, GROUP, PLURAL
from ropeteam.api.rule import at
from ropeteam.cli.connect import connected, kubeconfig_of
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NoSuchKind, NotFound, Object
from ropeteam.controller.client.boundedjson import ResponseTooLarge
from ropeteam.core.doctor.clusterchecks import Cluster, cluster_findings, operator_flags
from ropeteam.core.doctor.findings import Finding, Machine, Read, fail_finding, machine_findings
from ropeteam.core.doctor.namespacechecks import Job, Namespace, job_findings, namespace_findings

_ERRORS = (ApiError, aiohttp.ClientError, OSError, TimeoutError, ResponseTooLarge, ValueError)
_SYSTEM = "ropeteam-system"
"""Namespace of the operators in docs/install.md, for users that may not list all namespaces."""
_OPERATORS = "app.kubernetes.io/name=ropeteam,app.kubernetes.io/component=operator"
_LOCAL = "+ropeteam"
"""Suffix of the version of a local cluster."""
_NAMES_ONLY = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
_TIMEOUT = aiohttp.ClientTimeout(total=5)


async def findings(
    kubeconfig: Path | None, home: Path, namespace: str, job: str | None
) -> AsyncIterator[Finding]:
    """All findings, in order, as soon as each is known."""
    for found in machine_findings(await _machine(home)):
        yield found
    try:
        file = kubeconfig_of(kubeconfig, home)
        async with connected(file) as client:
            async for found in of_server(client, file, namespace, job):
                yield found
    except click.ClickException as error:
        yield fail_finding("cluster", error.message)
    except ApiError as error:
        yield fail_finding(
            "cluster", f"of {file}: access is refused: {error}", "log in again, or set --kubeconfig"
        )
    except _ERRORS as error:  # a ValueError: the peer is no API server
        why = str(error) or type(error).__name__
        yield fail_finding("cluster", f"of {file}: {why}", "check its address, or set another --kubeconfig")


async def of_server(
    client: ApiClient, kubeconfig: Path, namespace: str, job: str | None
) -> AsyncIterator[Finding]:
    """Findings of a cluster, a namespace and a job. Raises the error of a server that does not answer."""
    requests = _Requests(client)
    seen = await _cluster(requests, kubeconfig, namespace)
    for found in cluster_findings(seen):
        yield found
    operators = seen.deployments.items
    guards = all("job-policy" in operator_flags(each) for each in operators) if operators else None
    for found in namespace_findings(await _namespace(requests, namespace, guards)):
        yield found
    if job is not None:
        for found in job_findings(await _job(requests, namespace, job)):
            yield found


async def _machine(home: Path) -> Machine:
    file = home / "kubeconfig"
    pods = home / "pods"
    return Machine(
        python=platform.python_version(),
        ropeteam=metadata.version("ropeteam"),
        torch=_version_of("torch"),
        kubectl=await _kubectl(),
        linux=sys.platform == "linux",
        home=str(home),
        recorded=file.exists(),
        answers=file.exists() and await _answers(file),
        pods=len(list(pods.iterdir())) if pods.is_dir() else 0,
    )


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


async def _kubectl() -> str:
    program = shutil.which("kubectl")
    if program is None:
        return ""
    command = (program, "version", "--client", "-o", "json")
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    try:
        return f"{json.loads(output)['clientVersion']['gitVersion']}, {program}"
    except (ValueError, LookupError, TypeError):
        return f"{program}, which does not report its version"


async def _answers(kubeconfig: Path) -> bool:
    try:
        async with connected(kubeconfig) as client, client.open("/readyz"):
            return True
    except _ERRORS:
        return False


class _Requests:
    """Requests to one API server. A refusal is no reason to stop."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def version(self) -> tuple[str, datetime]:
        """Fetch version and time of the server. Raises the error of a server that does not answer."""
        async with self._client.open("/version", any_status=True) as answer:
            if answer.status == 401:
                raise ApiError(401, "Unauthorized")
            body = await answer.json(content_type=None) if answer.status == 200 else {}
            date = answer.headers.get("Date")
            return str(at(body, "gitVersion") or ""), parsedate_to_datetime(date) if date else datetime.now(
                UTC
            )

    async def fetch(self, path: str, what: str, **params: str) -> Read:
        """Fetch a list or an object. `what`: its name in the message to a user that may not read it."""
        try:
            return _read(await self._client.request("GET", path, params=params))
        except _ERRORS as error:
            return _failed_read(error, what)

    async def fetch_metadata(self, path: str, what: str) -> Read:
        """Fetch one object, of which only metadata is requested."""
        try:
            async with self._client.open(path, headers=_NAMES_ONLY) as answer:
                return _read(await answer.json(content_type=None))
        except _ERRORS as error:
            return _failed_read(error, what)

    async def operators(self, group: str, plural: str, namespace: str) -> Read:
        """Fetch objects of operators in all namespaces; where that is forbidden, in those where they may
        be."""
        selected = {"labelSelector": _OPERATORS}
        everywhere = await self.fetch(f"{group}/{plural}", f"{plural} in all namespaces", **selected)
        if not everywhere.unknown:
            return everywhere
        namespaces = dict.fromkeys((_SYSTEM, namespace))
        parts = [
            await self.fetch(f"{group}/namespaces/{each}/{plural}", f"{plural} in {each}", **selected)
            for each in namespaces
        ]
        return Read(tuple(each for part in parts for each in part.items), everywhere.unknown)


def _read(answer: Object) -> Read:
    items = answer.get("items", answer.get("groups"))
    return Read((answer,) if items is None else tuple(items))


def _failed_read(error: Exception, what: str) -> Read:
    status, message = getattr(error, "status", 0), str(error) or type(error).__name__
    if isinstance(error, NotFound):
        return Read(served=not isinstance(error, NoSuchKind))
    return Read(unknown=f"you may not read {what}" if status == 403 else message)


async def _cluster(requests: _Requests, kubeconfig: Path, namespace: str) -> Cluster:
    version, now = await requests.version()
    local = version.endswith(_LOCAL)
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
    known: dict[str, Any] = {
        "where": str(kubeconfig),
        "release": metadata.version("ropeteam"),
        "version": version,
        "now": now,
        "definition": await requests.fetch(definition, "CustomResourceDefinitions"),
        "groups": await requests.fetch("/apis", "API groups"),
    }
    if local:
        return Cluster(**known, local=True, operator=await _local_operator(kubeconfig.parent))
    deployments = await requests.operators("/apis/apps/v1", "deployments", namespace)
    return Cluster(
        **known,
        deployments=deployments,
        pods=await requests.operators("/api/v1", "pods", namespace),
        leases=await _leases(requests, deployments),
        nodes=await requests.fetch("/api/v1/nodes", "nodes"),
        classes=await requests.fetch("/apis/storage.k8s.io/v1/storageclasses", "storage classes"),
    )


async def _local_operator(home: Path) -> str:
    """Problem of the local operator; empty: none."""
    file = home / "operator.address"
    if not file.exists():
        return f"none has started in {home}"
    url = f"http://{file.read_text().strip()}/readyz"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            return "" if answer.status == 200 else f"is not ready: {await answer.text()}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"does not answer at {url}: {str(error) or type(error).__name__}"


async def _leases(requests: _Requests, deployments: Read) -> Read:
    """Fetch the leases that operators hold, by their flag."""
    wanted = {operator_flags(each).get("lease", "") for each in deployments.items} - {""}
    parts = []
    for name in sorted(wanted):
        namespace, _, lease = name.partition("/")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"
        parts.append(await requests.fetch(path, f"leases in {namespace}"))
    unknown = next((part.unknown for part in parts if part.unknown), "")
    return Read(tuple(each for part in parts for each in part.items), unknown)


async def _namespace(requests: _Requests, name: str, guards: bool | None) -> Namespace:
    base = f"/api/v1/namespaces/{name}"
    policies = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
    return Namespace(
        name,
        guards,
        await requests.fetch(base, f"namespace {name}"),
        await requests.fetch(f"{base}/resourcequotas", f"quotas in {name}"),
        await requests.fetch(f"{base}/limitranges", f"limit ranges in {name}"),
        await requests.fetch(policies, f"network policies in {name}"),
    )


async def _job(requests: _Requests, namespace: str, name: str) -> Job:
    job = await requests.fetch(
        f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}", f"jobs in {namespace}"
    )
    spec = at(job.items[0], "spec") if job.items else {}
    base = f"/api/v1/namespaces/{namespace}"
    found = {
        each: await requests.fetch(f"{base}/persistentvolumeclaims/{each}", f"claims in {namespace}")
        for each in claims(spec)
    }
    pulls = [str(each.get("name")) for each in at(spec, "template.spec.imagePullSecrets") or ()]
    secrets = {
        each: await requests.fetch_metadata(f"{base}/secrets/{each}", f"secrets in {namespace}")
        for each in pulls
    }
    service = await requests.fetch(f"{base}/services/{name}", f"services in {namespace}")
    return Job(name, namespace, job, found, secrets, service)
