"""Whether this coordinator keeps up: how long after a moment that we had set ourselves we had our next turn.

Order: a turn comes PAUSE_SECONDS too late -> leases are extended by that (step.py) and we are late,
until CALM_SECONDS have passed without such a turn -> status and metrics say so, and what is for people only
is made more seldom (metrics_age). Leases, orders and the operator's words never wait.
Promise: said once and kept up, so it does not flap; what is told only grows while it lasts.
Limits: why we are late is not known: too many agents, too little of a processor, a machine that was
suspended. Turns that take less are not noticed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

PAUSE_SECONDS = 1.0
CALM_SECONDS = 60.0
FRESH_SECONDS, STALE_SECONDS = 1.0, 10.0


class Lateness(NamedTuple):
    """Of one coordinator."""

    most: float = 0.0
    """Seconds by which a turn came late, since it began."""
    at: float = -math.inf
    """When one last did."""

    def holds(self, now: float) -> bool:
        return now < self.at + CALM_SECONDS

    def after(self, late: float, now: float) -> Lateness:
        """A turn came late."""
        return Lateness(max(late, self.most if self.holds(now) else 0.0), now)

    def seconds(self, now: float) -> int:
        """For people: by up to so many. 0: it keeps up."""
        return math.ceil(self.most) if self.holds(now) else 0

    def metrics_age(self, now: float) -> float:
        """Whoever asks for metrics gets those that were made before, if they are not older."""
        return STALE_SECONDS if self.holds(now) else FRESH_SECONDS
