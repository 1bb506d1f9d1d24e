"""Orders are put together from parts that are the same for all, and equal those encoded whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import SIGKILL, agent
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract import VERSION, codec
from ropeteam_trainer.contract.messages import Orders
from ropeteam_trainer.coordinator.encoding import OrdersEncoder
from ropeteam_trainer.coordinator.membership.orders import Replies


@pytest.mark.parametrize("servers", [0, 1])
def test_the_bytes_for_an_agent_are_its_orders(servers: int):
    film, encoder = Timeline(3, feature_level=2, servers=servers), OrdersEncoder()
    film.agents = {slot: agent(slot, contract=VERSION - slot % 3) for slot in range(film.config.slots)}

    def compare() -> None:
        replies = Replies(film.state, film.now)
        for slot, report in film.agents.items():
            found = replies.reply_to(report)
            assert found
            sent = encoder.encode(found, 7, slot or None)
            assert codec.decode(Orders, sent) == replace(
                film.sent_orders(slot), number=7, answers=slot or None
            )

    film.up(step=3)
    compare()
    film.exits(1, SIGKILL)
    compare()
    film.applies_orders()
    compare()


def test_what_is_the_same_for_everybody_is_made_once():
    film = Timeline(5).up(step=3)
    replies = Replies(film.state, film.now)
    found = [replies.reply_to(report) for report in film.agents.values()]
    assert len({id(reply.orders) for reply in found if reply}) == 1
