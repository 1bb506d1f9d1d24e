"""Places for unauthenticated connections: which of them leaves when all are taken."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract.preauth import UnauthenticatedConnections


class Port:
    """Unauthenticated peers by name. `left`: those that had to leave, in order."""

    def __init__(self, places: int) -> None:
        self.unauthenticated, self.left = UnauthenticatedConnections(places), list[str]()
        self._leaves = dict[str, partial[None]]()

    def take(self, *names: str) -> None:
        """`a1`: the connection 1 of the address a."""
        for name in names:
            leave = self._leaves.setdefault(name, partial(self.left.append, name))
            self.unauthenticated.admit(name[0], leave)

    def free(self, name: str) -> None:
        self.unauthenticated.free(name[0], self._leaves[name])


def test_a_flood_of_one_address_displaces_itself_oldest_first():
    port = Port(places=3)
    port.take("b1", "a1", "a2", "a3", "a4")
    assert port.left == ["a1", "a2"]
    port.take("c1")
    assert port.left == ["a1", "a2", "a3"]


def test_where_no_address_has_more_than_others_the_oldest_leaves():
    port = Port(places=2)
    port.take("a1", "b1", "c1", "d1")
    assert port.left == ["a1", "b1"]


def test_who_has_gone_or_proved_itself_takes_no_place():
    port = Port(places=2)
    port.take("a1", "a2")
    for _ in range(2):
        port.free("a1")
    assert port.unauthenticated.taken == 1
    port.take("a3")
    assert port.left == []


def test_who_takes_another_place_may_lose_all_of_its_own():
    port = Port(places=2)
    port.take("a1", "b1", "a1")
    assert (port.left, port.unauthenticated.taken) == (["a1"], 1)


def test_a_connection_can_be_evicted_before_the_limit():
    port = Port(places=9)
    assert not port.unauthenticated.evict_one()
    port.take("a1", "b1", "b2")
    assert port.unauthenticated.evict_one()
    assert port.left == ["b1"]


@given(places=st.integers(1, 5), names=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4))))
def test_who_comes_alone_from_its_address_has_a_place_while_others_have_more(
    places: int, names: list[tuple[str, int]]
):
    port = Port(places)
    port.take("z1")
    for address, number in names:
        port.take(f"{address}{number}")
        assert port.unauthenticated.taken <= places
    if places >= 4:
        assert "z1" not in port.left, "there are four addresses"
