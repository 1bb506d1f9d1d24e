"""The worked examples in the comments of the central packages are what the code does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from lab.coordinator.reports import SIGKILL
from tests.agent.life import Life, a_plan, world_id
from tests.builders import a_running_job, force_deleted
from tests.coordinator.timeline import Timeline

from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import CreatePod
from ropeteam_trainer.agent.machine.effects import KillRanks, StartRanks
from ropeteam_trainer.agent.machine.events import LinkUp, RanksStarted
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import Cause
from ropeteam_trainer.partition import cost
from ropeteam_trainer.partition.answer import ModelPart, Tensor
from ropeteam_trainer.partition.layout import layout


def test_a_pod_that_was_deleted_by_force():
    seen = a_running_job(workers=3).after(force_deleted(slot=1))
    first = decide(seen)
    assert (first.why, first.actions) == ("slot 1: PodDeleted, incarnation 2", ())
    [incident] = first.status.incidents
    assert (incident.cause, incident.charged) == ("PodDeleted", False)
    second = decide(seen.but(status=first.status))
    assert second.why == "creating missing objects"
    assert second.status == first.status
    [created] = [each for each in second.actions if isinstance(each, CreatePod)]
    assert created.manifest["metadata"]["name"] == "mnist-1-2"


def test_a_rank_that_was_killed():
    timeline = Timeline(workers=3, feature_level=2).up(step=120)
    timeline.saves(120)
    timeline.applies_orders()
    timeline.exits(1, SIGKILL)
    assert _orders(timeline) == (WorldPhase.STOPPING, {None})
    timeline.applies_orders(2)
    assert _orders(timeline) == (WorldPhase.STOPPING, {None})
    assert not timeline.state.faults[-1].incident.final
    timeline.applies_orders(0)
    assert _orders(timeline) == (WorldPhase.RUNNING, {"1.0.2"})
    incident = timeline.state.faults[-1].incident
    assert (incident.id, incident.cause, incident.charged) == ("1.0.1", Cause.SIGNAL, True)
    assert incident.final
    orders = timeline.orders(0)
    assert orders.plan.restore[0].step == 120
    timeline.applies_orders()
    timeline.now += 4
    timeline.reaches(121, base=120)
    incident = timeline.state.faults[-1].incident
    assert (incident.recovery_milliseconds.first_step, incident.steps_lost) == (4000, 0)


def _orders(timeline: Timeline) -> tuple[WorldPhase, set[str | None]]:
    plans = [orders.plan for slot in range(3) if (orders := timeline.orders(slot))]
    return timeline.state.phase, {str(plan.world_id) if plan else None for plan in plans}


def test_an_agent_that_is_fenced():
    life = Life(processes=1, timeouts=Timeouts(fence=120), checkpoint=None).receives(LinkUp())
    life.ordered(plan=a_plan(1, processes=1)).did_a(StartRanks)
    life.receives(RanksStarted(world_id(1))).wait(30)
    life.ordered(plan=None).did_a(KillRanks)
    assert life.wait(0.1).ordered(plan=a_plan(2, processes=1)).did == ()
    assert life.wait(0.3).died(0, n=1).did_a(StartRanks).plan.world_id == world_id(2)
    life.receives(RanksStarted(world_id(2))).wait(9.6)
    assert life.unanswered(119).did == ()
    life.unanswered(1).did_a(KillRanks)


GB = 1_000_000_000
SHARDED = {"parallelism": {"shard": 8}}


@pytest.mark.parametrize(
    ("fields", "parts", "held", "sent"),
    [
        ({}, 1, (4, 4, 8), 7),
        ({**SHARDED, "sharding": "OptimizerState"}, 1, (4, 4, 1), 10.5),
        ({**SHARDED, "sharding": "Gradients"}, 8, (0.5, 0.5, 1), 7),
        ({**SHARDED, "sharding": "Parameters"}, 8, (0.5, 0.5, 1), 10.5),
        ({"gradient_compression": {"type": "PowerSGD"}}, 1, (4, 4, 8), 0.056),
        ({"sync": {"type": "Local"}}, 1, (4, 4, 8), 0.875),
    ],
)
def test_what_a_strategy_holds_and_sends(
    fields: dict[str, Any], parts: int, held: tuple[float, ...], sent: float
):
    strategy = codec.from_plain(Strategy, fields)
    shape = (1000 // parts, 1000)
    tensors = (Tensor(shape, math.prod(shape), 4, True),) * 1000
    part = ModelPart(0, tensors, groups=1, optimizer=int(held[2] * GB))
    grid = layout(strategy, 8)
    memory = cost.memory(part, strategy, grid, 1)
    assert (memory.parameters, memory.gradients) == (held[0] * GB, held[1] * GB)
    assert cost.traffic(part, strategy, grid, 1).sent == pytest.approx(sent * GB)


def test_what_a_pipeline_waits():
    strategy = codec.from_plain(Strategy, {"parallelism": {"pipeline": 8}})
    assert round(cost.bubble(strategy, 8, 16), 2) == 0.3
