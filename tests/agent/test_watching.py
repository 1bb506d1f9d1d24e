"""The machine: what ranks say, hang clocks and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.agent.life import Life, a_plan, a_ref, world_id

from ropeteam_trainer.agent.machine.effects import (
    KillRanks,
    Prune,
    SendToRank,
    WriteManifest,
)
from ropeteam_trainer.agent.machine.events import (
    LinkUp,
    ManifestFailed,
    ManifestWritten,
    RankMessage,
)
from ropeteam_trainer.agent.machine.report import urgent_part
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.local import FromRank, GroupFormed, ToRank
from ropeteam_trainer.contract.messages import Grant, Progress, RankPhase, Shard
from ropeteam_trainer.contract.world import ProcessExit, ShardFile

FILES = (ShardFile("state.pt", 3, "abc"),)
LIE: dict[str, Any] = {"error_type": "E", "fingerprint": "f", "message": "ValueError: a lie", "child": True}


def test_phases_of_a_rank():
    life = Life().receives(LinkUp()).ordered(plan=a_plan())
    assert life.report.ranks[0].phase is RankPhase.STARTING
    life = Life().running()
    assert life.report.ranks[0].phase is RankPhase.RUNNING, (
        "feature level 0: being started is all there is to know"
    )
    life.rank_sends(0, hello_pid=7, feature_level=2)
    assert life.report.ranks[0].phase is RankPhase.STARTING
    assert life.report.feature_level == 2
    life.heartbeats(0, 4)
    assert life.report.ranks[0].phase is RankPhase.RUNNING
    life.rank_sends(0, paused=5)
    assert (life.report.ranks[0].phase, life.report.ranks[0].step) == (RankPhase.PAUSED, 5)
    life.heartbeats(0, 6)
    assert life.report.ranks[0].phase is RankPhase.RUNNING, "it went on"
    life.rank_sends(0, drained=6)
    assert life.report.ranks[0].phase is RankPhase.DRAINED
    assert life.died(0).report.ranks[0].phase is RankPhase.EXITED


def test_progress_is_that_of_the_lowest_rank():
    life = Life().running().rank_sends(0, total_steps=100, loss="2.5").rank_sends(1, total_steps=7, loss="9")
    life.heartbeats(0, 1, samples=10.0).wait(2)
    life.heartbeats(0, 2, samples=30.0)
    assert life.report.progress == Progress(2, 100, "2.5", 10.0, "train")
    assert Life().report.progress == Progress()


def test_only_what_cannot_wait_is_urgent():
    life = Life().running().rank_sends(0, feature_level=1).heartbeats(0, 1)
    before = urgent_part(life.report)
    assert urgent_part(life.wait(1).heartbeats(0, 2).rank_sends(0, loss="1").report) == before
    assert urgent_part(life.rank_sends(0, drained=2).report) != before
    before = urgent_part(life.report)
    assert urgent_part(life.ordered().report) != before, (
        "the coordinator waits to hear that orders were applied"
    )


def test_a_rank_that_makes_no_step_is_killed_as_hung():
    life = Life().running().rank_sends(0, feature_level=1).heartbeats(0, 3).wait(5)
    assert life.did_no(KillRanks)
    assert life.wait(0.1).did_a(KillRanks) == KillRanks(world_id(), (0,))
    assert life.wait(1).did == ()
    exit = life.died(0).report.ranks[0].exit
    assert (exit.hung, exit.killed, exit.fingerprint) == (True, False, "hang")
    why = "no step for 5 s after step 3, in phase train (limit 5 s, spec.recovery.hangSeconds)"
    assert exit.message == why


def test_a_rank_that_ends_with_0_before_it_is_killed_as_hung_has_ended_by_itself():
    life = Life().running().rank_sends(0, feature_level=1).heartbeats(0, 3).wait(5.1)
    assert life.did_a(KillRanks)
    exit = life.died(0, exit=ProcessExit(0, None)).report.ranks[0].exit
    assert (exit.hung, exit.clean) == (False, True)


def test_a_rank_that_serves_makes_no_steps_but_sends_heartbeats():
    life = Life().running().heartbeats(0, 3, phase="serve")
    for _ in range(9):
        life.wait(4).heartbeats(0, 3, phase="serve")
        assert life.did_no(KillRanks)
    assert life.wait(5.1).did_a(KillRanks) == KillRanks(world_id(), (0,))


@pytest.mark.parametrize("changes", [{"phase": "eval"}, {"phase": "paused"}, {"reached_end": True}])
def test_the_hang_clock_is_paused_while_no_step_is_due(changes):
    assert Life().running().heartbeats(0, 3).heartbeats(0, 3, **changes).wait(1000).did == ()


def test_the_hang_clock_is_paused_while_a_pause_is_ordered():
    life = Life().running().heartbeats(0, 3).ordered(pause=world_id()).wait(1000)
    assert life.did_no(KillRanks)
    life = Life().running().heartbeats(0, 3).rank_sends(0, paused=3).wait(1000)
    assert life.did_no(KillRanks)


def test_without_hang_seconds_the_limit_is_learned_and_never_below_a_minute():
    def rank_with_steps_of(seconds: float) -> Life:
        life = Life(timeouts=Timeouts()).running()
        for step in range(1, 30):
            life.wait(seconds).heartbeats(0, step)
        return life

    assert rank_with_steps_of(0.1).wait(59).did_no(KillRanks)
    assert rank_with_steps_of(0.1).wait(61).did_a(KillRanks)
    assert rank_with_steps_of(20).wait(199).did_no(KillRanks)
    assert rank_with_steps_of(20).wait(201).did_a(KillRanks)
    alone = Life(timeouts=Timeouts()).running().heartbeats(0, 1)
    assert alone.wait(61).did_a(KillRanks), "one step gives no step time"


def test_a_rate_needs_time_to_pass():
    life = Life().running().heartbeats(0, 1, samples=1.0).heartbeats(0, 2, samples=9.0)
    assert life.report.progress.samples_per_second == 0.0


def test_a_first_step_that_does_not_come():
    life = Life(timeouts=Timeouts(start=600)).running().rank_sends(0, hello_pid=1).wait(600.1)
    assert life.did_a(KillRanks).ranks == (0,)
    exit = life.died(0).report.ranks[0].exit
    assert exit.late_start
    assert exit.message == "no first step within spec.recovery.startSeconds (600 s)"
    assert Life(timeouts=Timeouts(start=600)).running().wait(5000).did == (), (
        "feature level 0 makes no steps we see"
    )


def test_a_restore_may_take_as_long_as_bytes_are_read():
    life = Life(timeouts=Timeouts(start=600)).running().rank_sends(0, hello_pid=1)
    for _ in range(10):
        life.wait(500).heartbeats(0, 0, phase="restore")
        assert life.did_no(KillRanks)
    life.wait(600.1)
    assert life.did_a(KillRanks).ranks == (0,), "no byte for startSeconds"


def test_the_hang_clock_of_a_worker_that_waits_for_servers_runs_from_its_start():
    life = Life(timeouts=Timeouts(start=600)).running().rank_sends(0, hello_pid=1)
    life.wait(500).heartbeats(0, 0, phase="serve").wait(100.1)
    assert life.did_a(KillRanks).ranks == (0,)


def test_heartbeats_without_a_hello_are_of_an_unchanged_script_with_a_hang_clock():
    life = Life(timeouts=Timeouts(start=10, hang=5)).running().rank_sends(0, total_steps=9).wait(11)
    assert life.did_no(KillRanks), "nobody knows how long it prepares"
    life.heartbeats(0, 3).ordered(pause=world_id())
    assert life.report.feature_level == 0
    assert life.report.progress.total_steps == 9
    assert life.did_no(SendToRank), "it would not listen"
    life.ordered(pause=None).wait(5.1)
    assert life.did_a(KillRanks) == KillRanks(world_id(), (0,))


def test_the_library_once_seen_is_expected_again():
    life = Life().running().rank_sends(0, feature_level=1).ordered(plan=None).died(0, 1).running(2).wait(601)
    assert life.did_a(KillRanks).ranks == (0, 1)


@pytest.mark.parametrize(
    ("exit", "fingerprint", "message"),
    [
        (ProcessExit(None, 9), "SIGKILL", ""),
        (ProcessExit(None, 40), "signal 40", ""),
        (ProcessExit(3, None), "exit 3", ""),
        (ProcessExit(0, None), "", ""),
        (ProcessExit(127, None, fingerprint="cannot start: x", message="m"), "cannot start: x", "m"),
    ],
)
def test_how_an_exit_is_explained(exit, fingerprint, message):
    reported = Life().running().died(0, exit=exit).report.ranks[0].exit
    assert (reported.fingerprint, reported.message, reported.killed) == (fingerprint, message, False)


def test_the_last_messages_of_a_rank_explain_its_exit():
    life = Life().running().rank_sends(0, error_type="ValueError", fingerprint="f", message="ValueError: bad")
    reported = life.died(0, exit=ProcessExit(None, 6)).report.ranks[0].exit
    assert (reported.fingerprint, reported.message) == ("f", "ValueError: bad")
    life = Life().running().rank_sends(0, error_type="ValueError", fingerprint="f", message="ValueError: bad")
    assert life.died(0, exit=ProcessExit(None, 9, oom=True)).report.ranks[0].exit.fingerprint == "SIGKILL"


def test_a_rank_that_was_failing_when_it_was_to_be_ended_is_reported_by_its_error():
    reported = Life().running().rank_sends(0, **LIE).ordered(plan=None).died(0).report.ranks[0].exit
    assert (reported.code, reported.signal, reported.killed, reported.message) == (
        1,
        None,
        False,
        "ValueError: a lie",
    )


def test_an_error_after_the_order_to_end_or_for_a_peer_is_a_consequence():
    late = Life().running().ordered(plan=None).rank_sends(0, **LIE).died(0)
    long_ago = Life().running().rank_sends(0, **LIE).wait(61).ordered(plan=None).died(0)
    missed = Life().running().rank_sends(0, **(LIE | {"message": "E: Connection closed by peer"}))
    for life in (late, long_ago, missed.ordered(plan=None).died(0)):
        reported = life.report.ranks[0].exit
        assert (reported.signal, reported.killed) == (9, True)


def test_the_end_of_the_script_is_remembered():
    life = Life().running().heartbeats(0, 9, reached_end=True).died(0, exit=ProcessExit(None, 6))
    assert life.report.ranks[0].exit.reached_end


def test_a_pause_is_sent_to_ranks_that_listen_and_only_when_it_changes():
    life = Life().running().rank_sends(1, hello_pid=5).ordered(pause=world_id())
    assert life.did == (SendToRank(world_id(), 1, ToRank(pause=True)),)
    assert life.ordered().did == ()
    assert life.ordered(stop_at=8).did == (SendToRank(world_id(), 1, ToRank(pause=True, stop_at=8)),)
    assert life.ordered(pause=world_id(9)).did == (SendToRank(world_id(), 1, ToRank()),), "another world's"


def test_a_rank_that_acknowledges_its_pause_is_reported_to_have_received_it():
    life = Life().running().rank_sends(0, hello_pid=4, acknowledges_pause=True).rank_sends(1, hello_pid=5)

    def received() -> list[bool | None]:
        return [rank.pause_received for rank in life.report.ranks]

    assert received() == [False, None], "the library of rank 1 is of an earlier release"
    assert life.heartbeats(0, 3).ordered(pause=world_id()).report.ranks[0].pause_received is False
    before = urgent_part(life.report)
    life.rank_sends(0, pause_received=6)
    assert received() == [True, None]
    assert urgent_part(life.report) != before, "the coordinator waits for it"
    assert life.report.ranks[0].step == 6, "its heartbeat may not have been read yet"
    assert life.ordered(stop_at=7).report.ranks[0].pause_received
    life.ordered(pause=None, stop_at=None).rank_sends(0, pause_received=6)
    assert received() == [False, None], "the pause is over, and this comes late"
    assert life.ordered(pause=world_id()).report.ranks[0].pause_received is False, "another pause"


def test_a_rank_stops_where_it_was_ordered_to_whatever_a_coordinator_forgets():
    life = Life().running().rank_sends(0, hello_pid=4).ordered(pause=world_id(), stop_at=8)
    assert life.ordered(boot=1, stop_at=None).did == (), "it may stop there already, and save"
    assert [rank.stop_at for rank in life.report.ranks] == [8, None], "rank 1 has no library yet"
    assert life.ordered(pause=None).did == (SendToRank(world_id(), 0, ToRank()),)
    assert life.ordered(pause=world_id()).did == (SendToRank(world_id(), 0, ToRank(pause=True)),)
    assert life.report.ranks[0].stop_at is None


def a_grant(step: int = 10, n: int = 1) -> Grant:
    return Grant(a_ref(step, n, ""), 4, FILES, None)


def test_shards_are_reported_until_they_are_committed():
    life = Life().running()
    life.rank_sends(0, shard_step=10, shard_files=FILES).rank_sends(1, shard_step=10).rank_sends(
        1, shard_step=20
    )
    assert life.rank_sends(1, shard_step=20).report.shards == (
        Shard(0, world_id(), 10, FILES),
        Shard(1, world_id(), 10, ()),
        Shard(1, world_id(), 20, ()),
    )
    assert life.ordered(lineage=(a_ref(10),)).report.shards == (Shard(1, world_id(), 20, ()),)


def test_a_grant_is_written_once_and_its_step_sent_to_the_ranks():
    life = Life().running().rank_sends(0, hello_pid=1).ordered(grant=a_grant())
    assert life.did_a(WriteManifest).grant == a_grant()
    assert life.report.granted == a_ref(10, digest="")
    assert life.ordered().did == (), "it is being written"
    life.receives(ManifestWritten(a_ref(10)))
    assert life.did == (SendToRank(world_id(), 0, ToRank(committed_step=10)),)
    assert life.report.committed == a_ref(10)
    assert life.ordered().did == ()
    assert life.ordered(grant=a_grant(20)).did_a(WriteManifest)


def test_a_manifest_that_cannot_be_written_is_tried_again():
    life = Life().running().ordered(grant=a_grant()).receives(ManifestFailed(a_ref(10)))
    assert life.wait(0.9).did == ()
    assert life.wait(0.2).did_a(WriteManifest)


def test_a_coordinator_that_takes_over_need_not_know_what_was_granted():
    """The successor cannot grant it again once a shard is gone with its pod."""
    life = Life().running().ordered(grant=a_grant()).receives(ManifestFailed(a_ref(10)))
    life.ordered(term=2, grant=None)
    assert life.report.granted == a_ref(10, digest="")
    assert life.wait(1.1).did_a(WriteManifest).grant == a_grant()
    life.receives(ManifestWritten(a_ref(10)))
    assert life.wait(2.0).did_no(WriteManifest)


def test_what_is_granted_next_is_written_in_place_of_what_could_not_be():
    life = Life().running().ordered(grant=a_grant()).receives(ManifestFailed(a_ref(10)))
    life.ordered(term=2, grant=a_grant(20))
    assert life.wait(1.1).did_a(WriteManifest).grant == a_grant(20)


def test_grants_of_another_world_or_for_another_pod_are_not_written():
    assert Life().running().ordered(grant=a_grant(n=2)).did == ()
    assert Life(slot=1).running().ordered(grant=a_grant()).did == ()
    assert Life(checkpoint=None).running().ordered(grant=a_grant()).did == ()
    assert Life().receives(LinkUp()).ordered(grant=a_grant()).did == ()


def test_only_the_agent_of_rank_zero_in_the_current_world_prunes_and_once_per_lineage():
    lineage = (a_ref(20), a_ref(10))
    life = Life().running().ordered(lineage=lineage)
    assert [effect.keep for effect in life.did] == [lineage]
    assert life.ordered().did == ()
    assert life.ordered(plan=None, lineage=(a_ref(30),)).did_no(Prune)
    assert Life(slot=1).running().ordered(lineage=lineage).did == ()


def test_what_a_world_went_on_from_is_reported():
    assert Life().running().rank_sends(0, restored=a_ref(5)).report.restored == a_ref(5)
    assert Life().running().rank_sends(1, restored=a_ref(5)).report.restored == a_ref(5)


def test_groups_and_ends_of_what_a_rank_started_are_remembered():
    life = Life().running().rank_sends(0, joins=True)
    assert life.report.ranks[0].joins
    life = life.rank_sends(0, group=GroupFormed(2, 0, "a", "train.py"), child=True)
    (reported,) = life.report.groups
    assert (reported.id, reported.size, reported.ranks, reported.members) == ("a", 2, (0,), (0,))
    assert life.report.reports_groups
    ended = FromRank(ended=True, rank=5, child=True)
    lost = FromRank(error_type="E", message="E: Connection closed by peer", rank=6, child=True)
    for message in (ended, replace(ended, rank=7), lost):
        life = life.receives(RankMessage(world_id(1), 0, message))
    reported_exit = life.died(0, exit=ProcessExit(1, None)).report.ranks[0].exit
    assert (reported_exit.rank, reported_exit.message[:33]) == (5, "rank 5 had ended, then rank 6: E:")
