"""Reports of the processes of a rank on groups and errors, merged. Pure.

A rank, or a command that runs once per pod, may start processes of its own, and each reports for itself
(childhooks.py). Errors by priority, the first being nearest to the cause: the rank's own -> an exception of
one of its processes -> the exit that a launcher saw of one that could not report -> an exception that blames
a peer; among equals the first that was reported.
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
"""An exception of a child can explain an exit that follows within this time. torchrun gives the other
processes half of it to end."""
_OWN, _CHILD, _LAUNCHER, _BLAMES_PEER = range(4)
"""Priorities of errors, lowest first."""


def with_group(groups: tuple[GroupReport, ...], rank: int, formed: GroupFormed) -> tuple[GroupReport, ...]:
    """The groups with the process that reports `formed`, on the socket of `rank`, added to its group.

    Groups are the same if id and size are. Of more than MOST_GROUPS the largest stay, and the newest of
    these. Unchanged if the sizes make no sense: any process may write to the socket.
    """
    if not 0 <= formed.rank < formed.size <= MOST_RANKS:
        return groups
    formed = replace(formed, id=formed.id[:_MAX_TEXT], who=formed.who[:_MAX_TEXT])
    key = (formed.id, formed.size)
    known = next((each for each in groups if (each.id, each.size) == key), None)
    if known is None:
        new = GroupReport(formed.id, formed.size, formed.who, (rank,), (formed.rank,))
        return tuple(sorted((new, *groups), key=lambda each: -each.size)[:MOST_GROUPS])
    if rank in known.ranks and (formed.rank in known.members or len(known.members) >= MOST_MEMBERS):
        return groups
    more = replace(known, ranks=_added(known.ranks, rank), members=_added(known.members, formed.rank))
    return tuple(more if each is known else each for each in groups)


def _added(numbers: Iterable[int], number: int) -> tuple[int, ...]:
    """The numbers with `number` among them, sorted, each once."""
    return tuple(sorted({*numbers, number}))


def is_nearer_to_cause(known: FromRank | None, new: FromRank) -> bool:
    """Whether error `new` of a rank is nearer to the cause of its exit than the one known so far."""
    if known is None:
        return True
    if new.launcher and known.child and new.signal is None and new.rank in (None, known.rank):
        return False  # the launcher's child has reported its exception itself: that says more than its exit
    return _priority(new) < _priority(known)


def with_previous_error(known: FromRank | None, new: FromRank, seconds: float) -> FromRank:
    """The rank's own error `new`, whose message also names the exception of a process that it started, if
    that was reported at most CHILD_SECONDS before. Else `new`.

    The script may fail because that process did: if the process blamed a peer, the message does so, too.
    """
    is_of_child = known is not None and known.child and not known.launcher
    if known is None or not is_of_child or _priority(new) != _OWN or seconds > CHILD_SECONDS:
        return new
    return replace(new, message=f"{new.message}, after {known.message} in a process that it started")


def _priority(error: FromRank) -> int:
    if error.launcher:
        return _LAUNCHER
    if not error.child:
        return _OWN
    return _CHILD if blames_no_peer(error) else _BLAMES_PEER


def blames_no_peer(error: FromRank) -> bool:
    """Whether the error is no consequence of a peer's end, such as a closed connection."""
    return not blames_a_peer(f"{error.fingerprint} {error.message}")


def may_explain(error: FromRank, exit: ProcessExit, seconds: float) -> bool:
    """Whether an error reported `seconds` ago may explain the exit: any of the rank's own, one of a child
    only for a recent exit by code, since a child's exception sends its parent no signal."""
    return not error.child or (exit.signal is None and seconds <= CHILD_SECONDS)


def exit_with_cause(
    exit: ProcessExit, error: FromRank, own_rank: int, ended_rank: int | None = None
) -> ProcessExit:
    """The exit of `own_rank` explained by `error`, which may name another rank that a launcher had started.

    If that error blames a peer, and `ended_rank` (a rank of the launcher) had reached its end before, then
    `ended_rank` is named instead: its end is what the others missed. Where the error says how a rank of the
    launcher exited, that code or signal replaces the launcher's own.
    """
    message, rank = error.message, error.rank
    if ended_rank is not None and _priority(error) == _BLAMES_PEER:
        failed_rank = own_rank if rank is None else rank
        message, rank = f"rank {ended_rank} had ended, then rank {failed_rank}: {message}", ended_rank
    exit = replace(
        exit,
        fingerprint=error.fingerprint,
        message=message,
        error_class=error.error_class,
        rank=rank if rank != own_rank else None,
    )
    started = error.launcher and (error.child or error.rank is not None)  # a rank, not a tool of the script
    if started and error.signal is not None:
        exit = replace(exit, code=None, signal=error.signal)
    elif started and error.code:
        exit = replace(exit, code=error.code)
    return replace(exit, fingerprint=exit.fingerprint or exit.how)


def with_shell_signal(exit: ProcessExit) -> ProcessExit:
    """The exit of a shell with a message that names the signal: a shell exits with 128 + N when signal N has
    killed its command. Unchanged if there is no such signal."""
    try:
        name = signal.Signals((exit.code or 0) - 128).name
    except ValueError:
        return exit
    return replace(exit, message=f"a process that the command started was killed by {name}")
