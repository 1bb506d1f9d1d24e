"""Actions of the operator, as data. Each is idempotent: twice is the same as once. str() of an action is its
text in logs and events, which begins with a verb: "cannot {action}".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropeteam.core.seen import names


@dataclass(frozen=True)
class CreatePod:
    """Create a pod; no effect, if one of that name exists."""

    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"create Pod {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod with this UID; no effect on another one of that name."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """None: the pod's own grace period."""

    def __str__(self) -> str:
        return f"delete Pod {self.name} (uid {self.uid})"


@dataclass(frozen=True)
class CreateService:
    """Create the Service in front of the coordinator."""

    manifest: dict[str, Any]

    def __str__(self) -> str:
        return f"create Service {self.manifest['metadata']['name']}"


@dataclass(frozen=True)
class PointService:
    """Make the Service lead to the coordinator of another term, by its selector."""

    name: str
    uid: str
    selector: dict[str, str]

    def __str__(self) -> str:
        return f"point Service {self.name} to term {self.selector.get(names.TERM)}"


@dataclass(frozen=True)
class DeleteService:
    """Delete the Service with this UID."""

    name: str
    uid: str

    def __str__(self) -> str:
        return f"delete Service {self.name}"


@dataclass(frozen=True)
class CreateSecret:
    """Create the Secret with the job's token and the keys of its checkpoint folder. The executor derives the
    bytes from the operator's key, so that no observation and no decision contains a secret."""

    name: str
    job_uid: str
    labels: dict[str, str]
    owner: dict[str, Any]
    key_id: str
    """Id of the operator's key that the token is derived from."""
    folder: str = ""
    """Identity of the checkpoint folder (manifests.folder_identity), from which the signing keys are derived.
    Empty: the job has none."""

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
    """Create the Secret with our agent, which the worker pods of a namespace mount, where it is missing. Only
    the executor has the bytes."""

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
