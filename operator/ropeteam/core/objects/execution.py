"""The request of each action: the one `match` over actions, for the API server and for the tests' clusters.

For example PointService("mnist", "u2", {"ropeteam.dev/term": "3"}) becomes
merge("Service", "mnist", {"metadata": {"uid": "u2"}, "spec": {"selector": {"ropeteam.dev/term": "3"}}}).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, assert_never

from ropeteam.api.job import KIND
from ropeteam.core.objects.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePod,
    DeleteService,
    EnsureAgent,
    PointService,
)

T_co = TypeVar("T_co", covariant=True)


class Target(Protocol[T_co]):
    """A cluster, or a client of one. Each request may be repeated; one for an object that is gone, or whose
    UID differs, has no effect."""

    def create(self, manifest: dict[str, Any]) -> T_co:
        """Create a Pod or a Service."""

    def delete(self, kind: str, name: str, uid: str, grace_seconds: int | None) -> T_co:
        """Delete the object with this UID. `grace_seconds` None: the object's own."""

    def merge(self, kind: str, name: str, patch: dict[str, Any]) -> T_co:
        """Send a JSON merge patch, with the object's UID in it."""

    def create_policy(self, manifest: dict[str, Any]) -> T_co:
        """Create a NetworkPolicy, which a cluster may refuse to have."""

    def create_secret(self, action: CreateSecret) -> T_co:
        """Create the job's Secret: the action has no bytes."""

    def ensure_agent(self) -> T_co:
        """Create the agent's Secret where it is missing."""


def carry_out(action: Action, target: Target[T_co]) -> T_co:
    """Send the request of this action to `target`. Returns, and raises, what that request does: of the API
    server a coroutine."""
    match action:
        case CreatePod(manifest) | CreateService(manifest):
            return target.create(manifest)
        case DeletePod(name, uid, grace_seconds):
            return target.delete("Pod", name, uid, grace_seconds)
        case PointService(name, uid, selector):
            return target.merge("Service", name, {"metadata": {"uid": uid}, "spec": {"selector": selector}})
        case DeleteService(name, uid):
            return target.delete("Service", name, uid, None)
        case CreateSecret():
            return target.create_secret(action)
        case CreatePolicy(manifest):
            return target.create_policy(manifest)
        case EnsureAgent():
            return target.ensure_agent()
        case DeleteJob(name, uid):
            return target.delete(KIND, name, uid, None)
        case _:
            assert_never(action)
