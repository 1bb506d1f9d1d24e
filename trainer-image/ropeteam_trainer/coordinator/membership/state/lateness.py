"""Whether this coordinator keeps up: by how much its event loop came later than the time it had set itself.

Order: a turn of the loop comes PAUSE_SECONDS too late -> leases are extended by that (slotindex.py) and the
coordinator is late, until CALM_SECONDS have passed without such a turn -> status and metrics show it, and
metrics are rendered less often (metrics_max_age). Leases, orders and desired states never wait.
Promise: it does not flap: once late, it stays so for CALM_SECONDS; the figure only grows while it lasts.
Limits: the reason is not known: too many agents, too little CPU, a machine that was suspended. Shorter
delays are not noticed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

PAUSE_SECONDS = 1.0
CALM_SECONDS = 60.0
FRESH_SECONDS, STALE_SECONDS = 1.0, 10.0


class Lateness(NamedTuple):
    """Lateness of one coordinator. The default: it has kept up so far."""

    most: float = 0.0
    """Largest delay in seconds since the lateness began."""
    at: float = -math.inf
    """Time of the last late turn."""

    def is_late(self, now: float) -> bool:
        """Whether a turn of the loop came late within the last CALM_SECONDS."""
        return now < self.at + CALM_SECONDS

    def after_late_turn(self, late: float, now: float) -> Lateness:
        """Lateness after a turn that came `late` seconds too late."""
        return Lateness(max(late, self.most if self.is_late(now) else 0.0), now)

    def seconds(self, now: float) -> int:
        """Largest delay, rounded up, for people. 0: it keeps up."""
        return math.ceil(self.most) if self.is_late(now) else 0

    def suffix(self, now: float) -> str:
        """The end of the sentence on a decision (`CoordinatorState.why`); "": the coordinator keeps up."""
        late = self.seconds(now)
        return f"; this coordinator is late: its event loop by up to {late} s" if late else ""

    def metrics_max_age(self, now: float) -> float:
        """Seconds for which rendered metrics are served again. Longer while late: rendering costs time."""
        return STALE_SECONDS if self.is_late(now) else FRESH_SECONDS
