"""Kubernetes events: announcements for people, sent after the status that justifies them was saved.

The name is derived from the content, so a repeated announcement of the same status is the same event.
Limits: best effort. An event that cannot be sent is logged and dropped; the status is authoritative.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime

import aiohttp

from ropeteam.api.job import API_VERSION, KIND, Metadata
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Conflict, Object, OwnedObjectExists
from ropeteam.core.decision import Announcement

log = logging.getLogger(__name__)


async def create_event(client: ApiClient, job: Metadata, announcement: Announcement, now: datetime) -> None:
    """Create the event of an announcement. Errors are only logged, but Fenced is raised: this operator may no
    longer write."""
    try:
        await client.create(_event(job, announcement, now))
    except (OwnedObjectExists, Conflict):
        pass
    except (ApiError, aiohttp.ClientError, TimeoutError) as error:
        log.warning(
            "%s/%s: event %s was not created and is dropped: %s: %s",
            job.namespace,
            job.name,
            announcement.reason,
            type(error).__name__,
            error,
        )


def _event(job: Metadata, announcement: Announcement, now: datetime) -> Object:
    """The event's manifest. The name has a hash of the job's resourceVersion, the reason and the message."""
    content = f"{job.uid} {job.resource_version} {announcement.reason} {announcement.message}"
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{job.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}",
            "namespace": job.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        },
        "type": announcement.type,
        "reason": announcement.reason,
        "message": announcement.message[:1024],  # the API server accepts no longer one
        "source": {"component": "ropeteam"},
        "reportingComponent": "ropeteam.dev/operator",
        "reportingInstance": "ropeteam",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
