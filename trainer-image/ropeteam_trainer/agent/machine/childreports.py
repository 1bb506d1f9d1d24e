"""Reports of the processes of a rank on groups and errors, merged. Pure.

A rank, or a command that runs once per pod, may start processes of its own, and each reports for itself
(childhooks.py). Priority of errors: the rank's own -> an exception of one of its processes -> the exit that a
launcher saw of one that could not report -> an exception that blames a peer; among equals the first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.contract.local import FromRank, GroupFormed
from ropeteam_trainer.contract.messages import GroupReport
from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.contract.world import ProcessExit

MOST_GROUPS, MOST_MEMBERS, MOST_RANKS, _MAX_TEXT = 16, 1024, 1 << 20, 100
CHILD_SECONDS = 60.0
"""An exception of a child counts as the reason of an end that follows within this time. torchrun gives the
other processes half of it to end."""


_CONSEQUENCE = 3


def with_group(groups: tuple[GroupReport, ...], number: int, formed: GroupFormed) -> tuple[GroupReport, ...]:
    """The groups with `formed`, received on the socket of rank `number`. Of too many the largest stay."""
    if not 0 <= formed.rank < formed.size <= MOST_RANKS:
        return groups
    formed = replace(formed, id=formed.id[:_MAX_TEXT], who=formed.who[:_MAX_TEXT])
    key = (formed.id, formed.size)
    known = next((each for each in groups if (each.id, each.size) == key), None)
    if known is None:
        new = GroupReport(formed.id, formed.size, formed.who, (number,), (formed.rank,))
        return tuple(sorted((*groups, new), key=lambda each: -each.size)[:MOST_GROUPS])
    if number in known.ranks and (formed.rank in known.members or len(known.members) >= MOST_MEMBERS):
        return groups
    more = replace(known, ranks=_with(known.ranks, number), members=_with(known.members, formed.rank))
    return tuple(more if each is known else each for each in groups)


def _with(numbers: Iterable[int], more: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, more}))


def better(known: FromRank | None, new: FromRank) -> bool:
    """Whether a newly reported error is nearer to the cause of a rank's exit."""
    if known is None:
        return True
    if new.launcher and known.child and new.signal is None and new.rank in (None, known.rank):
        return False  # that process has reported for itself
    return _priority(new) < _priority(known)


def after(known: FromRank | None, new: FromRank, seconds: float) -> FromRank:
    """The new error, with the one that a process of the rank reported `seconds` before: the script may fail
    because that process did, and so because of a peer if the process blamed one."""
    if known is None or known.launcher or not known.child or _priority(new) or seconds > CHILD_SECONDS:
        return new
    return replace(new, message=f"{new.message}, after {known.message} in a process that it started")


def _priority(new: FromRank) -> int:
    if new.launcher:
        return 2
    if not new.child:
        return 0
    return 1 if is_cause(new) else _CONSEQUENCE


def is_cause(new: FromRank) -> bool:
    """Whether the error blames no peer."""
    return not blames_a_peer(f"{new.fingerprint} {new.message}")


def explains(error: FromRank, exit: ProcessExit, seconds: float) -> bool:
    """Whether an error reported `seconds` ago explains the exit. A child's never explains a signal."""
    return not error.child or (exit.signal is None and seconds <= CHILD_SECONDS)


def caused(exit: ProcessExit, error: FromRank, number: int, ended: int | None = None) -> ProcessExit:
    """The exit of rank `number` with its cause: perhaps that of another rank, which a launcher had started.
    `ended`: a rank of the launcher that had reached its end before."""
    message, rank = error.message, error.rank
    if ended is not None and _priority(error) == _CONSEQUENCE:
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
    """The exit of a shell, which exits with 128 + N when signal N has killed its command."""
    try:
        name = signal.Signals((exit.code or 0) - 128).name
    except ValueError:
        return exit
    return replace(exit, message=f"a process that it started was killed by {name}")
