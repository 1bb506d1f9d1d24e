"""A coordinator that does not keep up says so, does less for people, and takes nobody's lease."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any

import pytest
from lab.coordinator.link import FakeAgent, Link, get_status, http, put_desired, request
from lab.coordinator.reports import agent
from lab.waiting import wait_until_async
from tests.coordinator.conftest import ServedCoordinator
from tests.coordinator.test_process import DESIRED, start
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract import VERSION, codec
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.desired import JobReport
from ropeteam_trainer.contract.messages import LEASE, Progress
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.membership.state.lateness import CALM_SECONDS, Lateness

__all__ = ["start"]


def late_by(film: Timeline, seconds: float) -> None:
    """The loop has its next turn so much later than it should."""
    assert film.state.due is not None
    film.now = film.state.due + seconds
    film.event(membership.Tick())


def test_it_is_reported_until_a_minute_has_passed_without_a_late_turn() -> None:
    film = Timeline().up(step=3)
    assert (film.report.lag_seconds, film.report.why) == (0, "world 1.0.1 runs with 2 ranks")
    late_by(film, 2.5)
    assert film.report.lag_seconds == 3
    assert (
        film.report.why
        == "world 1.0.1 runs with 2 ranks; this coordinator is late: its event loop by up to 3 s"
    )
    film.later(CALM_SECONDS - 3)
    late_by(film, 1.1)
    assert film.report.lag_seconds == 3, "the most since it began"
    film.later(CALM_SECONDS - 1)
    assert film.report.lag_seconds == 3
    film.later(1)
    assert film.report.lag_seconds == 0
    late_by(film, 1.1)
    assert film.report.lag_seconds == 2, "what was before is forgotten"


def test_a_turn_that_is_not_much_too_late_is_no_lateness() -> None:
    film = Timeline().up(step=3)
    for _ in range(100):
        late_by(film, 1.0)
    assert film.report.lag_seconds == 0


def test_while_it_is_late_metrics_may_be_older() -> None:
    calm, late = Lateness(), Lateness().after_late_turn(2.0, 100.0)
    assert calm.metrics_max_age(100.0) < late.metrics_max_age(100.0)
    assert late.metrics_max_age(100.0 + CALM_SECONDS) == calm.metrics_max_age(0.0)


async def test_frequent_requests_for_metrics_get_cached_ones(served: ServedCoordinator) -> None:
    made: list[float] = []
    report, moment = served.coordinator.job_report, [1000.0]
    served.coordinator.now = lambda: moment[0]  # type: ignore[method-assign]

    def counted() -> Any:
        made.append(moment[0])
        return report()

    served.coordinator.job_report = counted  # type: ignore[method-assign]
    for seconds in (0.0, 0.5, 1.0, 1.5):
        moment[0] = 1000.0 + seconds
        assert (await http(served.http, request("GET", "/metrics")))[0] == 200
    assert made == [1000.0, 1001.0]


@pytest.mark.parametrize("late", [False, True])
async def test_while_it_is_late_only_the_newest_of_several_reports_is_read(
    served: ServedCoordinator, late: bool
) -> None:
    await put_desired(served.http, DESIRED)
    if late:
        now = served.coordinator.now()
        served.coordinator.state = replace(
            served.coordinator.state, lateness=Lateness().after_late_turn(2.0, now)
        )
    link = await Link().connect(served.agents)
    reports = [agent(0, contract=VERSION, number=n, progress=Progress(step=n)) for n in (1, 2, 3)]
    read: list[int] = []
    received = served.coordinator.take_report
    served.coordinator.take_report = lambda line, report: (read.append(report.number), received(line, report))  # type: ignore
    bodies = [codec.encode(reports[0]), LEASE, *map(codec.encode, reports[1:]), LEASE]
    link.write(b"".join(map(link.sealer.seal, bodies)))
    await wait_until_async("the reports are read", lambda: read == ([3] if late else [1, 2, 3]))
    (line,) = served.coordinator._connections
    assert (line.report, line._report_number) == (reports[2], 4), "the lease after it is the fourth word"
    await link.close()


async def test_a_coordinator_that_was_paused_reports_it_and_no_agent_is_lost(start) -> None:
    process = await start()
    ports = await process.listening()
    agents = [FakeAgent(agent(slot), ports[0]) for slot in (0, 1)]
    await put_desired(ports[1], DESIRED)
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    plan = agents[0].report.plan
    process.child.send_signal(signal.SIGSTOP)
    await asyncio.sleep(Timeouts().lost + 2)
    process.child.send_signal(signal.SIGCONT)

    async def late() -> JobReport | None:
        seen = await get_status(ports[1])
        return seen if seen.lag_seconds else None

    report = await wait_until_async("the coordinator reports its lag", late)
    assert "this coordinator is late" in report.why
    report = await put_desired(ports[1], replace(DESIRED, generation=2))
    assert (report.phase.value, report.incidents, report.replacement_requests) == ("Running", (), ())
    assert [slot.registered for slot in report.slots.values()] == [True, True]
    assert [each.report.plan for each in agents] == [plan, plan]
    _, text = await http(ports[1], request("GET", "/metrics"))
    assert "ropeteam_job_coordinator_lag_seconds{" in text
    for each in agents:
        await each.stop()
