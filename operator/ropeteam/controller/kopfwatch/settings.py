"""Settings of kopf: no state on objects, no events, no retries, and no connection error that ends it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import kopf

_BACKOFFS = (0.5, 1.0, 2.0, 5.0)
_MAX_BACKOFF = 10.0


class Forever(Collection[float]):
    """Seconds between attempts, which never run out: iterating does not end. Length and membership are those
    of its different values; kopf only iterates."""

    def __iter__(self) -> Iterator[float]:
        yield from _BACKOFFS
        while True:
            yield _MAX_BACKOFF

    def __len__(self) -> int:
        return len(_BACKOFFS) + 1

    def __contains__(self, value: object) -> bool:
        return value in (*_BACKOFFS, _MAX_BACKOFF)


class NullDiffBase(kopf.DiffBaseStorage):
    """No storage of the last seen object: no handler of ours needs differences. The methods are kopf's."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


class NullProgress(kopf.ProgressStorage):
    """No storage of the progress of handlers: ours are not retried. The methods are kopf's."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


def settings() -> kopf.OperatorSettings:
    """The settings of kopf: nothing is written to the API server, and connection errors are retried for ever.
    Timeouts are in seconds. docs/architecture.md section 8 gives the reasons."""
    chosen = kopf.OperatorSettings()
    chosen.persistence.diffbase_storage = NullDiffBase()
    chosen.persistence.progress_storage = NullProgress()
    chosen.networking.error_backoffs = Forever()
    chosen.networking.request_timeout, chosen.networking.connect_timeout = 15, 5
    chosen.watching.server_timeout, chosen.watching.connect_timeout = 290, 5
    chosen.watching.chunk_size = 1  # kopf gets no list entries (outline.py)
    chosen.queueing.idle_timeout = 0.5
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.process.ultimate_exiting_timeout = None  # else SIGKILL, 10 minutes after kopf gave up for once
    return chosen
