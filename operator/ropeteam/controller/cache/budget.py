"""How much text of jobs is kept: a cache's bound, not the jobs'. What there is no room for is read from the
API server by each round that needs it, so no job is refused, stopped or forgotten for want of room.

A namespace may hold as much as is still free (in networks: a dynamic threshold): alone half of it all, two a
third each, and none can take the room of those that come later. Deciding again whenever a job changes is
enough: room that has come back is used by whoever changes next.
Limits: what else is kept of a job, some 2 KiB, has no bound but the number of jobs.
"""

from __future__ import annotations

from collections import Counter

from ropeteam.controller.cache.informer import Key
from ropeteam.controller.cache.parsing import JobSeen

MOST_BYTES = 128 << 20
"""Of all namespaces: a quarter of the memory that our chart gives the operator."""


class Budget:
    """Bytes of text that are held, by namespace."""

    def __init__(self) -> None:
        self.held = Counter[str]()

    def keep(self, key: Key, job: JobSeen) -> JobSeen:
        """As it is held from now on."""
        size = len(job.text)
        if self.held[key.namespace] + size > MOST_BYTES - self.held.total() - size:
            return job._replace(text=b"")
        self.held[key.namespace] += size
        return job

    def let_go(self, key: Key, job: JobSeen) -> None:
        self.held[key.namespace] -= len(job.text)
        if not self.held[key.namespace]:
            del self.held[key.namespace]
