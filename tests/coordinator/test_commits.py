"""The lineage: one grant at a time, by the world that runs; no grant is forgotten, nothing stale is taken."""

from __future__ import annotations

from dataclasses import replace

from lab.coordinator.reports import SIGKILL
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import Shard, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, WorldId


def restores(film: Timeline) -> list[int]:
    plan = film.sent_orders(1).plan
    assert plan is not None
    return [ref.step for ref in plan.restore]


def restart(film: Timeline) -> None:
    film.exits(1, SIGKILL)
    film.applies_orders()
    film.later(61 if film.phase == "Forming" else 0)
    film.applies_orders()


def test_a_grant_that_was_not_confirmed_is_tried_first():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    film.saves(20)
    granted = film.sent_orders(0).grant
    assert granted is not None
    film.exits(0, SIGKILL)
    assert film.sent_orders(0).grant == granted, "its agent may finish it still"
    film.applies_orders(1)
    film.reports(0, store=None)
    film.desires()
    _offer(film)
    assert film.phase == "Running"
    assert film.sent_orders(0).grant is None, "no grant of an older world once the next one runs"
    assert restores(film) == [20, 10]


def test_what_was_restored_settles_an_unconfirmed_grant():
    film = _with_unconfirmed_grant()
    film.applies_orders()
    film.reports(0, restored=CheckpointRef(20, WorldId(1, 0, 1), "late"))
    assert film.lineage == [(20, "late"), (10, "digest-10")]
    restart(film)
    assert restores(film) == [20, 10]


def test_a_grant_that_was_never_written_is_dropped():
    film = _with_unconfirmed_grant()
    film.applies_orders()
    film.reports(0, restored=film.report.lineage[0])
    film.reports(0, committed=CheckpointRef(20, WorldId(1, 0, 1), "too-late"))
    assert film.lineage == [(10, "digest-10")]
    restart(film)
    assert restores(film) == [10]


def test_a_late_confirmation_counts_while_nobody_has_restored():
    film = _with_unconfirmed_grant()
    film.reports(0, committed=CheckpointRef(20, WorldId(1, 0, 1), "late"))
    assert film.lineage == [(20, "late"), (10, "digest-10")]


def test_the_digest_is_needed_to_count_as_written():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.reports(0, committed=CheckpointRef(10, film.world_id))
    assert film.lineage == []


def test_checkpoints_that_did_not_verify_leave_the_lineage():
    film = Timeline(feature_level=2).up(step=10)
    for step in (10, 20, 30):
        film.reaches(step)
        film.saves(step)
        film.applies_orders()
    restart(film)
    film.reports(0, restored=CheckpointRef(10, WorldId(1, 0, 1), "digest-10"))
    assert film.lineage == [(10, "digest-10")]


def test_a_checkpoint_named_in_status_is_reported_with_its_run():
    """Status does not name the run."""
    film, before = Timeline(feature_level=2), WorldId(7, 3, 9)
    film.desires(lineage=(CheckpointRef(20, before, "b"), CheckpointRef(10, before, "a")))
    film.up()
    film.reports(0, restored=CheckpointRef(10, before, "a", "run"))
    (reported,) = film.report.lineage
    assert (reported.step, reported.run) == (10, "run")


def test_an_older_ancestor_than_we_know_becomes_the_lineage():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    restart(film)
    film.reports(0, restored=CheckpointRef(5, WorldId(1, 0, 1), "grandparent"))
    assert film.lineage == [(5, "grandparent")]


def test_a_new_job_adopts_what_its_first_world_went_on_from():
    film = Timeline(feature_level=2).up()
    foreign = CheckpointRef(100, WorldId(7, 3, 9), "another-job")
    film.reports(0, restored=foreign)
    assert film.lineage == [(100, "another-job")]
    film.reaches(110, base=100)
    film.saves(110)
    grant = film.sent_orders(0).grant
    assert grant is not None
    assert grant.parent == foreign
    film.applies_orders()
    assert film.lineage == [(110, "digest-110"), (100, "another-job")]


def test_only_the_agent_of_rank_0_reports_the_restored_checkpoint():
    film = Timeline(feature_level=2).up()
    film.reports(1, restored=CheckpointRef(100, WorldId(1, 0, 1), "x"))
    assert film.lineage == []


def test_a_world_that_began_from_nothing_has_no_past():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    restart(film)
    film.reaches(1, base=0)
    assert film.lineage == []
    assert film.incident.steps_lost == 10


def test_after_a_restore_of_etcd_what_was_left_does_not_come_back():
    """Status names 10 and 20; 20 was left long ago, and what is restored descends from 10."""
    left, root = CheckpointRef(20, WorldId(1, 0, 1), "left"), CheckpointRef(10, WorldId(1, 0, 1), "root")
    film = Timeline(feature_level=2)
    film.desires(lineage=(left, root))
    film.up()
    film.reports(0, restored=CheckpointRef(40, WorldId(1, 0, 3), "new"), ancestors=(root,))
    assert film.lineage == [(40, "new"), (10, "root")]


def test_only_so_many_are_retained():
    film = Timeline(feature_level=2, keep=2).up()
    for step in (10, 20, 30):
        film.reaches(step)
        film.saves(step)
        film.applies_orders()
    assert film.lineage == [(30, "digest-30"), (20, "digest-20")]
    assert film.report.checkpoint_unix_ms == int(film.now * 1000)


def test_the_newest_complete_step_is_granted():
    film = Timeline(feature_level=2).up(step=30)
    film.saves(10)
    film.saves(20, 0)
    film.saves(30, 0)
    grant = film.sent_orders(0).grant
    assert grant is not None
    assert grant.ref.step == 10
    film.saves(20, 1)
    film.saves(30, 1)
    assert film.sent_orders(0).grant == grant, "one at a time"
    film.applies_orders()
    assert film.lineage == [(30, "digest-30"), (10, "digest-10")]


def test_shards_of_other_worlds_or_other_ranks_do_not_count():
    film = Timeline(feature_level=2).up(step=10)
    mine = Shard(0, film.world_id, 10, ())
    film.reports(0, shards=(mine, replace(mine, rank=1), replace(mine, rank=0, world_id=WorldId(1, 0, 9))))
    assert film.sent_orders(0).grant is None
    film.reports(1, shards=(replace(mine, rank=1, world_id=WorldId(1, 0, 9)),))
    assert film.sent_orders(0).grant is None
    film.reports(1, shards=(replace(mine, rank=1),))
    assert film.sent_orders(0).grant is not None


def test_a_step_that_is_committed_is_not_granted_again():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    shards = film.agents[0].shards
    film.applies_orders()
    film.reports(0, shards=shards)
    film.saves(10, 1)
    assert film.sent_orders(0).grant is None


def test_an_older_grant_of_the_agents_is_known_after_a_boot_but_never_a_committed_one():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    film.reports(0, granted=CheckpointRef(10, film.world_id))
    assert film.state.pending is None
    film.reports(0, granted=CheckpointRef(20, film.world_id))
    assert film.state.pending == CheckpointRef(20, film.world_id)


def _with_unconfirmed_grant() -> Timeline:
    """Step 10 committed, step 20 granted but not confirmed, and the world restarted."""
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    film.saves(20)
    assert film.sent_orders(0).grant is not None
    film.exits(0, SIGKILL)
    film.applies_orders(1)
    _offer(film)
    assert film.phase == "Running"
    return film


def _offer(film: Timeline) -> None:
    """The agent of slot 0 offers the store, without carrying out the grant."""
    world_id = film.sent_orders(0).host_store
    assert world_id is not None
    film.reports(0, store=StoreOffer(world_id, "10.0.0.1", 1))
