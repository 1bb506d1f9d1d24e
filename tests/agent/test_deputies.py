"""The machine under sync Exact while the pod of the lead rank is missing: another agent commits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.life import Life, a_plan, a_recovery_plan, a_ref, world_id
from tests.agent.test_keepingrules import a_life, sent

from ropeteam_trainer.agent.machine.apply import RETRY_SECONDS
from ropeteam_trainer.agent.machine.effects import (
    ClaimRun,
    HostStore,
    KillRanks,
    Prune,
    StartRanks,
    WriteManifest,
)
from ropeteam_trainer.agent.machine.events import ClaimFailed, ManifestWritten, RunSuperseded
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

LOST = {"lost": (0, 1), "saves_as": world_id(2)}
AS_DEPUTY = LOST | {"claim": world_id(2)}
FOREIGN = WorldId(2, 0, 1)


def a_grant(step: int, n: int = 2) -> Grant:
    return Grant(CheckpointRef(step, world_id(n)), 4, (), None)


def a_deputy(**settings: Any) -> Life:
    return a_life(slot=1, **settings).ordered(**AS_DEPUTY)


def claims(life: Life) -> list[WorldId]:
    """Numbers of all that were requested in this life."""
    return [each.plan.world_id for each in life.all if isinstance(each, ClaimRun)]


def test_a_deputy_claims_by_the_ordered_number_beside_ranks_that_train():
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY)
    assert life.did_a(ClaimRun).plan.world_id == world_id(2)
    assert life.did_no(KillRanks)
    assert life.wait(RETRY_SECONDS + 1).did_no(ClaimRun), "it is under way"
    assert life.claimed(life.all[-1].plan).wait(9).did_no(ClaimRun), "it is done"
    assert life.report.plan.world_id == world_id(1)


def test_its_ranks_and_those_of_others_save_under_that_number():
    for life in (a_deputy(), a_life(slot=1).ordered(**LOST)):
        assert sent(life) == dict.fromkeys((2, 3), ToRank(lost=(0, 1), saves_as=world_id(2)))
    assert sent(life.ordered(plan=a_recovery_plan(2, 0, 1, slot=1, new=(0,)), lost=(), saves_as=None))
    assert {rank.sent.saves_as for rank in life.state.world.ranks} == {None}


def test_it_writes_what_is_granted_once_it_has_the_claim():
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY, grant=a_grant(10))
    assert life.did_no(WriteManifest)
    wrote = life.claimed(a_plan(2)).did_a(WriteManifest)
    assert (wrote.held.claim.world_id, wrote.grant) == (world_id(2), a_grant(10))
    life.receives(ManifestWritten(a_ref(10, 2)))
    assert {message.committed_step for message in sent(life).values()} == {10}
    assert life.report.committed == a_ref(10, 2)


def test_other_ranks_learn_what_it_has_committed():
    life = a_life(slot=1).ordered(**LOST, lineage=(a_ref(10, 2), a_ref(5, 1)))
    assert {message.committed_step for message in sent(life).values()} == {10}


def test_it_prunes():
    lineage = (a_ref(10, 2), a_ref(5, 1))
    pruned = a_deputy().ordered(lineage=lineage).did_a(Prune)
    assert (pruned.held.claim.world_id, pruned.keep) == (world_id(2), lineage)


def test_without_the_order_it_commits_and_prunes_nothing_more():
    life = a_deputy().ordered(
        plan=a_recovery_plan(3, 0, 1, slot=1, new=(0,)), lost=(), claim=None, saves_as=None
    )
    assert life.state.world.plan.world_id == world_id(3)
    life.ordered(grant=a_grant(10), lineage=(a_ref(10, 2),))
    assert life.did_no(WriteManifest)
    assert life.did_no(Prune)


def test_a_claim_that_fails_is_tried_for_as_long_as_it_takes():
    """No other pod is requested: ranks train here meanwhile."""
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY)
    for _ in range(400):
        life.receives(ClaimFailed(world_id(2)))
        assert life.did == ()
        assert life.wait(RETRY_SECONDS + 0.1).did_a(ClaimRun)
    assert life.report.problem is None


def test_it_is_replaced_by_a_newer_world_of_its_coordinator_and_its_ranks_live_on():
    """The plan of that world is on its way."""
    life = a_deputy().ordered(grant=a_grant(10))
    assert life.did_a(WriteManifest)
    life.receives(RunSuperseded(world_id(3), refused=world_id(2)))
    assert life.did_no(KillRanks)
    assert life.report.superseded is None
    life.ordered(
        plan=a_recovery_plan(3, 0, 1, slot=1, new=(0,)), lost=(), claim=None, saves_as=None, grant=None
    )
    assert life.did_no(KillRanks)
    assert life.state.world.plan.world_id == world_id(3)


def test_a_claim_of_its_own_that_is_superseded_is_tried_again_while_orders_request_it():
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY).receives(RunSuperseded(world_id(3), refused=world_id(2)))
    assert life.did == ()
    assert life.wait(RETRY_SECONDS + 0.1).did_a(ClaimRun)


def test_a_number_that_another_pod_has_claimed_does_not_keep_it_from_the_next():
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY).did_a(ClaimRun)
    life.receives(RunSuperseded(world_id(2), refused=world_id(2)))
    assert life.state.claiming is None
    assert life.wait(RETRY_SECONDS + 0.1).did_a(ClaimRun)


def test_a_newer_deputys_claim_leaves_a_still_newer_one_under_way():
    life = a_life(slot=1)
    life.disk_answers = False
    life.ordered(**AS_DEPUTY | {"claim": world_id(5)}).receives(
        RunSuperseded(world_id(3), refused=world_id(1))
    )
    assert life.wait(RETRY_SECONDS + 0.1).did_no(ClaimRun)
    assert life.state.claiming == world_id(5)


def test_a_world_of_a_newer_coordinator_supersedes_it():
    life = a_deputy().receives(RunSuperseded(FOREIGN, refused=world_id(1)))
    assert life.did_a(KillRanks).ranks == (2, 3)
    assert life.report.superseded == FOREIGN
    life.wait(9)
    assert claims(life) == [world_id(2)], "the first one only"


def test_only_an_agent_with_a_folder_for_checkpoints_can_be_deputy():
    assert a_life(slot=1).report.supports_claim
    life = a_deputy(checkpoint=None)
    assert not life.report.supports_claim
    assert claims(life) == []


# ---- the agent of the lead rank, if it was only cut off


def isolated() -> Life:
    """The agent of the lead rank writes a manifest when a deputy has claimed the folder."""
    life = a_life().ordered(grant=a_grant(10, 1))
    assert life.did_a(WriteManifest)
    return life.receives(RunSuperseded(world_id(2), refused=world_id(1)))


def test_a_lead_agent_that_was_isolated_ends_its_ranks_and_writes_nothing_more():
    life = isolated()
    assert life.did_a(KillRanks).ranks == (0, 1)
    assert life.report.superseded == world_id(2)
    assert life.died(0, 1).ordered().wait(9).did_no(WriteManifest)
    assert life.report.superseded == world_id(2), "orders of before"


def test_it_leads_the_next_world():
    life = isolated().died(0, 1).ordered(plan=None, host_store=world_id(3), grant=None)
    assert life.did_a(HostStore).world_id == world_id(3)
    assert life.report.superseded is None
    life.ordered(plan=a_plan(3), host_store=None)
    assert life.did_a(StartRanks).plan.world_id == world_id(3)
    assert life.state.held.claim.world_id == world_id(3)
    assert life.did_no(WriteManifest)


def test_so_does_one_whose_coordinator_was_restarted():
    life = isolated().died(0, 1)
    life.ordered(boot=1, plan=None)
    assert life.report.superseded is None


@pytest.mark.parametrize(
    ("orders", "survives"),
    [
        ({"plan": None, "host_store": world_id(3)}, True),
        ({"plan": None, "host_store": None}, False),
        ({"plan": a_plan(3)}, True),
        ({"plan": a_recovery_plan(3, 2)}, False),
    ],
    ids=["it will lead", "it may not lead", "it leads already", "it leads still, by its old claim"],
)
def test_a_claim_between_its_own_and_that_of_its_orders_supersedes_nothing(
    orders: dict[str, Any], survives: bool
):
    """The agent learns late of a deputy that is deputy no more."""
    life = a_life().ordered(grant=a_grant(10, 1))
    life.disk_answers = False
    life.ordered(**orders).receives(RunSuperseded(world_id(2), refused=world_id(1)))
    assert (life.report.superseded is None) == survives
    assert life.state.held is None


def test_nor_does_it_end_a_newer_claim_that_is_under_way():
    life = a_life().ordered(grant=a_grant(10, 1)).died(0, 1)
    life.disk_answers = False
    assert life.ordered(plan=a_plan(3), grant=None).did_a(ClaimRun).plan.world_id == world_id(3)
    life.receives(RunSuperseded(world_id(2), refused=world_id(1)))
    assert life.wait(RETRY_SECONDS + 0.1).did_no(ClaimRun)
    assert life.claimed(a_plan(3)).did_a(StartRanks).plan.world_id == world_id(3)


def test_it_ends_no_claim_that_is_held_already():
    life = a_life().ordered(grant=a_grant(10, 1)).died(0, 1).ordered(plan=a_plan(3), grant=None)
    life.receives(RunSuperseded(world_id(2), refused=world_id(1)))
    assert life.state.held.claim.world_id == world_id(3)
