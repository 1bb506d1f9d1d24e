"""The clock by which leases, fences and elections are judged: it goes on while the machine is suspended.

Limits: Linux. Of one machine only, since its boot; never compared with another's.
"""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """CLOCK_MONOTONIC and the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Asleep:
    """It never shrinks: who loses the processor between the two readings measures too little, on a busy
    machine by tens of milliseconds, and a clock that goes by it would step back.
    """

    def __init__(self) -> None:
        self._most = 0.0

    def __call__(self) -> float:
        self._most = max(self._most, boot_seconds() - time.monotonic())
        return self._most


asleep_seconds = _Asleep()
"""How long this machine has been suspended since its boot."""
