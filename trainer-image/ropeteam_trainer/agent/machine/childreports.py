"""What the processes of a rank have told of groups and errors, brought together. Pure.

A rank, or a command that runs once per pod, may start processes of its own, and each tells for itself
(childhooks.py). The order in which errors count: the rank's own -> an exception of one of its processes ->
what a launcher saw of one that could not tell -> an exception that blames a peer; among equals the first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.contract.local import FromRank, GroupFormed
from ropeteam_trainer.contract.messages import GroupReport
from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.contract.world import ProcessExit

MOST_GROUPS, MOST_MEMBERS, MOST_RANKS, _LONGEST = 16, 1024, 1 << 20, 100
CHILD_SECONDS = 60.0
"""An exception of a child counts as the reason of an end that follows within this time. torchrun gives the
other processes half of it to end."""


_CONSEQUENCE = 3


def with_group(groups: tuple[GroupReport, ...], number: int, formed: GroupFormed) -> tuple[GroupReport, ...]:
    """`number`: of the rank on whose socket it was told. Of too many the largest are kept."""
    if not 0 <= formed.rank < formed.size <= MOST_RANKS:
        return groups
    formed = replace(formed, id=formed.id[:_LONGEST], who=formed.who[:_LONGEST])
    key = (formed.id, formed.size)
    known = next((each for each in groups if (each.id, each.size) == key), None)
    if known is None:
        new = GroupReport(formed.id, formed.size, formed.who, (number,), (formed.rank,))
        return tuple(sorted((*groups, new), key=lambda each: -each.size)[:MOST_GROUPS])
    if number in known.ranks and (formed.rank in known.members or len(known.members) >= MOST_MEMBERS):
        return groups
    more = replace(known, ranks=_and(known.ranks, number), members=_and(known.members, formed.rank))
    return tuple(more if each is known else each for each in groups)


def _and(numbers: Iterable[int], more: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, more}))


def better(known: FromRank | None, said: FromRank) -> bool:
    """Whether an error that was told now says more of why a rank will end."""
    if known is None:
        return True
    if said.launcher and known.child and said.signal is None and said.rank in (None, known.rank):
        return False  # that process has told for itself
    return _order(said) < _order(known)


def after(known: FromRank | None, said: FromRank, seconds: float) -> FromRank:
    """What is told now, and what one of the rank's processes has told `seconds` before: the script may fail
    because that one did, and so because of a peer if that one blamed one."""
    if known is None or known.launcher or not known.child or _order(said) or seconds > CHILD_SECONDS:
        return said
    return replace(said, message=f"{said.message}, after {known.message} in a process that it started")


def _order(said: FromRank) -> int:
    if said.launcher:
        return 2
    if not said.child:
        return 0
    return 1 if is_cause(said) else _CONSEQUENCE


def is_cause(said: FromRank) -> bool:
    """It blames no peer."""
    return not blames_a_peer(f"{said.fingerprint} {said.message}")


def explains(error: FromRank, exit: ProcessExit, seconds: float) -> bool:
    """`seconds`: since it was told. What a child died of says nothing of a rank that a signal ends."""
    return not error.child or (exit.signal is None and seconds <= CHILD_SECONDS)


def caused(exit: ProcessExit, error: FromRank, number: int, ended: int | None = None) -> ProcessExit:
    """How rank `number` ended, told by its cause: perhaps that of another rank, which a launcher had started.
    `ended`: one of those that had reached its end before."""
    message, rank = error.message, error.rank
    if ended is not None and _order(error) == _CONSEQUENCE:
        message, rank = (
            f"rank {ended} had ended, then rank {number if rank is None else rank}: {message}",
            ended,
        )
    exit = replace(
        exit,
        fingerprint=error.fingerprint,
        message=message,
        error_class=error.error_class,
        rank=rank if rank != number else None,
    )
    started = error.launcher and (error.child or error.rank is not None)  # a rank, not a tool of the script
    if started and error.signal is not None:
        exit = replace(exit, code=None, signal=error.signal)
    elif started and error.code:
        exit = replace(exit, code=error.code)
    return replace(exit, fingerprint=exit.fingerprint or exit.how)


def of_a_shell(exit: ProcessExit) -> ProcessExit:
    """A shell ends with 128 + N where a signal N has ended its command."""
    try:
        name = signal.Signals((exit.code or 0) - 128).name
    except ValueError:
        return exit
    return replace(exit, message=f"a process that it started was ended by {name}")
