"""A plan that keeps ranks: the agent takes it for theirs, and touches none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.agent.life import Life, a_ref, a_served_plan, an_identity, killed, world_id

from ropeteam_trainer.agent.machine.effects import KillRanks, Prune, SendToRank, StartRanks, WriteManifest
from ropeteam_trainer.agent.machine.environment import rank_environment
from ropeteam_trainer.agent.machine.events import RanksStarted
from ropeteam_trainer.agent.processes.memory import create_memory_folder, empty_folder
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.messages import Grant, RankPhase
from ropeteam_trainer.contract.world import ProcessExit, ShardFile


def a_life(slot: int = 0) -> Life:
    """One worker, one server; world 1 runs."""
    life = Life(slot, workers=1, processes=1, servers=1)
    plan = a_served_plan(1)
    return life.ordered(plan=plan).receives(RanksStarted(plan.world_id))


def test_ranks_live_on_in_the_next_world():
    life = a_life().rank_sends(0, hello_pid=1, feature_level=3).heartbeats(0, step=7)
    plan = a_served_plan(2, started_in=1)
    life.ordered(plan=plan)
    assert life.did_no(KillRanks)
    assert life.did_no(StartRanks)
    assert life.report.plan == plan
    (rank,) = life.report.ranks
    assert (rank.phase, rank.step, rank.steps_here) == (RankPhase.RUNNING, 7, 7)


def test_the_same_orders_again_change_nothing():
    life = a_life().ordered(plan=a_served_plan(2, started_in=1))
    before = life.state.world
    life.ordered().ordered()
    assert (life.state.world, life.did) == (before, ())


def test_a_plan_between_may_have_been_missed():
    life = a_life().ordered(plan=a_served_plan(4, started_in=1))
    assert life.report.plan.world_id == world_id(4)
    assert not life.report.stopped


def test_reports_of_ranks_under_their_own_world_count():
    life = a_life().rank_sends(0, hello_pid=1).ordered(plan=a_served_plan(2, started_in=1))
    assert life.heartbeats(0, step=9).report.ranks[0].step == 9
    life.rank_sends(0, shard_step=9, shard_files=(ShardFile("rank-0.pt", 1, "0"),))
    assert [shard.world_id for shard in life.report.shards] == [world_id(1)]
    life.died(0)
    assert life.report.stopped
    assert life.report.ranks[0].exit == replace(killed(), fingerprint="SIGKILL")


def test_a_preserved_rank_is_ended_under_its_own_world():
    life = a_life().ordered(plan=a_served_plan(2, started_in=1)).ordered(plan=None)
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0,))
    life.died(0).ordered(plan=a_served_plan(3))
    assert life.did_a(StartRanks).plan.world_id == world_id(3)


def test_a_rank_that_died_meanwhile_is_reported_in_the_new_world():
    life = a_life().died(0).ordered(plan=a_served_plan(2, started_in=1))
    assert life.did_no(StartRanks)
    assert life.report.plan.world_id == world_id(2)
    assert life.report.ranks[0].phase is RankPhase.EXITED


def test_a_rank_that_is_being_killed_is_not_spared():
    life = a_life().ordered(plan=None).ordered(plan=a_served_plan(2, started_in=1))
    assert not life.report.stopped
    life.died(0)
    assert life.report.plan.world_id == world_id(2)
    assert life.report.ranks[0].exit.killed


def test_ranks_of_another_world_end_and_are_missing():
    life = a_life().ordered(plan=a_served_plan(3, started_in=2))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0,))
    life.died(0)
    assert life.did_no(StartRanks), "what it should keep is not here"
    assert life.report.plan.world_id == world_id(3)
    assert life.report.ranks[0].phase is RankPhase.EXITED
    assert "but its process is not in the pod" in life.report.ranks[0].exit.message


def test_preserved_ranks_receive_the_addresses_of_servers():
    life = a_life().rank_sends(0, hello_pid=1, feature_level=3)
    assert life.did_no(SendToRank), "its own plan holds"
    life.ordered(plan=a_served_plan(2, started_in=1))
    sent = life.did_a(SendToRank)
    assert (sent.world_id, sent.message.servers) == (
        world_id(1),
        (f"10.0.0.1:{config.PARAMETER_SERVER_PORT}",),
    )
    assert sent.message.live_world is None, "they need no process group"


def ended(
    slot: int = 0, servers: int = 1, left: bool = False, hello_pid: int | None = None, **how: Any
) -> ProcessExit:
    """How the rank of this slot exited with 0."""
    life = Life(slot, workers=2 - servers, processes=1, servers=servers)
    plan = a_served_plan()
    life.ordered(plan=plan).receives(RanksStarted(plan.world_id))
    if hello_pid:
        life.rank_sends(slot, hello_pid=hello_pid)
    if left:
        life.rank_sends(slot, left=True)
    exit = life.died(slot, exit=ProcessExit(0, None, **how)).report.ranks[0].exit
    assert exit
    return exit


def test_a_worker_that_ends_while_its_servers_wait_for_it_has_not_ended_well():
    assert not ended().clean
    assert "parameter servers wait" in ended().message
    assert ended(reached_end=True).clean
    assert ended(left=True).clean
    assert ended(servers=0).clean
    assert not ended(killed=True).early, "we ended it ourselves"


def test_a_server_that_ends_while_workers_need_it_has_not_ended_well():
    assert not ended(slot=1).clean
    assert "while workers need it" in ended(slot=1).message
    assert ended(slot=1, reached_end=True).clean
    assert not ended(slot=1, hello_pid=1, reached_end=True).clean, "it would say that its workers have left"
    assert ended(slot=1, hello_pid=1, left=True).clean


def test_while_a_server_is_missing_only_who_does_not_wait_for_it_is_called_hung():
    waits = a_life().rank_sends(0, hello_pid=1, feature_level=3).heartbeats(0, step=7)
    for _ in range(30):
        waits.heartbeats(0, step=7, phase="serve").wait(1)
        assert waits.did_no(KillRanks)
    hangs = a_life().rank_sends(0, hello_pid=1, feature_level=3).heartbeats(0, step=7)
    assert hangs.wait(6).did_a(KillRanks).ranks == (0,)


def test_a_first_step_is_waited_for_no_longer_than_ever():
    life = a_life().rank_sends(0, hello_pid=1, feature_level=3).wait(601)
    assert life.did_a(KillRanks).ranks == (0,)


# ---- checkpoints


def a_chief() -> Life:
    """Of slot 1; kept from world 1 for world 2."""
    life = a_life(slot=1).rank_sends(1, hello_pid=1, feature_level=3)
    plan = a_served_plan(2, slot=1)
    preserved = replace(plan.members[1], started_in=world_id(1))
    return life.ordered(plan=replace(plan, members=(plan.members[0], preserved)))


def test_the_chiefs_agent_writes_under_the_world_that_started_it():
    grant = Grant(a_ref(5, 1, ""), 2, (), None)
    assert a_chief().ordered(grant=grant).did_a(WriteManifest).grant == grant
    assert a_chief().ordered(grant=replace(grant, ref=a_ref(5, 2, ""))).did_no(WriteManifest)
    assert a_life().ordered(grant=grant).did_no(WriteManifest), "rank 0 does not lead here"


def test_the_chiefs_agent_prunes_and_knows_what_is_committed():
    life = a_chief().rank_sends(1, shard_step=5, shard_files=(ShardFile("x", 1, "0"),))
    life.ordered(lineage=(a_ref(5, 1),))
    assert life.did_a(Prune).keep == (a_ref(5, 1),)
    assert life.report.shards == ()
    assert life.did_a(SendToRank).message.committed_step == 5
    assert a_life().ordered(lineage=(a_ref(5, 1),)).did_no(Prune)


# ---- what ranks find


@pytest.mark.parametrize(
    ("rank", "slot", "role"), [(0, 0, ("worker", "0", "1")), (1, 1, ("server", "0", "1"))]
)
def test_roles_are_counted_apart(rank: int, slot: int, role: tuple[str, str, str]):
    settings, plan = a_life(slot).state.config, a_served_plan(2, started_in=1)
    found = rank_environment({}, settings, plan, an_identity(slot), rank)
    assert (found["ROLE_NAME"], found["ROLE_RANK"], found["ROLE_WORLD_SIZE"]) == role
    assert (found["RANK"], found["WORLD_SIZE"]) == (str(rank), "2")
    sent = codec.decode(RankPlan, found[config.RANK_PLAN])
    assert (sent.servers, sent.line) == (("10.0.0.1:29404",), "1.0.1")
    assert len(sent.secret) == 64
    other = rank_environment({}, settings, plan, replace(an_identity(slot), token=b"u"), rank)
    assert codec.decode(RankPlan, other[config.RANK_PLAN]).secret != sent.secret


def test_memory_is_a_folder_of_its_own_and_can_be_emptied(tmp_path):
    folder = create_memory_folder(f"test-{tmp_path.name}", tmp_path)
    try:
        assert str(folder) == config.memory_folder(f"test-{tmp_path.name}")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "state").mkdir()
        (folder / "state" / "x").write_text("x")
        (folder / "y").symlink_to(tmp_path)
        empty_folder(folder)
        assert not list(folder.iterdir())
        assert tmp_path.exists()
    finally:
        folder.rmdir()


def test_without_memory_there_is_a_folder_on_disk(tmp_path, capfd):
    folder = create_memory_folder("no/such/place", tmp_path)
    assert folder == tmp_path / "memory"
    assert "on disk" in capfd.readouterr().err + capfd.readouterr().out
