"""Secret and NetworkPolicy of a job: neither is ever read. That they exist is known from the API server's
answers to our create requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.core.seen.observation import PolicySeen


@dataclass
class Created:
    """Objects of one job that one operator process knows to exist."""

    policy: PolicySeen = PolicySeen()
    secret: str = ""
    """Name of the Secret that the API server last confirmed, and when, by the clock of this process."""
    secret_at: float = 0.0
