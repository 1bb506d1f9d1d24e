"""The agent's command line."""

from __future__ import annotations

from tests.agent.harness import a_plan, exit_of


async def test_no_dashes_are_needed_before_the_command(pod, coordinator):
    (pod.folder / "x.py").write_text("print('it runs')")
    pod.start("python3", "x.py", dashes=())
    assert (await coordinator.wait_for(lambda r: r.contract)).problem is None, "the command was read whole"
    coordinator.order(plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.plan and r.stopped)
    assert exit_of(report).clean
    await pod.printed("it runs")
