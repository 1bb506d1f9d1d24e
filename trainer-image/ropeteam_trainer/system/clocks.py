"""Clock of leases, fences and elections: it runs while the machine is suspended.

Limits: Linux only. Counts from the boot of one machine; never compared with another machine's.
"""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """CLOCK_MONOTONIC plus the time that the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _SuspendedTime:
    """Suspended time, which never shrinks: a process that is preempted between the two readings measures too
    little, on a busy machine by tens of milliseconds, and a clock derived from it would step back.
    """

    def __init__(self) -> None:
        self._longest = 0.0

    def __call__(self) -> float:
        self._longest = max(self._longest, boot_seconds() - time.monotonic())
        return self._longest


asleep_seconds = _SuspendedTime()
"""Function: the seconds for which this machine has been suspended since its boot."""
