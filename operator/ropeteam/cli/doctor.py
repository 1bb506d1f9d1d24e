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
from ropeteam.cli.connect import connected, kubeconfig_file
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NoSuchKind, NotFound, Object
from ropeteam.controller.client.boundedjson import ResponseTooLarge
from ropeteam.core.doctor.clusterchecks import OPERATOR_LABELS, Cluster, cluster_findings, operator_flags
from ropeteam.core.doctor.findings import Finding, Machine, Read, fail_finding, machine_findings
from ropeteam.core.doctor.namespacechecks import Job, Namespace, job_findings, namespace_findings

_REQUEST_ERRORS = (ApiError, aiohttp.ClientError, OSError, TimeoutError, ResponseTooLarge, ValueError)
"""Errors of a request. A ValueError: the server's answer is not JSON, so it is no API server."""
_SYSTEM = "ropeteam-system"
"""Namespace of the operators in docs/install.md, for users that may not list all namespaces."""
_LOCAL_SUFFIX = "+ropeteam"
"""Suffix of the version of a local cluster."""
_METADATA_ONLY = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
_TIMEOUT = aiohttp.ClientTimeout(total=5)


async def findings(
    kubeconfig: Path | None, home: Path, namespace: str, job: str | None
) -> AsyncIterator[Finding]:
    """All findings, in order, as soon as each is known: the machine, the cluster, the namespace, the job. A
    cluster that cannot be read is the last finding, not an error."""
    for found in machine_findings(await _read_machine(home)):
        yield found
    try:
        file = kubeconfig_file(kubeconfig, home)
        async with connected(file) as client:
            async for found in _server_findings(client, file, namespace, job):
                yield found
    except click.ClickException as error:
        yield fail_finding("cluster", error.message)
    except ApiError as error:
        yield fail_finding(
            "cluster", f"of {file}: access is refused: {error}", "log in again, or set --kubeconfig"
        )
    except _REQUEST_ERRORS as error:
        why = str(error) or type(error).__name__
        yield fail_finding("cluster", f"of {file}: {why}", "check its address, or set another --kubeconfig")


async def _server_findings(
    client: ApiClient, kubeconfig: Path, namespace: str, job: str | None
) -> AsyncIterator[Finding]:
    """Findings of a cluster, a namespace and a job. Raises the error of a server that does not answer."""
    requests = _Requests(client)
    seen = await _read_cluster(requests, kubeconfig, namespace)
    for found in cluster_findings(seen):
        yield found
    operators = seen.deployments.items
    guards_jobs = all("job-policy" in operator_flags(each) for each in operators) if operators else None
    for found in namespace_findings(await _read_namespace(requests, namespace, guards_jobs)):
        yield found
    if job is not None:
        for found in job_findings(await _read_job(requests, namespace, job)):
            yield found


async def _read_machine(home: Path) -> Machine:
    """Read versions of programs on this machine, and the state of the local cluster in `home`."""
    file = home / "kubeconfig"
    pods = home / "pods"
    return Machine(
        python=platform.python_version(),
        ropeteam=metadata.version("ropeteam"),
        torch=_package_version("torch"),
        kubectl=await _kubectl_version(),
        linux=sys.platform == "linux",
        home=str(home),
        recorded=file.exists(),
        answers=file.exists() and await _server_answers(file),
        pods=len(list(pods.iterdir())) if pods.is_dir() else 0,
    )


def _package_version(package: str) -> str:
    """Version of a Python package; empty: not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


async def _kubectl_version() -> str:
    """Version of kubectl, and its path; empty: there is none on PATH."""
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


async def _server_answers(kubeconfig: Path) -> bool:
    """Whether the API server of this kubeconfig is ready."""
    try:
        async with connected(kubeconfig) as client, client.open("/readyz"):
            return True
    except _REQUEST_ERRORS:
        return False


class _Requests:
    """Requests to one API server. Those that return a Read never raise: what was refused is its `unknown`."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def fetch_version(self) -> tuple[str, datetime]:
        """Fetch version and time of the server: "" if the version may not be read, this machine's time if it
        sends none. Raises ApiError for invalid credentials, and the error of a server that does not
        answer."""
        async with self._client.open("/version", any_status=True) as answer:
            if answer.status == 401:
                raise ApiError(401, "Unauthorized")
            body = await answer.json(content_type=None) if answer.status == 200 else {}
            date = answer.headers.get("Date")
            now = parsedate_to_datetime(date) if date else datetime.now(UTC)
            return str(at(body, "gitVersion") or ""), now

    async def fetch(self, path: str, what: str, **params: str) -> Read:
        """Fetch a list or an object. `what`: its name in the message to a user that may not read it."""
        try:
            return _read_of_answer(await self._client.request("GET", path, params=params))
        except _REQUEST_ERRORS as error:
            return _read_of_error(error, what)

    async def fetch_metadata(self, path: str, what: str) -> Read:
        """Fetch the metadata of one object; the server does not send the rest. `what`: as for fetch()."""
        try:
            async with self._client.open(path, headers=_METADATA_ONLY) as answer:
                return _read_of_answer(await answer.json(content_type=None))
        except _REQUEST_ERRORS as error:
            return _read_of_error(error, what)

    async def fetch_of_operators(self, group: str, plural: str, namespace: str) -> Read:
        """Fetch objects of operators in all namespaces. Where that fails, those in _SYSTEM and in
        `namespace`, and `unknown` stays set: there may be others. group: its path, `/apis/apps/v1`."""
        selected = {"labelSelector": OPERATOR_LABELS}
        everywhere = await self.fetch(f"{group}/{plural}", f"{plural} in all namespaces", **selected)
        if not everywhere.unknown:
            return everywhere
        namespaces = dict.fromkeys((_SYSTEM, namespace))
        parts = [
            await self.fetch(f"{group}/namespaces/{each}/{plural}", f"{plural} in {each}", **selected)
            for each in namespaces
        ]
        return Read(tuple(each for part in parts for each in part.items), everywhere.unknown)


def _read_of_answer(answer: Object) -> Read:
    """Read with the items of a list, the groups of /apis, or one object."""
    items = answer.get("items", answer.get("groups"))
    return Read((answer,) if items is None else tuple(items))


def _read_of_error(error: Exception, what: str) -> Read:
    """Read without items. What is not found is known: it does not exist, or the server has no such kind."""
    status, message = getattr(error, "status", 0), str(error) or type(error).__name__
    if isinstance(error, NotFound):
        return Read(served=not isinstance(error, NoSuchKind))
    return Read(unknown=f"you may not read {what}" if status == 403 else message)


async def _read_cluster(requests: _Requests, kubeconfig: Path, namespace: str) -> Cluster:
    """Read a cluster. Of a local one, whose operator is a process, only the CustomResourceDefinition and that
    operator. Raises the error of a server that does not answer."""
    version, now = await requests.fetch_version()
    local = version.endswith(_LOCAL_SUFFIX)
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
        return Cluster(**known, local=True, operator=await _local_operator_problem(kubeconfig.parent))
    deployments = await requests.fetch_of_operators("/apis/apps/v1", "deployments", namespace)
    return Cluster(
        **known,
        deployments=deployments,
        pods=await requests.fetch_of_operators("/api/v1", "pods", namespace),
        leases=await _fetch_leases(requests, deployments),
        nodes=await requests.fetch("/api/v1/nodes", "nodes"),
        classes=await requests.fetch("/apis/storage.k8s.io/v1/storageclasses", "storage classes"),
    )


async def _local_operator_problem(home: Path) -> str:
    """Reason why the operator of the local cluster is not ready; empty: it is."""
    file = home / "operator.address"
    if not file.exists():
        return f"no operator of `ropeteam up` has started in {home}"
    url = f"http://{file.read_text().strip()}/readyz"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            return "" if answer.status == 200 else f"{url} is not ready: {await answer.text()}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{url} does not answer: {str(error) or type(error).__name__}"


async def _fetch_leases(requests: _Requests, deployments: Read) -> Read:
    """Fetch the leases that the operators of these Deployments name in `--lease=NAMESPACE/NAME`. `unknown`:
    the first problem."""
    wanted = {operator_flags(each).get("lease", "") for each in deployments.items} - {""}
    parts = []
    for name in sorted(wanted):
        namespace, _, lease = name.partition("/")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"
        parts.append(await requests.fetch(path, f"leases in {namespace}"))
    unknown = next((part.unknown for part in parts if part.unknown), "")
    return Read(tuple(each for part in parts for each in part.items), unknown)


async def _read_namespace(requests: _Requests, name: str, guards_jobs: bool | None) -> Namespace:
    """Read a namespace for jobs. guards_jobs: as in Namespace."""
    base = f"/api/v1/namespaces/{name}"
    policies = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
    return Namespace(
        name,
        guards_jobs=guards_jobs,
        itself=await requests.fetch(base, f"namespace {name}"),
        quotas=await requests.fetch(f"{base}/resourcequotas", f"quotas in {name}"),
        limits=await requests.fetch(f"{base}/limitranges", f"limit ranges in {name}"),
        policies=await requests.fetch(policies, f"network policies in {name}"),
    )


async def _read_job(requests: _Requests, namespace: str, name: str) -> Job:
    """Read a job, and the claims and pull secrets that its spec names; none, if the job cannot be read. Of
    Secrets only metadata."""
    job = await requests.fetch(
        f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}", f"jobs in {namespace}"
    )
    spec = at(job.items[0], "spec") if job.items else {}
    base = f"/api/v1/namespaces/{namespace}"
    claims_by_name = {
        each: await requests.fetch(f"{base}/persistentvolumeclaims/{each}", f"claims in {namespace}")
        for each in claims(spec)
    }
    pull_secrets = [str(each.get("name")) for each in at(spec, "template.spec.imagePullSecrets") or ()]
    secrets = {
        each: await requests.fetch_metadata(f"{base}/secrets/{each}", f"secrets in {namespace}")
        for each in pull_secrets
    }
    service = await requests.fetch(f"{base}/services/{name}", f"services in {namespace}")
    return Job(name, namespace, itself=job, claims=claims_by_name, secrets=secrets, service=service)
