"""The operator is away, and pods are lost before it returns.

`tools/sim.py --away` plays an hour of it at every point of many histories; here are minutes at a few.
"""

from __future__ import annotations

import pytest
from tests.shipped.away import Point, calm, play, points
from tests.shipped.histories import History
from tests.shipped.site import Setup
from tests.sim.moves import Move

MINUTES = 5 * 60.0


@pytest.mark.parametrize("which", range(3))
def test_what_is_lost_while_the_operator_is_away_costs_an_interval_at_most(which: int) -> None:
    setup = Setup(seed=which, workers=2, feature_level=3, total_steps=120, step_ms=6000, keep=1)
    away = play(Point(History(setup, (Move("long_wait", 15, 15),)), 1, which), MINUTES)
    assert away.state == "Complete"
    assert away.lost == (2, 1, 3)[which]
    assert away.repeated is not None


def test_it_goes_at_every_point_of_a_history() -> None:
    history = calm(3)
    assert [point.moves for point in points(history)] == list(range(len(history.moves) + 1))
    assert {point.which for seed in range(3) for point in points(calm(seed))} == {0, 1, 2}
