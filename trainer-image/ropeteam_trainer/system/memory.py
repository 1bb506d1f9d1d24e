"""Memory that this process has freed, and that the C library keeps for later.

Tensors of less than 32 MB come from heaps that hardly ever shrink: holes between what is still in use stay
resident. In use is no more than before, but the process grows towards the most that it ever used at once, in
each of the heaps of its threads.
"""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Return these holes to the kernel: some milliseconds for 100 MB, in which allocations of other threads
    wait. Without glibc nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
