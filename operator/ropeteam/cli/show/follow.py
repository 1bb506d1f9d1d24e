"""Poll a job: its status, and the coordinator's own report through the API server's proxy.

Request and answer are signed with the job's token, read from its Secret. A user that may not read Secrets or
pods sees the fields of status, which are at most 30 seconds old.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp

from ropeteam.api.job import KIND
from ropeteam.api.status import JobStatus
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.show.jobview import JobView, job_view
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NotFound, Object, ObjectRef
from ropeteam.controller.client.coordinator import RequestAuth, auth_for
from ropeteam.core.seen import names
from ropeteam_trainer.contract import codec, signing
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import JobReport

POLL_SECONDS = 0.5


def missing_job_error(namespace: str, name: str) -> InvalidInput:
    """Error for a user that names a job that does not exist."""
    return InvalidInput(
        f"there is no TrainingJob {name} in namespace {namespace}; to list all: kubectl get trainingjobs -A"
    )


class JobPoller:
    """Poll one job."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client, self.namespace, self.name = client, namespace, name
        self._auths: dict[tuple[str, int], RequestAuth] = {}
        """Keys, by UID of the job and term of its coordinator."""

    async def fetch_job(self) -> Object | None:
        """Fetch the object. None: there is no such job."""
        try:
            return await self._client.get(ObjectRef(KIND, self.namespace, self.name))
        except NotFound:
            return None

    async def poll(self) -> JobView | None:
        """Fetch the job and its coordinator's report, once. None: there is no such job."""
        job = await self.fetch_job()
        if job is None:
            return None
        status = JobStatus.model_validate(job.get("status") or {})
        report = None if status.finished else await self.fetch_report(job)
        return job_view(self.name, status, report, datetime.now(UTC))

    async def views(self) -> AsyncIterator[JobView]:
        """Views of the job, one every POLL_SECONDS, until it has ended, was not accepted, or is deleted:
        after that there is no further view. Raises ApiError and connection errors of the API server."""
        while (view := await self.poll()) is not None:
            yield view
            if view.finished or view.refused:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def fetch_report(self, job: Object) -> JobReport | None:
        """Fetch the coordinator's report. None: there is no coordinator yet, it does not answer, its answer
        is not authentic, or this user may not read its Secret and pod."""
        try:
            auth = await self._request_auth(job["metadata"]["uid"], job["status"]["coordinator"]["term"])
            body = await self._fetch_report_bytes(auth)
            if not body:  # the challenge may have expired; the answer had a new one
                body = await self._fetch_report_bytes(auth)
            return codec.decode(JobReport, body)
        except (ApiError, LookupError, aiohttp.ClientError, TimeoutError, codec.DecodeError):
            return None

    async def _fetch_report_bytes(self, auth: RequestAuth) -> bytes:
        """Fetch the encoded report. Empty: another status than 200, or not authentic."""
        ref = ObjectRef("Service", self.namespace, f"{self.name}:{COORDINATOR_HTTP_PORT}", "proxy/status")
        headers = auth.headers("GET /status", b"", self._client.chance)
        async with self._client.open(ref.path, headers=headers, any_status=True) as answer:
            body, signature = await answer.read(), answer.headers.get(signing.HEADER, "")
            genuine = auth.is_authentic(headers, answer.status, signature, body)
            return body if genuine and answer.status == 200 else b""

    async def _request_auth(self, uid: str, term: int) -> RequestAuth:
        """Authentication for the coordinator of this term, from its pod and the job's newest Secret; fetched
        once. Raises ApiError; LookupError if there is no Secret or it has no token."""
        if (uid, term) not in self._auths:
            pod = await self._client.get(ObjectRef("Pod", self.namespace, names.coordinator(self.name, term)))
            secrets = await self.fetch_secrets(uid)
            token = bytes.fromhex(base64.b64decode(secrets[-1]["data"]["token"]).decode())
            self._auths[uid, term] = auth_for(signing.Keys(token, uid, term), parsing.pod(pod)[1].contract)
        return self._auths[uid, term]

    async def fetch_secrets(self, uid: str) -> list[Object]:
        """Fetch the Secrets with the tokens of the job with this UID. Raises ApiError."""
        return await self._client.items(ObjectRef("Secret", self.namespace), f"{names.JOB_UID}={uid}")

    async def fetch_pods(self) -> list[Object]:
        """Fetch the pods of workers and parameter servers."""
        selector = f"{names.JOB}={self.name},{names.ROLE} in (worker,server)"
        return await self._client.items(ObjectRef("Pod", self.namespace), selector)

    async def fetch_last_lines(self, slot: int, count: int = 20) -> str:
        """Fetch the last lines of the newest pod of a slot. Empty: there is no pod, or it has no log."""
        pods = [pod for pod in await self.fetch_pods() if parsing.label(pod, names.SLOT) == str(slot)]
        if not pods:
            return ""
        newest = max(pods, key=lambda pod: int(parsing.label(pod, names.INCARNATION)))
        return await self.fetch_log(newest["metadata"]["name"], tailLines=str(count))

    async def fetch_log(self, pod: str, **params: str) -> str:
        """Fetch the log of a pod's trainer container. Empty: the API server refuses it, mostly because the
        pod has not started or is deleted. params: of the request, such as tailLines."""
        path = ObjectRef("Pod", self.namespace, pod, "log").path
        try:
            async with self._client.open(path, {"container": "trainer", **params}) as answer:
                return (await answer.read()).decode(errors="replace")
        except ApiError:
            return ""
