"""The words of the protocol: order of worlds, ranks of a plan, what a cause costs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.contract.desired import JobReport
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import Orders, RankPhase, RankReport, Shard, StoreOffer
from ropeteam_trainer.contract.world import Cause, CheckpointRef, Member, Plan, ProcessExit, WorldId

NUMBERS = st.integers(0, 10**6)
WORLD_IDS = st.builds(WorldId, NUMBERS, NUMBERS, NUMBERS)


@given(one=WORLD_IDS, other=WORLD_IDS)
def test_world_ids_are_ordered_by_term_then_boot_then_number(one: WorldId, other: WorldId) -> None:
    assert (one < other) == (dataclasses.astuple(one) < dataclasses.astuple(other))


@given(world_id=WORLD_IDS)
def test_a_world_id_is_read_back_from_its_text(world_id: WorldId) -> None:
    assert WorldId.parse(str(world_id)) == world_id


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "1.2.x", "a.b.c"])
def test_other_text_is_no_world_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        WorldId.parse(text)


@pytest.mark.parametrize("kind", [CheckpointRef, Plan, RankPlan, JobReport, Shard, StoreOffer])
def test_other_releases_know_the_number_of_a_world_as_its_epoch(kind: Any) -> None:
    names = {field.name: codec.json_name(field) for field in dataclasses.fields(kind)}
    assert names["world_id"] == "epoch"


def a_plan(processes: dict[int, int]) -> Plan:
    members = tuple(Member(slot, 1, f"uid-{slot}", "127.0.0.1", count) for slot, count in processes.items())
    return Plan(WorldId(1, 0, 1), 1, members, "127.0.0.1", 29500)


@given(processes=st.dictionaries(st.integers(0, 50), st.integers(1, 8), min_size=1))
def test_ranks_are_dense_in_the_order_of_members(processes: dict[int, int]) -> None:
    plan = a_plan(processes)
    ranks = [rank for slot in processes for rank in plan.ranks(slot)]
    assert ranks == list(range(plan.world_size))
    assert all(plan.ranks(slot)[0] == plan.first_rank(slot) for slot in processes)
    assert all(len(plan.ranks(slot)) == count for slot, count in processes.items())


def test_a_slot_that_is_no_member_has_no_ranks() -> None:
    plan = a_plan({0: 2, 2: 1})
    assert plan.member(1) is None
    assert plan.member(2) == plan.members[1]
    with pytest.raises(KeyError):
        plan.first_rank(1)
    with pytest.raises(KeyError):
        plan.ranks(1)


def test_plans_that_differ_have_different_hashes() -> None:
    plan = a_plan({0: 1, 1: 1})
    changed = [
        dataclasses.replace(plan, world_id=WorldId(1, 0, 2)),
        dataclasses.replace(plan, store_port=1),
        dataclasses.replace(plan, members=plan.members[:1]),
        dataclasses.replace(plan, started=(1,)),
    ]
    assert a_plan({0: 1, 1: 1}).hash == plan.hash
    assert len({plan.hash, *(each.hash for each in changed)}) == 5


def test_an_agent_knows_from_its_part_which_ranks_are_started_and_where_the_others_began() -> None:
    plan = a_plan({0: 2, 1: 2, 2: 2})
    members = [dataclasses.replace(member, started_in=WorldId(1, 0, 1)) for member in plan.members[:2]]
    plan = dataclasses.replace(
        plan, world_id=WorldId(1, 0, 2), members=(*members, plan.members[2]), started=(1, 4, 5)
    )
    part = plan.part(1)
    assert (part.started, part.preserved, part.hash) == ((1, 4, 5), (1,), plan.hash)
    assert (part.started_in(1), plan.started_in(2)) == (WorldId(1, 0, 1), plan.world_id)


@pytest.mark.parametrize(
    ("message", "added"),
    [
        (Orders(1, 0, 1), {"lost": ()}),
        (a_plan({0: 1}), {"started": ()}),
        (RankPlan("1.0.1", (), False, None, Resume.LATEST, None, "j", "u"), {"started": (), "saves_as": ""}),
        (RankReport(0, RankPhase.RUNNING), {"regroups": False, "dying": False}),
        (FromRank(), {"regroups": None, "shard_world": None}),
        (ToRank(), {"live_world": None, "lost": ()}),
    ],
)
def test_a_message_of_a_release_without_recovery_in_the_step_is_read(
    message: Any, added: dict[str, Any]
) -> None:
    sent = json.loads(codec.encode(message))
    earlier = {name: value for name, value in sent.items() if name not in added}
    assert codec.decode(type(message), json.dumps(earlier).encode()) == message
    assert {name: getattr(message, name) for name in added} == added


def test_what_the_cluster_does_to_a_job_is_free_and_what_its_script_does_is_not() -> None:
    free = {cause.value for cause in Cause if not cause.charged}
    assert free == {"PodDeleted", "Evicted", "NodeLost", "AgentLost", "StorageUnavailable", "RetriedFree"}


def test_only_exit_code_0_is_clean() -> None:
    assert ProcessExit(0, None).clean
    assert not ProcessExit(1, None).clean
    assert not ProcessExit(None, 9).clean
