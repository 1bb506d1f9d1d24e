"""Our agent as worker pods mount it: one Secret per namespace and version, made before a pod needs it.

A Secret, because those are the one kind that operators may create everywhere already, and that few people
may write. It is named after what is in it and never changes, so operators of two versions keep out of each
other's way. Limits: it has no owner and stays when the operator is uninstalled; one that somebody made before
us under this name is used as it is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ropeteam.controller.client.apiclient import REFUSALS, AlreadyOurs, ApiClient, ApiError
from ropeteam.core.seen import names

_BELIEVED_SECONDS = 60.0
"""So long a Secret that we made is believed to be there; then creating it again costs one request."""


@cache
def packed() -> bytes:
    """agent.pyz. By a process of its own: the operator knows of the trainer only the contract."""
    command = [sys.executable, "-m", "ropeteam_trainer.agent.pack"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


@dataclass(frozen=True)
class AgentSecret:
    content: bytes
    _made: dict[str, float] = field(default_factory=dict)
    """Namespace to the time when it was last seen to be there."""
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """A hundred jobs that start at once ask once."""

    @property
    def name(self) -> str:
        return names.agent_secret(hashlib.sha256(self.content).hexdigest())

    async def ensure(self, client: ApiClient, namespace: str) -> None:
        """It is in `namespace` when this returns. Raises ApiError."""
        clock = asyncio.get_running_loop().time
        async with self._turns[namespace]:
            if clock() - self._made.get(namespace, float("-inf")) < _BELIEVED_SECONDS:
                return
            try:
                with suppress(AlreadyOurs):
                    await client.create(self._manifest(namespace))
            except ApiError as error:
                # A quota that is full refuses what is there, too.
                if namespace not in self._made or error.status not in REFUSALS:
                    raise
            self._made[namespace] = clock()

    def _manifest(self, namespace: str) -> dict[str, Any]:
        labels = {names.MANAGED_BY: "ropeteam", names.COMPONENT: "agent"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": namespace, "labels": labels},
            "type": "Opaque",
            "immutable": True,
            "data": {names.AGENT_FILE: base64.b64encode(self.content).decode()},
        }
