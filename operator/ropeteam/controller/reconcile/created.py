"""Secret and NetworkPolicy of a job: neither is ever read. That they exist is known from the API server's
answers to our create requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.core.seen.observation import PolicySeen


@dataclass
class CreatedObjects:
    """Objects of one job that one operator process knows to exist. Changed in place by executor.py."""

    policy: PolicySeen = PolicySeen()
    """The NetworkPolicy, or its refusal; empty: not created by this process yet."""
    secret: str = ""
    """Name of the Secret that the API server confirmed last; "": none yet."""
    secret_at: float = 0.0
    """When it confirmed that, by the clock of this process."""
