"""Choice of one error, of several of a rank and its processes, as the reason of its end."""

from __future__ import annotations

from ropeteam_trainer.agent.machine import childreports
from ropeteam_trainer.contract.local import FromRank

PEER = FromRank(error_type="E", message="E: Connection closed by peer", rank=1, child=True)
CHILD = FromRank(error_type="ValueError", message="ValueError: a lie (x.py:1)", rank=1, child=True)
OWN = FromRank(error_type="RuntimeError", message="RuntimeError: it failed (y.py:2)")


def launcher(rank: int | None, code: int | None = 1, signal: int | None = None) -> FromRank:
    return FromRank(
        error_type="ChildFailedError", launcher=True, child=True, rank=rank, code=code, signal=signal
    )


def test_a_launcher_knows_no_more_of_a_process_that_has_reported_itself():
    assert not childreports.is_nearer_to_cause(PEER, launcher(1))
    assert not childreports.is_nearer_to_cause(PEER, launcher(None))
    assert not childreports.is_nearer_to_cause(CHILD, launcher(1))


def test_a_launcher_knows_more_of_a_process_that_could_not_report():
    assert childreports.is_nearer_to_cause(PEER, launcher(0, code=4))
    assert childreports.is_nearer_to_cause(PEER, launcher(1, code=None, signal=9))
    assert childreports.is_nearer_to_cause(None, launcher(1))


def test_a_script_that_fails_after_its_process_names_both():
    text = "RuntimeError: it failed (y.py:2), after ValueError: a lie (x.py:1) in a process that it started"
    assert childreports.with_previous_error(CHILD, OWN, 1.0).message == text


def test_a_script_that_fails_after_a_process_that_missed_a_peer_is_a_consequence_too():
    assert not childreports.blames_no_peer(childreports.with_previous_error(PEER, OWN, 1.0))


def test_what_had_failed_long_before_is_no_reason():
    assert childreports.with_previous_error(CHILD, OWN, childreports.CHILD_SECONDS + 1) is OWN
    assert childreports.with_previous_error(OWN, OWN, 1.0) is OWN
    assert childreports.with_previous_error(None, OWN, 1.0) is OWN
    assert childreports.with_previous_error(CHILD, launcher(1), 1.0).message == ""
    assert childreports.with_previous_error(launcher(0), OWN, 1.0) is OWN
