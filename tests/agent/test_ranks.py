"""Real agents, real ranks: how ranks start, end, are killed, and what is told about it."""

from __future__ import annotations

from tests.agent.harness import a_plan, exit_of


async def test_a_rank_runs_to_its_end_and_the_agent_leaves_on_release(pod, coordinator):
    (pod.folder / "x.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    pod.start("python3", "x.py")
    plan = a_plan()
    coordinator.order(plan=plan)
    report = await coordinator.wait_for(lambda r: r.plan and r.stopped)
    assert exit_of(report).clean
    assert exit_of(report).reached_end
    coordinator.order(complete=plan.epoch)
    await coordinator.wait_for(lambda r: r.completed == plan.epoch)
    coordinator.order(release=True)
    assert await pod.exit_code() == 0
    assert "[rank 0] rank 0 of 1" in pod.text()
