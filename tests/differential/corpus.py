"""All scenarios."""

from __future__ import annotations

from tests.differential import jobs, lists, objects, pods, protocol, shapes, watches
from tests.differential.scenario import Scenario

CORPUS: tuple[Scenario, ...] = tuple(
    scenario
    for chapter in (protocol, shapes, jobs, objects, pods, lists, watches)
    for scenario in chapter.scenarios()
)
