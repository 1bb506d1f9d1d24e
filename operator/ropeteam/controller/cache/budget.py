"""Limit of the cached text of jobs: it bounds the cache, not the jobs. A job without cached text is read from
the API server by each reconcile that needs it, so no job is refused, stopped or dropped when memory is short.

A namespace may hold as much as is still free (in networks: a dynamic threshold): alone half of the total, two
a third each, and none can take the memory of namespaces that come later. Deciding again whenever a job
changes is enough: freed memory is used by the next job that changes.
Limits: the rest that is cached of a job, some 2 KiB, has no bound but the number of jobs.
"""

from __future__ import annotations

from collections import Counter

from ropeteam.controller.cache.informer import Key
from ropeteam.controller.cache.parsing import CachedJob

MOST_BYTES = 128 << 20
"""For all namespaces: a quarter of the memory that our chart gives the operator."""


class Budget:
    """Bytes of cached text, by namespace. Each job that `reserve` returned is given to `release` once."""

    def __init__(self) -> None:
        self.held = Counter[str]()

    def reserve(self, key: Key, job: CachedJob) -> CachedJob:
        """Count the job's text, if its namespace may hold it. Returns the job as it is to be cached: with its
        text, or without."""
        size = len(job.text)
        if self.held[key.namespace] + size > MOST_BYTES - self.held.total() - size:
            return job._replace(text=b"")
        self.held[key.namespace] += size
        return job

    def release(self, key: Key, job: CachedJob) -> None:
        """Count the text of a job that leaves the cache no longer."""
        self.held[key.namespace] -= len(job.text)
        if not self.held[key.namespace]:
            del self.held[key.namespace]
