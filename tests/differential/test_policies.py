"""NetworkPolicies of jobs on a real API server: accepted, or refused with messages that we know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lab.waiting import wait_until_async
from tests.builders import UID, a_job
from tests.differential.scenario import Call
from tests.differential.servers import TOKEN, Server, real, why_not

from ropeteam.api.defaults import JobPolicy
from ropeteam.controller.client.access import Access
from ropeteam.controller.client.apiclient import ApiClient, ApiError, OwnedObjectExists
from ropeteam.core.objects import policy
from ropeteam.core.seen.observation import PolicySeen
from ropeteam.core.seen.view import build_view

Object = dict[str, Any]
OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sys"}}}
PROMETHEUS = {"ipBlock": {"cidr": "10.0.0.0/8"}}
RULE = {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create"]}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/lab/networkpolicies"

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@dataclass(frozen=True)
class As(Access):
    """As another user."""

    user: str = "operator"

    async def headers(self) -> dict[str, str]:
        return {**await super().headers(), "Impersonate-User": self.user}


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with real(tmp_path) as server:
        await make(server, "/api/v1/namespaces", {"metadata": {"name": "lab"}})
        yield server


@pytest_asyncio.fixture
async def operator(server: Server) -> AsyncIterator[ApiClient]:
    """A client without rights."""

    async def token() -> str:
        return TOKEN

    async def load() -> Access:
        return As(server.url, None, token)

    async with ApiClient(load, connect=lambda _: server.session) as client:
        yield client


async def make(server: Server, path: str, body: Object) -> None:
    answer = await server.request(Call("POST", path, body))
    assert answer.status == 201, answer.body


async def permit(server: Server, operator: ApiClient) -> None:
    """The API server acts on its own watches, of quotas too: the test waits for its answer."""
    named = {"metadata": {"name": "operator"}}
    await make(server, f"{ROLES}/clusterroles", {**named, "rules": [RULE]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}
    await make(server, f"{ROLES}/clusterrolebindings", {**named, "roleRef": role, "subjects": [user]})
    await wait_until_async("the operator may create policies", lambda: allowed(operator))


async def allowed(operator: ApiClient) -> bool:
    may = {"namespace": "lab", "group": "networking.k8s.io", "resource": "networkpolicies", "verb": "create"}
    reviewed = await operator.request("POST", REVIEWS, body={"spec": {"resourceAttributes": may}})
    return bool(reviewed["status"]["allowed"])


def manifest(**template: Any) -> Object:
    who = JobPolicy(operator_from=(OPERATOR,), metrics_from=(PROMETHEUS,))
    seen = a_job(template={"spec": template})
    seen = seen.but(defaults=seen.defaults.model_copy(update={"policy": who}))
    made = policy.manifest(seen, build_view(seen).spec)
    assert made is not None
    return made


async def test_it_is_taken_as_it_is_and_may_be_created_only(server: Server, operator: ApiClient) -> None:
    await permit(server, operator)
    mine = manifest(hostNetwork=True)
    made = await operator.create(mine)
    assert made["spec"] == mine["spec"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID
    with pytest.raises(OwnedObjectExists):
        await operator.create(mine)
    with pytest.raises(ApiError, match="cannot get resource"):
        await operator.request("GET", f"{POLICIES}/{made['metadata']['name']}")


async def test_a_missing_right_and_a_full_quota_are_distinguished(
    server: Server, operator: ApiClient
) -> None:
    forbidden = await refusal(operator)
    await permit(server, operator)
    hard = {"count/networkpolicies.networking.k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    quotas = "/api/v1/namespaces/lab/resourcequotas"
    await make(server, quotas, {**quota, "spec": {"hard": hard}})
    whole = {**quota, "status": {"hard": hard, "used": hard}}
    assert (await server.request(Call("PUT", f"{quotas}/small/status", whole))).status == 200
    tried = Call("POST", POLICIES, manifest(), {"dryRun": "All"})

    async def exceeded() -> bool:
        return "exceeded quota" in str((await server.request(tried)).body)

    await wait_until_async("the quota is in force", exceeded)
    full = await refusal(operator)
    assert "exceeded quota: small" in full
    assert (continues(forbidden), continues(full)) == (True, False)


async def refusal(operator: ApiClient) -> str:
    with pytest.raises(ApiError) as caught:
        await operator.create(manifest())
    assert caught.value.status == 403
    return caught.value.message


def continues(message: str) -> bool:
    """Whether a job whose policy is refused with this message continues."""
    who = JobPolicy(operator_from=(OPERATOR,))
    seen = a_job().but(policy=PolicySeen(refusal=policy.refusal_message(message)))
    seen = seen.but(defaults=seen.defaults.model_copy(update={"policy": who}))
    return not policy.blocks_gang_start(build_view(seen))
