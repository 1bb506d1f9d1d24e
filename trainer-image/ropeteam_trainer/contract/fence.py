"""How long a rank may live that nobody can reach: one promise of the agent, and what others may conclude from
it. Pure.

An agent counts from the moment at which it *sent* the newest of its reports that a coordinator has answered.
Whoever knows that no coordinator answers it any more therefore knows when its ranks are dead, whatever TCP
did meanwhile: frames that were held up on the way, connections that looked alive and reconnections in vain
move that moment by nothing. lostSeconds is in none of the terms.
"""

from __future__ import annotations

TICK_SECONDS = 0.2
"""An agent looks at its clocks this often."""
KILL_SECONDS = 9.0
"""From that look until the last descendant of the last rank is dead: its loop's turn, SIGKILL, and a kernel
that gives the memory back, on a machine that is busy. An assumption; 0.1 s is usual."""
CLOCK_SHARE = 1 / 1000
"""By which the clocks of two machines differ in rate: twice what the kernel lets NTP slew (500 ppm)."""


def longest_life(fence_seconds: float) -> float:
    """Seconds after the last answer to an agent at which none of its ranks lives."""
    return fence_seconds * (1 + CLOCK_SHARE) + TICK_SECONDS + KILL_SECONDS


def longest_lease(lease_seconds: float) -> float:
    """Seconds after which a coordinator that promises to be silent without its operator has answered the last
    report, counted from when its newest report that may be echoed to it was received.

    It counts from when it *sent* that one, so again nothing that is held up on the way moves the moment. What
    it answers it has read before: ranks of its agents live for `longest_life` from then on at most.
    """
    return lease_seconds * (1 + CLOCK_SHARE)


def renew_seconds(lost_seconds: float) -> float:
    """An agent that has nothing to tell renews its lease this often: thrice before it would run out."""
    return lost_seconds * 3 / 10


def answer_seconds(lost_seconds: float) -> float:
    """A report is answered, with a word if there is nothing new, when its agent was told nothing for so long.

    Reports come every `renew_seconds`, so the newest answered one is never older than 3/5 of lostSeconds and
    the way there and back, on a link that is well; fenceSeconds are more than lostSeconds.
    """
    return lost_seconds / 3
