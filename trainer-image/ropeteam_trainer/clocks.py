"""The clock by which leases, fences and elections are judged: it goes on while the machine is suspended.

Limits: Linux. Of one machine only, since its boot; never compared with another's.
"""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """CLOCK_MONOTONIC and the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def asleep_seconds() -> float:
    """How long this machine has been suspended since its boot."""
    return boot_seconds() - time.monotonic()
