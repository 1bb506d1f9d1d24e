"""The replicas that add their gradients, the micro-batches of each, and when new ones are admitted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.waiting import wait_until

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import STORE_ADDRESS, RankPlan, Resume
from ropeteam_trainer.contract.local import LiveWorld, ToRank
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact.decisions import Admission
from ropeteam_trainer.strategies.exact.members import (
    AgentMembership,
    Arrival,
    Members,
    Presence,
    first_leaves,
    leaves_of_begun_step,
    leaves_of_members,
    members_number,
    world_of,
)
from ropeteam_trainer.strategies.exact.positions import Position

IDS = st.builds(WorldId, st.integers(0, 30_000), st.integers(0, 60_000), st.integers(0, 1_000_000))


def live(n: int, *started: int) -> LiveWorld:
    return LiveWorld(WorldId(1, 0, n), "10.0.0.1", 29500, started, WorldId(1, 0, 1))


@given(
    st.tuples(IDS, st.integers(0, 4_000), st.booleans()), st.tuples(IDS, st.integers(0, 4_000), st.booleans())
)
def test_members_of_later_worlds_and_after_more_losses_have_greater_numbers(
    one: tuple[WorldId, int, bool], other: tuple[WorldId, int, bool]
) -> None:
    assert (members_number(*one) < members_number(*other)) == (one < other)
    assert 0 <= members_number(*one) < 1 << 64, "a field of a message"


# ---- micro-batches


@given(st.data())
def test_each_micro_batch_has_one_member_and_nobody_computes_again_what_it_has(data: st.DataObject) -> None:
    """A history of losses. In each, some replicas may be one exchange behind."""
    replicas = data.draw(st.integers(1, 6))
    leaves = data.draw(st.integers(replicas, 20))
    members = frozenset(range(replicas))
    dealt = leaves_of_members(members, replicas, leaves)
    assert dealt == {member: first_leaves(member, replicas, leaves) for member in members}
    while len(members) > 1:
        lost = data.draw(st.sets(st.sampled_from(sorted(members)), min_size=1, max_size=len(members) - 1))
        members -= lost
        behind = data.draw(st.sets(st.sampled_from(sorted(members)), max_size=len(members) - 1))
        positions = {m: Position(4 if m in behind else 5, dealt[m]) for m in members}
        for found in (
            leaves_of_begun_step(positions, replicas, leaves),
            leaves_of_members(members, replicas, leaves),
        ):
            assert found.keys() == members
            assert sorted(number for numbers in found.values() for number in numbers) == [*range(leaves)]
        begun = leaves_of_begun_step(positions, replicas, leaves)
        assert all({*positions[member].leaves} <= {*begun[member]} for member in members - behind)
        dealt = begun


def test_a_member_that_is_behind_has_only_its_own_part_of_the_begun_step() -> None:
    """Another may have begun in this one with leaves that it took over in the step before."""
    positions = {0: Position(7, (0, 1, 4, 6)), 1: Position(6, (2, 3, 5, 7))}
    assert leaves_of_begun_step(positions, 4, 8) == {0: (0, 1, 4, 6), 1: (2, 3, 5, 7)}
    positions = {0: Position(7, (0, 1, 5, 7)), 1: Position(6, (2, 3, 5, 7))}
    assert leaves_of_begun_step(positions, 4, 8) == {0: (0, 1, 5, 7), 1: (2, 3, 4, 6)}
    assert leaves_of_members(frozenset(positions), 4, 8) == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}


# ---- votes


@dataclass
class Voter:
    leaves: int
    admission: Admission


def exchange(voters: list[Voter], have_caught_up: bool = False) -> None:
    """One exchange of all: the sum of their votes, one for each leaf."""
    for voter in voters:
        voter.admission.begin_exchange(lambda: have_caught_up)
    sums = [sum(voter.leaves * voter.admission.votes[i] for voter in voters) for i in (0, 1)]
    for voter in voters:
        if voter.admission.agreed([float(each) for each in sums], sum(voter.leaves for voter in voters)):
            voter.admission.decide()


def voters() -> list[Voter]:
    return [Voter(leaves, Admission()) for leaves in (3, 1, 2)]


def test_new_replicas_are_due_in_the_exchange_in_which_all_vote_for_them() -> None:
    arrival, all_voters = Arrival(live(2, 3), {}), voters()
    for voter in all_voters:
        exchange(all_voters)
        assert all(other.admission.due is None for other in all_voters)
        voter.admission.arrival = arrival
        assert voter.admission.due is None, "not before the next exchange"
    exchange(all_voters)
    assert all(voter.admission.due is arrival for voter in all_voters)
    for voter in all_voters:
        voter.admission.close(arrival.world.world_id)
    exchange(all_voters)
    assert all(voter.admission.due is None for voter in all_voters), "they are admitted once"


def test_an_arrival_in_an_exchange_that_has_begun_has_no_vote_in_it() -> None:
    all_voters = voters()
    for voter in all_voters:
        voter.admission.begin_exchange()
        before = voter.admission.votes
        voter.admission.arrival = Arrival(live(2, 3), {})
        assert voter.admission.votes == before == (0, 0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=2, max_size=5))
def test_votes_for_different_worlds_never_agree(votes: list[tuple[int, int]]) -> None:
    all_voters = [Voter(leaves, Admission()) for leaves, _ in votes]
    for voter, (_, n) in zip(all_voters, votes, strict=True):
        voter.admission.arrival = Arrival(live(n, 3), {})
    exchange(all_voters)
    agreed = len({n for _, n in votes}) == 1
    assert all((voter.admission.due is not None) == agreed for voter in all_voters)


class Codes(Arrival):
    """An arrival with a code that a test chooses."""

    chosen = 0

    @property
    def code(self) -> int:
        return self.chosen


def test_votes_whose_mean_is_that_of_another_world_do_not_agree() -> None:
    all_voters = [Voter(1, Admission()) for _ in range(3)]
    for voter, code in zip(all_voters, (4, 5, 6), strict=True):
        arrival = Codes(live(2, 3), {})
        object.__setattr__(arrival, "chosen", code)
        voter.admission.arrival = arrival
    exchange(all_voters)
    assert all(voter.admission.due is None for voter in all_voters)


@given(IDS)
def test_the_square_of_a_code_is_exact_in_a_sum_of_many(world_id: WorldId) -> None:
    code = Arrival(LiveWorld(world_id, "", 0, (), world_id), {}).code
    assert 1 <= code <= 1 << 20
    assert 4_096 * code**2 <= 1 << 53


def test_an_arrival_of_earlier_members_is_void() -> None:
    (voter,) = all_voters = voters()[:1]
    voter.admission.arrival = arrival = Arrival(live(2, 3), {})
    exchange(all_voters)
    assert voter.admission.due is arrival
    voter.admission.note_members(members_number(WorldId(1, 0, 1), lost=3))
    assert voter.admission.due is arrival, "earlier members"
    voter.admission.note_members(members_number(arrival.world.world_id, lost=1))
    assert voter.admission.due is None, "one of the world is lost"
    exchange(all_voters)
    assert voter.admission.votes == (0, 0)
    assert voter.admission.due is None
    voter.admission.arrival = newer = Arrival(live(3, 1), {})
    exchange(all_voters)
    assert voter.admission.due is newer


def test_members_that_change_during_an_exchange_void_its_vote() -> None:
    (voter,) = voters()[:1]
    voter.admission.arrival = arrival = Arrival(live(2, 3), {})
    voter.admission.begin_exchange()
    voter.admission.note_members(members_number(arrival.world.world_id, lost=1))
    assert not voter.admission.agreed([voter.leaves * vote for vote in voter.admission.votes], voter.leaves)


def test_new_replicas_are_known_once_they_are_connected_or_admitted() -> None:
    admission, world_id = Admission(), WorldId(1, 0, 2)
    assert not admission.knows(world_id)
    admission.arrival = Arrival(live(2, 3), {})
    assert admission.knows(world_id)
    admission.close(world_id)
    admission.arrival = Arrival(live(3, 1), {})
    assert admission.knows(world_id)
    assert admission.knows(WorldId(1, 0, 3))
    assert not admission.knows(WorldId(1, 0, 4))


# ---- the agent's lines


@dataclass
class Agent:
    link: AgentLink
    connection: socket.socket

    def send(self, world: LiveWorld | None, *lost: int) -> None:
        line = ToRank(live_world=world, lost=lost)
        self.connection.sendall(codec.encode(line) + b"\n")
        wait_until("the line is read", lambda: self.link.newest == line)


@pytest.fixture
def agent() -> Iterator[Agent]:
    mine, theirs = socket.socketpair()
    link = AgentLink(mine, HeartbeatWriter(None))
    yield Agent(link, theirs)
    link.close()
    theirs.close()


def membership(agent: Agent, seconds: float = 60.0) -> AgentMembership:
    return AgentMembership(agent.link, live(1, *range(4)), 4, seconds, Mates())


def test_members_are_those_that_the_agent_does_not_count_as_lost(agent: Agent) -> None:
    source = membership(agent)
    agent.send(None, 1)
    first = WorldId(1, 0, 1)
    assert source.after() == Members(
        members_number(first, 1), frozenset({0, 2, 3}), frozenset({0, 2, 3}), first
    )
    agent.send(None, 1, 3)
    assert source.after() == Members(members_number(first, 2), frozenset({0, 2}), frozenset({0, 2}), first)


def test_a_line_is_awaited_that_has_another_loss(agent: Agent) -> None:
    source = membership(agent, seconds=0.0)
    agent.send(None, 1)
    assert source.after() is not None
    assert source.after() is None
    agent.send(None, 1)
    assert source.after() is None


def test_without_an_agent_there_are_no_next_members(agent: Agent) -> None:
    source = membership(agent)
    agent.connection.shutdown(socket.SHUT_RDWR)
    assert source.after() is None


def test_replicas_that_a_world_starts_are_no_members_until_they_have_joined(agent: Agent) -> None:
    source = membership(agent)
    agent.send(live(2, 1))
    found = source.after()
    assert found == Members(members_number(WorldId(1, 0, 2)), frozenset({0, 2, 3}))
    source.have_joined(members_number(WorldId(1, 0, 2), have_joined=True))
    agent.send(live(2, 1), 3)
    found = source.after()
    assert found is not None
    assert found.replicas == {0, 1, 2}
    assert found.newcomers == {1}
    assert found.world_id == WorldId(1, 0, 2)


def test_replicas_that_a_world_does_not_have_are_no_members(agent: Agent) -> None:
    world = replace(live(2, 1), absent=(2,))
    source = membership(agent)
    agent.send(world)
    assert source.after() == Members(members_number(world.world_id), frozenset({0, 3}))
    source.have_joined(members_number(world.world_id, have_joined=True))
    agent.send(world, 3)
    found = source.after()
    assert found == Members(
        members_number(world.world_id, 1), frozenset({0, 1}), frozenset({1}), world.world_id
    )


@pytest.mark.parametrize(
    ("started", "absent", "alone"),
    [((), (), []), ((1, 2, 3), (), []), ((2, 3), (4, 5), [0, 1]), ((), (4, 5), [0, 1, 2, 3])],
)
def test_ranks_that_a_world_starts_beside_none_begin_alone(
    started: tuple[int, ...], absent: tuple[int, ...], alone: list[int]
) -> None:
    world = replace(live(1, *started), absent=absent)
    assert [rank for rank in range(4) if world.begins_alone(rank)] == alone


def test_a_replica_knows_who_is_missing() -> None:
    presence = Presence(1, 4, frozenset({1}))
    assert (presence.is_whole, presence.is_lowest) == (False, True)
    assert presence.saves_alone(0), "none has made a step before"
    presence.note_joined(frozenset({0, 1, 3}))
    assert (presence.is_whole, presence.is_lowest) == (False, False)
    presence.note_joined(frozenset(range(4)))
    assert (presence.is_whole, presence.saves_alone(9)) == (True, False)


def test_members_before_those_that_have_joined_are_none_to_continue_with(agent: Agent) -> None:
    source = membership(agent, seconds=0.0)
    agent.send(live(2, 1))
    source.have_joined(members_number(WorldId(1, 0, 2), have_joined=True))
    source.have_joined(0)
    assert source.after() is None


@pytest.mark.parametrize(
    ("saves_as", "expected"), [("", WorldId(1, 0, 4)), ("1.0.2", WorldId(1, 0, 2))], ids=repr
)
def test_the_world_of_a_rank_is_that_of_its_plan(
    saves_as: str, expected: WorldId, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RankPlan("1.0.4", (), True, None, Resume.LATEST, None, "", "", started=(1,), saves_as=saves_as)
    monkeypatch.setenv(STORE_ADDRESS, "fd00::1:29500")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert world_of(plan) == LiveWorld(WorldId(1, 0, 4), "fd00::1", 29500, (1,), expected, 3)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert world_of(plan).restart_count == 0


def test_new_replicas_that_follow_are_due_again_once_they_have_caught_up() -> None:
    all_voters = voters()
    arrival = Arrival(live(2, 3), {})
    for voter in all_voters:
        voter.admission.arrival = arrival
    exchange(all_voters)
    for voter in all_voters:
        assert voter.admission.due is arrival
        voter.admission.follow()
    exchange(all_voters)
    assert all(voter.admission.due is None for voter in all_voters)
    exchange(all_voters, have_caught_up=True)
    assert all(voter.admission.due == replace(arrival, has_caught_up=True) for voter in all_voters)


def test_new_replicas_do_not_follow_those_that_have_lost_another_since() -> None:
    (voter,) = voters()[:1]
    voter.admission.arrival = arrival = Arrival(live(2, 3), {})
    exchange([voter])
    voter.admission.follow()
    voter.admission.note_members(members_number(arrival.world.world_id, lost=1))
    exchange([voter], have_caught_up=True)
    assert voter.admission.following is None
    assert voter.admission.due is None
