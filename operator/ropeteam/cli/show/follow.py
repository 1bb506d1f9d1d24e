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
from ropeteam.cli.show.jobview import JobView, job_view
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NotFound, Object, ObjectRef
from ropeteam.controller.client.coordinator import RequestAuth, auth_for
from ropeteam.core.seen import names
from ropeteam_trainer.contract import codec, signing
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import JobReport

POLL_SECONDS = 0.5


class JobPoller:
    """Poll one job."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client, self.namespace, self.name = client, namespace, name
        self._auths: dict[tuple[str, int], RequestAuth] = {}
        """Keys, by UID of the job and term of its coordinator."""

    async def job(self) -> Object | None:
        try:
            return await self._client.get(ObjectRef(KIND, self.namespace, self.name))
        except NotFound:
            return None

    async def poll(self) -> JobView | None:
        """Read the job once. None: there is no such job."""
        job = await self.job()
        if job is None:
            return None
        status = JobStatus.model_validate(job.get("status") or {})
        report = None if status.finished else await self.report(job)
        return job_view(self.name, status, report, datetime.now(UTC))

    async def views(self) -> AsyncIterator[JobView]:
        """Views of the job until it has ended, or is gone."""
        while (view := await self.poll()) is not None:
            yield view
            if view.finished or view.refused:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def report(self, job: Object) -> JobReport | None:
        """Fetch the coordinator's report. None: no coordinator answers, or we do not have the right."""
        try:
            auth = await self._auth(job["metadata"]["uid"], job["status"]["coordinator"]["term"])
            answer = await self._fetch_report(auth)
            return codec.decode(JobReport, answer or await self._fetch_report(auth))
        except (ApiError, LookupError, aiohttp.ClientError, TimeoutError, codec.DecodeError):
            return None

    async def _fetch_report(self, auth: RequestAuth) -> bytes:
        """Fetch the encoded report. b"": none, or not authentic; at times because a challenge expired."""
        ref = ObjectRef("Service", self.namespace, f"{self.name}:{COORDINATOR_HTTP_PORT}", "proxy/status")
        headers = auth.headers("GET /status", b"", self._client.chance)
        async with self._client.open(ref.path, headers=headers, any_status=True) as answer:
            body, signature = await answer.read(), answer.headers.get(signing.HEADER, "")
            genuine = auth.is_authentic(headers, answer.status, signature, body)
            return body if genuine and answer.status == 200 else b""

    async def _auth(self, uid: str, term: int) -> RequestAuth:
        """Read the keys of this coordinator, once. Raises ApiError, LookupError."""
        if (uid, term) not in self._auths:
            pod = await self._client.get(ObjectRef("Pod", self.namespace, names.coordinator(self.name, term)))
            secrets = await self.secrets(uid)
            token = bytes.fromhex(base64.b64decode(secrets[-1]["data"]["token"]).decode())
            self._auths[uid, term] = auth_for(signing.Keys(token, uid, term), parsing.pod(pod)[1].contract)
        return self._auths[uid, term]

    async def secrets(self, uid: str) -> list[Object]:
        return await self._client.items(ObjectRef("Secret", self.namespace), f"{names.JOB_UID}={uid}")

    async def pods(self) -> list[Object]:
        """Fetch the pods of workers and parameter servers."""
        selector = f"{names.JOB}={self.name},{names.ROLE} in (worker,server)"
        return await self._client.items(ObjectRef("Pod", self.namespace), selector)

    async def last_lines(self, slot: int, count: int = 20) -> str:
        """Fetch the last lines of the newest pod of a slot; empty if there is none."""
        pods = [pod for pod in await self.pods() if parsing.label(pod, names.SLOT) == str(slot)]
        if not pods:
            return ""
        newest = max(pods, key=lambda pod: int(parsing.label(pod, names.INCARNATION)))
        return await self.log(newest["metadata"]["name"], tailLines=str(count))

    async def log(self, pod: str, **params: str) -> str:
        """Fetch the log of a pod. Empty if there is none (any more)."""
        path = ObjectRef("Pod", self.namespace, pod, "log").path
        try:
            async with self._client.open(path, {"container": "trainer", **params}) as answer:
                return (await answer.read()).decode(errors="replace")
        except ApiError:
            return ""
