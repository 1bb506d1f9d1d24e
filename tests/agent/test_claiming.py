"""Before a world begins, the agent of its leading rank claims the folder of checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.agent.life import Life, a_plan, a_ref, world_id

from ropeteam_trainer.agent.machine.apply import RETRY_SECONDS
from ropeteam_trainer.agent.machine.effects import ClaimRun, KillRanks, Prune, StartRanks, WriteManifest
from ropeteam_trainer.agent.machine.events import (
    ClaimFailed,
    LinkUp,
    ManifestWritten,
    ProblemFound,
    RunSuperseded,
)
from ropeteam_trainer.agent.machine.state import DISK_SECONDS
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.messages import Grant, Problem
from ropeteam_trainer.contract.world import FailReason, WorldId


def a_life(slot: int = 0, **settings: Any) -> Life:
    """Linked, on a disk that answers when a test says so."""
    life = Life(slot, **settings)
    life.disk_answers = False
    return life.receives(LinkUp())


def test_ranks_start_when_the_run_is_claimed_and_restore_what_was_found_then():
    life = a_life().ordered(plan=a_plan(restore=(a_ref(10),)))
    assert life.did_a(ClaimRun).plan.world_id == world_id(1)
    assert life.wait(1).did == (), "the disk takes its time"
    assert life.claimed(a_plan(), a_ref(20), a_ref(10)).did_a(StartRanks).restore == (a_ref(20), a_ref(10))


def test_only_who_writes_manifests_claims():
    plan = a_plan(restore=(a_ref(10),))
    for life in (a_life(1), a_life(checkpoint=None)):
        assert life.ordered(plan=plan).did_a(StartRanks).restore == (a_ref(10),)


def test_a_disk_that_hangs_is_reported_after_a_minute():
    life = a_life().ordered(plan=a_plan())
    assert life.wait(DISK_SECONDS - 1).report.pending_disk_request == ""
    assert life.wait(1).report.pending_disk_request == "the claim of world 1.0.1"
    life.claimed(a_plan()).ordered(grant=Grant(a_ref(10), 4, (), None))
    assert life.report.pending_disk_request == ""
    assert life.did_a(WriteManifest)
    assert life.wait(DISK_SECONDS).report.pending_disk_request == "the manifest of step 10"
    assert life.receives(ManifestWritten(a_ref(10))).report.pending_disk_request == ""


def test_a_claim_that_fails_is_tried_again():
    life = a_life().ordered(plan=a_plan()).receives(ClaimFailed(world_id(1)))
    assert life.did == ()
    assert life.wait(1.1).did_a(ClaimRun)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "hangs"])
def test_a_folder_that_cannot_be_claimed_for_long_requests_another_pod(fails: bool):
    """Before startSeconds end the ranks that wait for this one."""
    life = a_life(timeouts=Timeouts(start=60)).ordered(plan=a_plan())
    for _ in range(30):
        life.receives(*[ClaimFailed(world_id(1))] * fails).wait(1)
    assert life.report.problem is None
    life.wait(0.1)
    problem = life.report.problem
    assert problem is not None
    assert (problem.reason, problem.transient) == (FailReason.CHECKPOINT_NOT_WRITABLE, True)
    assert "/checkpoints could not be claimed for 30 s" in problem.message


def test_a_disk_that_answers_after_all_makes_the_pod_fit_again():
    life = a_life().ordered(plan=a_plan()).wait(301)
    assert life.report.problem is not None
    assert life.claimed(a_plan()).did_a(StartRanks).plan.world_id == world_id(1)
    assert life.report.problem is None
    other = Problem(FailReason.INTERPRETER_WITHOUT_TORCH, "no torch")
    life = a_life().ordered(plan=a_plan()).receives(ProblemFound(other)).claimed(a_plan())
    assert life.report.problem == other


def test_each_world_may_wait_for_its_claim_as_long():
    life = a_life().ordered(plan=a_plan()).wait(299).ordered(plan=None).wait(60).ordered(plan=a_plan(2))
    assert life.wait(299).report.problem is None
    assert life.wait(2).report.problem is not None


def test_a_claim_for_a_plan_that_was_withdrawn_starts_nothing():
    life = a_life().ordered(plan=a_plan()).ordered(plan=None)
    assert life.claimed(a_plan()).did == ()
    assert life.ordered(plan=a_plan(2)).did_a(ClaimRun).plan.world_id == world_id(2)


def test_a_world_that_is_superseded_ends_with_that_reason_and_touches_no_checkpoint():
    life = Life().running().receives(RunSuperseded(WorldId(2, 0, 1), refused=world_id(1)))
    assert life.did_a(KillRanks).ranks == (0, 1)
    life.died(0, 1)
    exits = {rank.exit for rank in life.report.ranks}
    assert {exit.fingerprint for exit in exits} == {"superseded"}
    assert {exit.message for exit in exits} == {
        "superseded by term 2: world 2.0.1, a newer one of this job, has claimed the checkpoint folder, so "
        "this rank was killed. Nothing to do: if no newer world runs, the operator starts a new coordinator"
    }
    assert life.report.superseded == WorldId(2, 0, 1)
    life.ordered(grant=Grant(a_ref(10, digest=""), 4, (), None), lineage=(a_ref(5),))
    assert life.did_no(WriteManifest)
    assert life.did_no(Prune)
    assert life.ordered(plan=a_plan(2)).did == ()


def test_a_coordinator_of_a_still_newer_term_may_begin_again():
    life = Life().running().receives(RunSuperseded(WorldId(2, 0, 1), refused=world_id(1))).died(0, 1)
    life._orders = replace(life._orders, term=3)
    assert life.ordered(plan=a_plan(world_id=WorldId(3, 0, 1))).did_a(StartRanks).plan.world_id == WorldId(
        3, 0, 1
    )
    assert life.report.superseded is None


@pytest.mark.parametrize("by", [2, 3])
def test_a_world_that_finds_the_claim_of_its_own_successor_is_not_superseded(by: int):
    """Even if that world has ended, too, and the orders name no other."""
    life = Life().running().died(0, 1).ordered(plan=a_plan(3)).died(0, 1).ordered(plan=None)
    life.receives(RunSuperseded(world_id(by), refused=world_id(1)))
    assert life.state.superseded is None


def test_nor_is_one_whose_claim_has_failed_and_has_left_its_file():
    life = a_life().ordered(plan=a_plan()).claimed(a_plan()).died(0, 1)
    life.ordered(plan=a_plan(2)).receives(ClaimFailed(world_id(2)))
    assert life.receives(RunSuperseded(world_id(2), refused=world_id(1))).did_no(ClaimRun)
    assert life.wait(RETRY_SECONDS + 0.1).did_a(ClaimRun).plan.world_id == world_id(2)
    assert life.state.superseded is None


def test_a_manifest_is_not_written_again_and_again_if_another_pod_has_the_number_of_its_world():
    life = a_life().ordered(plan=a_plan()).claimed(a_plan())
    life.ordered(grant=Grant(a_ref(10, digest=""), 4, (), None))
    assert life.did_a(WriteManifest)
    assert life.receives(RunSuperseded(world_id(1), refused=world_id(1))).did_no(WriteManifest)
    assert life.wait(RETRY_SECONDS + 0.1).did_a(WriteManifest)


@pytest.mark.parametrize("times", [1, 2])
def test_nor_is_one_whose_claim_is_still_under_way(times: int):
    """Prunings that its predecessor has begun meet it."""
    life = a_life().ordered(plan=a_plan()).claimed(a_plan()).died(0, 1)
    life.ordered(plan=a_plan(2)).receives(*[RunSuperseded(world_id(2), refused=world_id(1))] * times)
    assert life.wait(RETRY_SECONDS + 0.1).did_no(ClaimRun)
    assert life.state.superseded is None
    assert life.claimed(a_plan(2)).did_a(StartRanks).plan.world_id == world_id(2)


def test_a_claim_is_tried_again_if_another_pod_has_claimed_by_its_number():
    life = a_life().ordered(plan=a_plan()).receives(RunSuperseded(world_id(1), refused=world_id(1)))
    assert life.wait(RETRY_SECONDS + 0.1).did_a(ClaimRun).plan.world_id == world_id(1)
    assert life.state.superseded is None
