"""Where a rank stands: what faulthandler has written, and what is made of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.agent.life import Life, world_id
from tests.agent.test_pack import PYTHONS, interpreter

from ropeteam_trainer.agent.machine import stacks
from ropeteam_trainer.agent.machine.effects import KillRanks, ShowStacks
from ropeteam_trainer.agent.machine.events import StackShown
from ropeteam_trainer.agent.processes import proc
from ropeteam_trainer.agent.script import childhooks
from ropeteam_trainer.contract.messages import Hang

LIB = "/opt/conda/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
SHIM = "/ropeteam/agent.pyz/ropeteam_trainer/agent/script/rankmain.py"
MAIN = [("/app/train.py", 40, "main"), ("/app/train.py", 50, "<module>"), (SHIM, 70, "_run")]
ALL_REDUCE = [
    (f"{TORCH}/distributed/distributed_c10d.py", 3001, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
]
BACKWARD = [(f"{TORCH}/autograd/graph.py", 829, "_engine_run_backward")]
LOADER = [
    (f"{LIB}/threading.py", 331, "wait"),
    (f"{TORCH}/utils/data/dataloader.py", 1275, "_try_get_data"),
]
THREAD = [(f"{LIB}/threading.py", 331, "wait"), ("/app/other.py", 7, "watch")]


def written(frames: list[tuple[str, int, str]], title: str = "Thread") -> list[str]:
    head = f"{title} 0x00007f2b3c5d6e80 (most recent call first):"
    return [head, *(f'  File "{file}", line {line} in {name}' for file, line, name in frames)]


@pytest.mark.parametrize(
    ("frames", "where", "waits"),
    [
        ([("/app/train.py", 31, "load"), *MAIN], "train.py:31 (load)", False),
        (ALL_REDUCE + MAIN, "train.py:40 (main)", True),
        (BACKWARD + MAIN, "train.py:40 (main)", True),
        (LOADER + MAIN, "train.py:40 (main)", False),
        ([("/app/model.py", 9, "forward"), *BACKWARD, *MAIN], "model.py:9 (forward)", False),
        ([("<string>", 3, "<module>"), (SHIM, 70, "_run")], "<string>:3 (<module>)", False),
        ([("<frozen runpy>", 198, "f"), *MAIN], "train.py:40 (main)", False),
        ([*ALL_REDUCE, (SHIM, 70, "_run")], "distributed_c10d.py:3001 (all_reduce)", True),
        ([(f"{LIB}/x.py", 1, "\x1b[2J" + 300 * "f")], "x.py:1 (?[2J" + 188 * "f", False),
    ],
)
def test_it_is_the_innermost_frame_of_the_users_own_code(frames, where, waits):
    assert stacks.parse_hang(written(frames)) == Hang(where, waits)


def test_it_is_the_main_thread():
    assert stacks.parse_hang([*written(THREAD), *written(MAIN)]).where == "train.py:40 (main)", "the last"
    current = [*written(MAIN, "Current thread"), "", *written(THREAD)]
    assert stacks.parse_hang(current).where == "train.py:40 (main)", "the one that took the signal"


def test_it_is_found_behind_a_progress_bar_and_among_what_else_is_printed():
    bar, *rest = [*written(MAIN), "epoch 3"]
    assert stacks.parse_hang(["step 12", f" 12%|# | 12/100{bar}", *rest]).where == "train.py:40 (main)"
    assert stacks.parse_hang(['  File "/app/train.py", line 3 in main', "epoch 3"]) is None
    assert stacks.parse_hang([bar, "  <no Python frame>"]) is None


# ---- when it is requested


def a_life() -> Life:
    """Both ranks of this pod have made a step; a step may take 5 s."""
    return (
        Life()
        .running()
        .rank_sends(0, hello_pid=1, feature_level=1)
        .heartbeats(0, step=3)
        .heartbeats(1, step=3)
    )


def shown(life: Life, rank: int, where: str = "train.py:31 (load)") -> Life:
    return life.receives(StackShown(world_id(), rank, Hang(where)))


def test_stacks_of_all_ranks_of_the_pod_are_requested_once_before_one_is_killed():
    life = a_life()
    assert life.wait(3.9).did_no(ShowStacks)
    life.heartbeats(1, step=4)
    assert life.wait(0.2).did_a(ShowStacks) == ShowStacks(world_id(), (0, 1))
    shown(life, 0)
    assert life.wait(0.2).did_no(ShowStacks)
    assert [rank.hang for rank in life.report.ranks] == [Hang("train.py:31 (load)"), None]
    assert life.wait(1).did_a(KillRanks).ranks == (0,)
    life.died(0)
    exit = life.report.ranks[0].exit
    assert exit.message.endswith(
        "after step 3, in phase train (limit 5 s, spec.recovery.hangSeconds), in train.py:31 (load)"
    )


def test_a_rank_that_continues_hangs_nowhere_and_its_stacks_may_be_requested_again():
    life = shown(a_life().wait(4.1), 0).heartbeats(0, step=4)
    assert life.report.ranks[0].hang is None
    assert shown(life, 0).report.ranks[0].hang is None, "a late answer"
    assert life.heartbeats(1, step=4).wait(4.1).did_a(ShowStacks).ranks == (0, 1)


def test_stacks_are_requested_for_a_late_first_step_too():
    life = Life().running().rank_sends(0, hello_pid=1, feature_level=1)
    assert life.wait(481).did_a(ShowStacks).ranks == (0, 1)
    shown(life, 1).wait(120).died(0, 1)
    assert [rank.exit.message for rank in life.report.ranks] == [
        "no first step within spec.recovery.startSeconds (600 s)",
        "no first step within spec.recovery.startSeconds (600 s), in train.py:31 (load)",
    ]


def test_no_stacks_are_requested_without_a_hang_clock():
    assert Life().running().wait(10_000).did_no(ShowStacks), "reports no steps"
    assert a_life().heartbeats(0, 3, phase="eval").heartbeats(1, 3, phase="eval").wait(60).did_no(ShowStacks)


# ---- in a process

REQUEST = f"import os, signal, sys\nos.kill(os.getpid(), {childhooks.STACKS_SIGNAL})\nprint('goes on')\n"
THREADED = """\
import os, sys, threading
sys.path.append({root!r})
from ropeteam_trainer.agent.script import childhooks
childhooks.install()
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
while sys._current_frames()[other.ident].f_code.co_name != "wait": pass
def main(): os.kill(os.getpid(), {signal})
main()
"""
ITS_OWN = f"signal.signal({childhooks.STACKS_SIGNAL}, lambda *_: print('its own'))\n"


def test_a_rank_shows_its_stacks_and_goes_on(shim, tmp_path):
    (tmp_path / "x.py").write_text(REQUEST)
    done = shim("script", "x.py")
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert stacks.parse_hang(done.stderr.splitlines()) == Hang("x.py:2 (<module>)")


@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_writes_what_is_read(version, tmp_path):
    if (python := interpreter(version)) is None:
        pytest.skip(f"no Python {version} on this machine")
    root = childhooks.__file__.removesuffix("/ropeteam_trainer/agent/script/childhooks.py")
    (tmp_path / "x.py").write_text(THREADED.format(root=root, signal=childhooks.STACKS_SIGNAL))
    done = subprocess.run([python, str(tmp_path / "x.py")], capture_output=True, text=True)
    assert stacks.parse_hang(done.stderr.splitlines()) == Hang("x.py:8 (main)"), done.stderr
    assert " in wait\n" in done.stderr, "the other thread"


def test_a_script_keeps_its_own_handler(shim, tmp_path):
    (tmp_path / "x.py").write_text("import signal\n" + ITS_OWN + REQUEST)
    done = shim("script", "x.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "its own\ngoes on\n", "")
    taken = ITS_OWN + "from ropeteam_trainer.agent.script import childhooks\nchildhooks.install()\n" + REQUEST
    done = subprocess.run([sys.executable, "-c", f"import signal\n{taken}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("its own\ngoes on\n", "")


def test_a_process_without_a_handler_is_known():
    assert not proc.has_signal_handler(os.getpid(), childhooks.STACKS_SIGNAL)
    previous = signal.signal(childhooks.STACKS_SIGNAL, lambda *_: None)
    assert proc.has_signal_handler(os.getpid(), childhooks.STACKS_SIGNAL)
    signal.signal(childhooks.STACKS_SIGNAL, previous)
    assert not proc.has_signal_handler(1 << 30, childhooks.STACKS_SIGNAL), "it is gone"
