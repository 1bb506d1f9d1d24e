"""Actions of the operator. Each is idempotent: twice is the same as once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CreatePod:
    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"create Pod {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class DeletePod:
    name: str
    uid: str
    grace_seconds: int | None = None
    """None: the pod's own grace period."""

    def __str__(self) -> str:
        return f"delete Pod {self.name} (uid {self.uid})"


@dataclass(frozen=True)
class CreateService:
    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"create Service {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class PointService:
    """Point the Service to another coordinator term."""

    name: str
    uid: str
    selector: dict[str, str]

    def __str__(self) -> str:
        return f"point Service {self.name} to term {self.selector.get('ropeteam.dev/term')}"


@dataclass(frozen=True)
class DeleteService:
    name: str
    uid: str

    def __str__(self) -> str:
        return f"delete Service {self.name}"


@dataclass(frozen=True)
class CreateSecret:
    """Create the Secret with the per-job token and the keys of its checkpoint folder. The executor derives
    the bytes from the operator key: no secret enters an Observation."""

    name: str
    job_uid: str
    labels: dict[str, str]
    owner: dict[str, Any]
    key_id: str
    """Id of the operator's key that the token is derived from."""
    folder: str = ""
    """Checkpoint folder (manifests.folder), from which the signing keys are derived. Empty: it has none."""

    def __str__(self) -> str:
        return f"create Secret {self.name}"


@dataclass(frozen=True)
class CreatePolicy:
    """Create a NetworkPolicy of the job."""

    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"create NetworkPolicy {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class EnsureAgent:
    """Create, where it is missing, the Secret with our agent, which the worker pods of a namespace mount.
    Only the executor has the bytes."""

    def __str__(self) -> str:
        return "ensure the agent's Secret"


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job: its TTL has passed."""

    name: str
    uid: str

    def __str__(self) -> str:
        return f"delete TrainingJob {self.name}"


Action = (
    CreatePod
    | DeletePod
    | CreateService
    | PointService
    | DeleteService
    | CreateSecret
    | CreatePolicy
    | EnsureAgent
    | DeleteJob
)
