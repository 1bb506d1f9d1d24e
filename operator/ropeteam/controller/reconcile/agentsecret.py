"""The Secret with our agent, mounted by worker pods: created before a pod needs it.

There is one per namespace and version. A Secret, because that is the one kind that operators may create
everywhere already, and that few people may write. The name is derived from the content, which never changes,
so operators of two versions do not interfere. Limits: it has no owner and stays when the operator is
uninstalled; an existing Secret of this name is used as it is.
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

from ropeteam.controller.client.apiclient import REFUSALS, ApiClient, ApiError, OwnedObjectExists
from ropeteam.core.seen import names

_RECHECK_SECONDS = 60.0
"""For so long a Secret that we created is assumed to exist; after that one create request checks it."""


@cache
def build_agent_archive() -> bytes:
    """Build agent.pyz and return its bytes. Blocks for a subprocess, at the first call: the operator imports
    only the trainer's contract. Raises CalledProcessError."""
    command = [sys.executable, "-m", "ropeteam_trainer.agent.pack"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


@dataclass(frozen=True)
class AgentSecret:
    """The Secret of this operator's version. `content`: the bytes of agent.pyz."""

    content: bytes
    _known_at: dict[str, float] = field(default_factory=dict)
    """Namespace to the time when the Secret was last known to exist."""
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Locks by namespace: a hundred jobs that start at once send one request."""

    @property
    def name(self) -> str:
        """The Secret's name, with a hash of the content: another agent has another Secret."""
        return names.agent_secret(hashlib.sha256(self.content).hexdigest())

    async def ensure(self, client: ApiClient, namespace: str) -> None:
        """Create the Secret in `namespace` unless it exists; without a request, if that was known less than
        `_RECHECK_SECONDS` ago. Raises ApiError, connection errors."""
        clock = asyncio.get_running_loop().time
        async with self._locks[namespace]:
            if clock() - self._known_at.get(namespace, float("-inf")) < _RECHECK_SECONDS:
                return
            try:
                with suppress(OwnedObjectExists):
                    await client.create(self._manifest(namespace))
            except ApiError as error:
                # An exceeded quota refuses also the create of an object that exists.
                if namespace not in self._known_at or error.status not in REFUSALS:
                    raise
            self._known_at[namespace] = clock()

    def _manifest(self, namespace: str) -> dict[str, Any]:
        """The Secret to create: immutable, and without an owner, because jobs share it."""
        labels = {names.MANAGED_BY: "ropeteam", names.COMPONENT: "agent"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": namespace, "labels": labels},
            "type": "Opaque",
            "immutable": True,
            "data": {names.AGENT_FILE: base64.b64encode(self.content).decode()},
        }
