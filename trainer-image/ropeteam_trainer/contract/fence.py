"""How long an unreachable rank may live: one guarantee of the agent, and what others may conclude from it.
Pure.

An agent counts from the moment at which it *sent* the newest of its reports that a coordinator has answered.
A process that knows that no coordinator answers it any more therefore knows when its ranks are dead, whatever
TCP did meanwhile: delayed frames, connections that looked alive and failed reconnections do not move that
moment. The bound does not depend on lostSeconds.
"""

from __future__ import annotations

TICK_SECONDS = 0.2
"""Interval at which an agent checks its clocks."""
KILL_SECONDS = 9.0
"""Time from that check until the last descendant of the last rank is dead: its event loop's turn, SIGKILL,
and a kernel that frees the memory, on a busy machine. An assumption; 0.1 s is usual."""
CLOCK_SHARE = 1 / 1000
"""Assumed difference in rate of two machines' clocks: twice what the kernel lets NTP slew (500 ppm)."""


def longest_life(fence_seconds: float) -> float:
    """Seconds after an agent's last answer after which none of its ranks lives, by any machine's clock."""
    return fence_seconds * (1 + CLOCK_SHARE) + TICK_SECONDS + KILL_SECONDS


def longest_lease(lease_seconds: float) -> float:
    """Seconds after which a coordinator with a lease has answered its last report, counted from when its
    newest report that the operator may still acknowledge was received.

    The coordinator counts from when it *sent* that report, so again no delay on the way moves the moment.
    From its last answer on, ranks of its agents live for `longest_life` at most.
    """
    return lease_seconds * (1 + CLOCK_SHARE)


def renew_seconds(lost_seconds: float) -> float:
    """Interval at which an agent with nothing to report renews its lease: thrice before it would expire."""
    return lost_seconds * 3 / 10


def answer_seconds(lost_seconds: float) -> float:
    """Time without a message to an agent after which its next report is answered, if only in the short form.

    Reports come every `renew_seconds`, so the newest answered one is never older than 3/5 of lostSeconds and
    a round trip, on a healthy link; fenceSeconds are more than lostSeconds.
    """
    return lost_seconds / 3
