"""Of all that the processes of a rank report, the innermost cause counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ropeteam_trainer.agent.machine import childreports
from ropeteam_trainer.contract.local import FromRank, GroupFormed
from ropeteam_trainer.contract.messages import GroupReport
from ropeteam_trainer.contract.world import ProcessExit


def error(message: str, **more: object) -> FromRank:
    return FromRank(error_type="E", error_class="m.E", fingerprint=message, message=message, **more)  # type: ignore[arg-type]


OWN = error("ValueError: own (train.py:3)")
CHILD = error("ValueError: bad (train.py:5)", child=True, rank=3)
BLAMES = error("RuntimeError: Connection closed by peer (train.py:7)", child=True, rank=2)
LAUNCHER = FromRank(error_type="ChildFailedError", launcher=True, child=True, rank=1, signal=9)
BEST_FIRST = (OWN, CHILD, LAUNCHER, BLAMES)
FAILED = ProcessExit(1, None)


@pytest.mark.parametrize("order", tuple(itertools.permutations(BEST_FIRST)))
def test_the_innermost_cause_counts_in_any_order_of_reports(order: tuple[FromRank, ...]):
    known: FromRank | None = None
    for reports in order:
        known = reports if childreports.is_nearer_to_cause(known, reports) else known
    assert known is OWN


def test_of_two_alike_the_first_counts():
    assert not childreports.is_nearer_to_cause(CHILD, error("another", child=True))


def test_the_cause_of_a_childs_end_explains_no_other_end():
    assert childreports.may_explain(CHILD, FAILED, 30)
    assert not childreports.may_explain(CHILD, FAILED, 61), "too long ago"
    assert not childreports.may_explain(CHILD, ProcessExit(None, 9), 1)
    assert childreports.may_explain(OWN, ProcessExit(None, 9), 900)


def test_an_end_is_reported_by_its_cause():
    report = childreports.exit_with_cause(FAILED, CHILD, 2)
    assert (report.code, report.rank, report.message, report.error_class) == (1, 3, CHILD.message, "m.E")
    assert childreports.exit_with_cause(FAILED, OWN, 0).rank is None
    killed = childreports.exit_with_cause(FAILED, LAUNCHER, 0)
    assert (killed.code, killed.signal, killed.rank, killed.fingerprint) == (None, 9, 1, "SIGKILL")
    left = childreports.exit_with_cause(
        FAILED, FromRank(error_type="ChildFailedError", launcher=True, rank=1, code=3), 1
    )
    assert (left.code, left.signal, left.rank, left.fingerprint) == (3, None, None, "exit 3")


def test_a_tool_of_the_script_is_no_rank():
    make = error("CalledProcessError: make ended with 2 (x.py:3)", launcher=True, code=2)
    report = childreports.exit_with_cause(FAILED, make, 0)
    assert (report.code, report.message) == (1, make.message)
    assert childreports.exit_with_cause(FAILED, replace(make, child=True), 0).code == 2


def test_a_rank_that_had_ended_went_first():
    report = childreports.exit_with_cause(FAILED, BLAMES, 0, ended_rank=1)
    assert (report.rank, report.message) == (1, f"rank 1 had ended, then rank 2: {BLAMES.message}")
    own = error("RuntimeError: Connection reset by peer", child=True)
    assert childreports.exit_with_cause(FAILED, own, 0, ended_rank=1).message.startswith(
        "rank 1 had ended, then rank 0: Runtime"
    )
    assert childreports.exit_with_cause(FAILED, CHILD, 0, ended_rank=1).rank == 3, "an error of its own"


def test_a_shell_reports_which_signal_ended_its_command():
    assert (
        childreports.with_shell_signal(ProcessExit(137, None)).message
        == "a process that the command started was killed by SIGKILL"
    )
    assert childreports.with_shell_signal(FAILED) == FAILED
    assert childreports.with_shell_signal(ProcessExit(None, 9)) == ProcessExit(None, 9)


def test_processes_of_one_group_are_merged():
    groups: tuple[GroupReport, ...] = ()
    for number, rank, size, id in ((0, 0, 2, "a"), (1, 1, 2, "a"), (0, 0, 1, "b"), (0, 0, 4, "c")):
        groups = childreports.with_group(groups, number, GroupFormed(size, rank, id, "train.py"))
    assert [(each.id, each.size, each.ranks, each.members) for each in groups] == [
        ("c", 4, (0,), (0,)),
        ("a", 2, (0, 1), (0, 1)),
        ("b", 1, (0,), (0,)),
    ]
    for size, rank in ((2, 2), (2, -1), (1 << 30, 0)):
        assert childreports.with_group(groups, 0, GroupFormed(size, rank, "d")) == groups, "no such rank"
    for rank in range(childreports.MOST_MEMBERS + 9):
        groups = childreports.with_group(groups, 0, GroupFormed(1 << 20, rank, "e" * 200, "w" * 200))
    assert (len(groups[0].members), len(groups[0].id), len(groups[0].who)) == (
        childreports.MOST_MEMBERS,
        100,
        100,
    )
    for n in range(40):
        groups = childreports.with_group(groups, 0, GroupFormed(1, 0, str(n)))
    assert len(groups) == childreports.MOST_GROUPS
    assert groups[1].id == "c"
    assert groups[-1].id != "b", "of equal ones the newest stay"
    assert "39" in {each.id for each in groups}
