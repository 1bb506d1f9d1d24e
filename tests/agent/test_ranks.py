"""Real agents, real ranks, no torch: how ranks end and are killed, and what is reported about it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from lab.waiting import wait_until_async
from tests.agent.harness import a_plan, exit_of

from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.messages import RankPhase

REAL_PYTHON = str(Path(sys.executable).resolve())
SLEEP = "import os, time\nprint('pid', os.getpid())\nwhile True: time.sleep(0.1)\n"


async def started(pod, coordinator, script, *, processes=1, **environment):
    """The pod runs `script` in world 1."""
    (pod.folder / "x.py").write_text(script)
    pod.start("python3", "x.py", **environment)
    coordinator.order(plan=a_plan(processes=processes))
    await coordinator.wait_for(lambda r: r.plan and r.ranks[0].phase is not RankPhase.STARTING)


async def pids(pod, count=1):
    """Output of `print('pid', ...)`."""
    await wait_until_async(pod.text, lambda: pod.text().count("pid ") >= count)
    return [int(line.split()[-1]) for line in pod.text().splitlines() if "] pid " in line]


async def test_a_rank_runs_to_its_end_and_the_agent_leaves_on_release(pod, coordinator):
    await started(
        pod, coordinator, "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    )
    report = await coordinator.wait_for(lambda r: r.plan and r.stopped)
    assert exit_of(report).clean
    assert exit_of(report).reached_end
    coordinator.order(complete=a_plan().world_id)
    await coordinator.wait_for(lambda r: r.completed == a_plan().world_id)
    coordinator.order(release=True)
    assert await pod.exit_code() == 0
    assert "[rank 0] rank 0 of 1" in pod.text()
    assert not (pod.folder / "state").exists()


@pytest.mark.parametrize(
    ("script", "code", "number", "fingerprint", "message"),
    [
        ("import sys; sys.exit(7)", 7, None, "exit 7", ""),
        ("import os; os._exit(8)", 8, None, "exit 8", ""),
        ("import os; os.kill(os.getpid(), 9)", None, 9, "SIGKILL", ""),
        ("import os; os.kill(os.getpid(), 11)", None, 11, "SIGSEGV", ""),
        (
            "def f():\n  [][1]\nf()",
            1,
            None,
            "IndexError at x.py:2",
            "IndexError: list index out of range (x.py:2)",
        ),
        ("import json\njson.loads('{')", 1, None, "JSONDecodeError at x.py:2", None),
        ("x = = 1", 1, None, "SyntaxError at x.py:1", None),
    ],
)
async def test_how_a_rank_ended_is_reported(pod, coordinator, script, code, number, fingerprint, message):
    await started(pod, coordinator, f"{script}\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert (exit.code, exit.signal, exit.fingerprint) == (code, number, fingerprint)
    assert message is None or exit.message == message
    assert not exit.reached_end
    assert not exit.killed


async def test_the_last_lines_travel_with_the_exit_and_show_no_frame_of_ours(pod, coordinator):
    lines = "for i in range(50): print('line', i)\n"
    await started(pod, coordinator, f"{lines}raise RuntimeError('the end')\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert len(exit.last_lines) == 20
    assert exit.last_lines[-1] == "RuntimeError: the end"
    assert "line 49" in exit.last_lines
    frames = [line for line in exit.last_lines if 'File "' in line]
    assert len(frames) == 1
    assert '/x.py", line 2, in <module>' in frames[0]


async def test_a_message_without_a_line_end_is_received(pod, coordinator):
    await started(pod, coordinator, "import os; os.write(1, b'\\xff half'); os._exit(3)\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert exit.last_lines == ("\ufffd half",)


DAEMON = """
import os, signal, time
def become_a_daemon():
    if os.fork(): return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork(): os._exit(0)
    print('pid', os.getpid(), flush=True)
    {clear}
    time.sleep(1000)
become_a_daemon()
time.sleep(1000)
"""
FORGET = "os.execve('/bin/sleep', ['sleep', '1000'], {'ROPETEAM_TEST_POD': os.environ['ROPETEAM_TEST_POD']})"


@pytest.mark.parametrize("clear", ["pass", FORGET])
async def test_all_descendants_are_dead_when_the_exit_is_reported(pod, coordinator, clear):
    await started(pod, coordinator, DAEMON.format(clear=clear))
    (daemon,) = await pids(pod)
    rank = next(pid for pid, line in pod.living().items() if "rank.py" in line and pid != daemon)
    os.kill(rank, signal.SIGKILL)
    await coordinator.wait_for(lambda r: r.plan and r.stopped)
    assert set(pod.living()) == {pod.pid}


async def test_a_deadly_signal_is_reported_before_the_rank_is_gone(pod, coordinator):
    await started(pod, coordinator, SLEEP)
    (rank,) = await pids(pod)
    os.kill(rank, signal.SIGKILL)
    gone = await coordinator.wait_for(lambda r: r.stopped)
    dying = next(r for r in coordinator.history if r.ranks and r.ranks[0].phase is RankPhase.EXITED)
    assert not dying.stopped
    assert exit_of(dying).signal == exit_of(gone).signal == signal.SIGKILL


async def test_a_clean_exit_leaves_nothing_behind_and_spares_the_other_rank(make_pod, coordinator):
    pod = make_pod(processes=2)
    script = "import os\nif os.environ['RANK'] == '1':\n  if os.fork(): os._exit(0)\n  os.setsid()\n" + SLEEP
    await started(pod, coordinator, script, processes=2)
    await coordinator.wait_for(lambda r: r.plan and r.ranks[1].exit)
    (lives,) = [pid for pid in pod.living() if pid != pod.pid]
    await pod.printed(f"[rank 0] pid {lives}\n")
    assert not coordinator.report.stopped


async def test_no_plan_kills_ranks_that_ignore_sigterm(make_pod, coordinator):
    pod = make_pod(processes=2)
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEP}"
    await started(pod, coordinator, script, processes=2)
    await pids(pod, 2)
    coordinator.order(plan=None)
    report = await coordinator.wait_for(lambda r: r.stopped)
    assert set(pod.living()) == {pod.pid}
    assert [rank.exit.signal for rank in report.ranks] == [9, 9]
    assert all(rank.exit.killed for rank in report.ranks)


async def test_the_next_world_follows_in_place(pod, coordinator):
    await started(pod, coordinator, SLEEP)
    first = await pids(pod)
    coordinator.order(plan=a_plan(2))
    await coordinator.wait_for(lambda r: r.plan == a_plan(2) and r.ranks[0].phase is RankPhase.RUNNING)
    second = await pids(pod, 2)
    assert set(pod.living()) == {pod.pid, second[-1]}
    assert first[0] != second[-1]


async def test_terminate_is_a_sigterm_that_a_script_may_use(pod, coordinator):
    script = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n{SLEEP}"
    await started(pod, coordinator, script)
    await pids(pod)
    coordinator.order(pause=a_plan().world_id, terminate=True)
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert (exit.code, exit.killed) == (5, True)


async def test_sigterm_of_the_pod_is_reported_and_leave_ends_it(pod, coordinator):
    await started(pod, coordinator, SLEEP)
    pod.signal(signal.SIGTERM)
    await coordinator.wait_for(lambda r: r.terminating)
    coordinator.order(leave=True)
    assert await pod.exit_code() == 143
    await pod.nothing_lives()


async def test_sigterm_without_a_coordinator_ends_the_pod(pod, coordinator):
    await started(pod, coordinator, SLEEP)
    await coordinator.stop()
    pod.signal(signal.SIGTERM)
    assert await pod.exit_code() == 143
    await pod.nothing_lives()


async def test_ranks_live_on_while_the_coordinator_is_away_and_die_at_the_fence(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, fence=3))
    await started(pod, coordinator, SLEEP)
    await pids(pod)
    port = coordinator.port
    await coordinator.stop()
    await pod.printed("no connection to the coordinator at")
    await wait_until_async(lambda: str(pod.living()), lambda: set(pod.living()) == {pod.pid})
    assert pod.process.poll() is None
    await coordinator.start(port)
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert exit.fingerprint == "fenced"


@pytest.mark.parametrize("greets_only", [True, False])
async def test_a_peer_that_greets_and_orders_nothing_keeps_no_rank_alive(make_pod, coordinator, greets_only):
    """One that says nothing, and one that ends each connection after its greeting."""
    pod = make_pod(timeouts=Timeouts(lost=2, fence=3))
    await started(pod, coordinator, SLEEP)
    await pids(pod)
    coordinator.silent = True
    greeted = coordinator.connections
    if not greets_only:
        coordinator.dropped_links = True
        await coordinator.drop_link()
    await wait_until_async(lambda: str(pod.living()), lambda: set(pod.living()) == {pod.pid})
    if not greets_only:
        assert coordinator.connections > greeted + 2, "it came again and again"
    coordinator.silent = coordinator.dropped_links = False
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert exit.fingerprint == "fenced"


async def test_sigkill_of_the_agent_leaves_no_rank(make_pod, coordinator):
    pod = make_pod(processes=2)
    await started(pod, coordinator, SLEEP, processes=2)
    await pids(pod, 2)
    pod.signal(signal.SIGKILL)
    await pod.nothing_lives()


async def test_a_shell_line_runs_once_per_pod(make_pod, coordinator):
    pod = make_pod(processes=2)
    pod.start("sh", "-c", "echo node $NODE_RANK of $NNODES with $NPROC_PER_NODE; exit 4")
    coordinator.order(plan=a_plan(processes=2))
    report = await coordinator.wait_for(lambda r: r.plan and r.stopped)
    assert [rank.exit.code for rank in report.ranks] == [4, 4]
    assert report.launcher == "PerPod (sh)"
    await pod.printed("node 0 of 1 with 2")


@pytest.mark.parametrize(
    ("command", "reason", "named"),
    [
        (("no-such-program", "x"), "CommandNotFound", "no-such-program"),
        (
            ("train.py", "x"),
            "CommandNotFound",
            "begin spec.command with a program, as in [torchrun, train.py]",
        ),
        (("python3", "no-such-script.py"), "CommandNotFound", "no-such-script.py"),
        (("torchrun", "--nnope", "x.py"), "LauncherRefused", "--nnope"),
    ],
)
async def test_a_command_that_cannot_work_is_a_problem_at_once(pod, coordinator, command, reason, named):
    pod.start(*command)
    coordinator.order(plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.problem)
    assert report.problem.reason.value == reason
    assert named in report.problem.message
    assert report.plan is None


async def test_an_interpreter_without_torch_is_a_problem_that_names_it(pod, coordinator, tmp_path):
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env -i PATH="$PATH" "$REAL" -S "$@"\n')
    bare.chmod(0o755)
    (pod.folder / "x.py").write_text("")
    pod.start(str(bare), "x.py", ROPETEAM_STORE="", REAL=REAL_PYTHON)
    report = await coordinator.wait_for(lambda r: r.problem)
    assert report.problem.reason.value == "InterpreterWithoutTorch"
    assert str(bare) in report.problem.message
