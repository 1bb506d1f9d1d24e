"""How much of the library a script uses. In messages and in status a level is its number."""

from __future__ import annotations

from enum import IntEnum


class FeatureLevel(IntEnum):
    """Each level includes those below it. A peer may send a higher number than is known here."""

    NONE = 0
    """The script reports no steps, so no hang is detected."""
    STEPS = 1
    """The script calls init(), and reports its steps."""
    CHECKPOINTS = 2
    """The script calls restore(). Checkpoints are committed through the coordinator: files that ranks of an
    older world still write do not count."""
    DATA = 3
    """The script calls batches(). A checkpoint includes the position in the data."""
