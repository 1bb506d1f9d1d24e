"""Names and labels of Kubernetes objects. A name contains the job and a number or digest, so that to create
an object twice is to create it once.

A function that is named as a kind or role returns the name of that object.
"""

from __future__ import annotations

from typing import Any

from ropeteam.api.job import API_VERSION, GROUP, KIND, Metadata
from ropeteam.core.seen.observation import Role
from ropeteam_trainer.contract.config import AGENT_PYZ

JOB = f"{GROUP}/job"
JOB_UID = f"{GROUP}/job-uid"
ROLE = f"{GROUP}/role"
SLOT = f"{GROUP}/slot"
INCARNATION = f"{GROUP}/incarnation"
TERM = f"{GROUP}/term"
ATTEMPT = f"{GROUP}/attempt"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
CODE_OF = f"{GROUP}/code-of"
"""Label of a ConfigMap that `ropeteam submit` created: the job whose code it has."""
WORKDIR = f"{GROUP}/workdir"
"""Annotation of a TrainingJob or of a pod: the folder in which commands run, on the local cluster."""
COORDINATORS_ENDED = f"{GROUP}/coordinators-ended"
"""Annotation of a job, set by a person: coordinators up to this term have ended."""
AGENT_FILE = AGENT_PYZ.rpartition("/")[2]


def worker(job: str, slot: int, incarnation: int) -> str:
    return f"{job}-{slot}-{incarnation}"


def coordinator(job: str, term: int) -> str:
    return f"{job}-coordinator-{term}"


def service(job: str) -> str:
    return job  # one Service for all terms: workers know its address only


def secret(job: Metadata, key_id: str) -> str:
    """Name of the job's Secret. It has the job's UID, so that the next job of this name gets another token,
    and the id of the operator's key, so that keys can be rotated.
    """
    return f"{job.name}-{job.uid[:8]}-{key_id}"


def policy(job: str, digest: str) -> str:
    """Name of the job's NetworkPolicy. `digest`: of its content, which has the job's UID."""
    return f"{job}-{digest[:10]}"


def agent_secret(digest: str) -> str:
    """Name of the Secret with our agent, the same in each namespace. `digest`: of its content."""
    return f"ropeteam-agent-{digest[:10]}"


def labels(job: Metadata, role: Role | None = None, **more: int) -> dict[str, str]:
    """Labels of an object of `job`. `role`: of a pod; `more`: values of slot, incarnation, term, attempt."""
    own = {MANAGED_BY: "ropeteam", JOB: job.name, JOB_UID: job.uid}
    if role is not None:
        own[ROLE] = role.value
    return own | {f"{GROUP}/{key}": str(value) for key, value in more.items()}


def user_entries(entries: dict[str, Any]) -> dict[str, Any]:
    """The labels or annotations of a template that a pod gets: all but `ropeteam.dev/`, which only the
    operator sets."""
    return {key: value for key, value in entries.items() if not key.startswith(f"{GROUP}/")}


def coordinator_selector(job: Metadata, term: int) -> dict[str, str]:
    """The Service's selector, of the coordinator pod of exactly this term: an older one gets no new
    connections."""
    return {JOB_UID: job.uid, ROLE: Role.COORDINATOR.value, TERM: str(term)}


def owner_reference(job: Metadata) -> dict[str, Any]:
    """Owner reference to the job: every object that has it is garbage-collected with the job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
    }
