"""A rank that uses the library, as the agent sees it: page and socket, spoken here without torch."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from tests.agent.harness import a_plan, exit_of, rank

from ropeteam_trainer.agent.script.childhooks import STACKS_SIGNAL
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.config import CheckpointConfig, Timeouts
from ropeteam_trainer.contract.messages import Grant, RankPhase
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile

LIBRARY = """
import json, mmap, os, socket, threading, time
from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, write_beat

page = mmap.mmap(os.open(os.environ["ROPETEAM_RANK_PAGE"], os.O_RDWR), PAGE_SIZE)
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["ROPETEAM_RANK_SOCKET"])
inbox = []

def say(**words):
    agent.sendall(json.dumps(words).encode() + b"\\n")

def listen():
    for line in agent.makefile():
        inbox.append(json.loads(line))
        print("told", line, flush=True)

def beat(step, phase="train"):
    write_beat(memoryview(page), Beat(step, step, time.monotonic_ns(), phase, step * 10.0), step)

threading.Thread(target=listen, daemon=True).start()
say(hello_pid=os.getpid(), rank=0, rung=2)
say(total_steps=1000, loss="1.5")
"""
STEPS = """
for step in range(1, 10**6):
    beat(step)
    time.sleep(0.02)
"""


async def started(pod, coordinator, script):
    (pod.folder / "x.py").write_text(LIBRARY + script)
    pod.start("python3", "x.py")
    coordinator.order(plan=a_plan())
    # Two ways to the agent, in any order: steps by the page, words by the socket.
    return await coordinator.wait_for(lambda r: r.progress.loss and rank(r, 0).steps_here > 0)


async def test_progress_of_the_script_is_in_the_agents_report(pod, coordinator):
    report = await started(pod, coordinator, STEPS)
    assert report.feature_level == 2
    report = await coordinator.wait_for(lambda r: r.progress.samples_per_second > 0)
    assert (report.progress.total_steps, report.progress.loss, report.progress.phase) == (
        1000,
        "1.5",
        "train",
    )
    assert rank(report, 0).phase is RankPhase.RUNNING


WITHOUT_TICKS = """
import sys
from ropeteam_trainer.agent import main
assert main.TICK_SECONDS < 1
main.TICK_SECONDS = 1000
sys.exit(main.main())
"""


async def test_the_report_that_acknowledges_a_pause_knows_all_steps_before_it(pod, coordinator):
    (pod.folder / "x.py").write_text(f"{LIBRARY}beat(4)\nprint('four steps')\ntime.sleep(1000)\n")
    pod.start("python3", "x.py", agent=(sys.executable, "-c", WITHOUT_TICKS))
    coordinator.order(plan=a_plan())
    await pod.printed("four steps")
    number = coordinator.order(pause=a_plan().world_id)
    await coordinator.wait_for(lambda r: r.applied_orders == number)
    applied = next(report for report in coordinator.history if report.applied_orders == number)
    assert rank(applied, 0).steps_here == 4


async def test_a_stopped_rank_is_killed_as_hung(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, hang=1))
    await started(pod, coordinator, f"beat(1)\nos.kill(os.getpid(), {signal.SIGSTOP:d})\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert (exit.signal, exit.hung, exit.killed) == (9, True, False)
    assert re.match(r"no step for [1-9]\d* s after step 1, ", exit.message), "1 s, and until it was seen"


HANGS = """
import subprocess, sys
command = "import time\\nprint('child', flush=True)\\ntime.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE)
child.stdout.readline()
def load(): time.sleep(1000)
"""


async def test_a_rank_that_hangs_shows_all_its_stacks_and_those_of_its_processes(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, hang=10))  # stacks are requested 2 s before it is killed
    await started(pod, coordinator, f"{HANGS}beat(1)\nload()\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert exit.message.endswith("spec.recovery.hangSeconds), in x.py:29 (load)")
    assert exit.last_lines[-1].endswith('rank.py", line 4 in <module>'), "the rank's own"
    await pod.printed('[rank 0]   File "<string>", line 3 in <module>')
    assert " in listen\n" in pod.text(), "another thread"


async def test_a_rank_that_does_not_catch_the_signal_is_not_sent_it(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, hang=2))
    script = f"import signal\nsignal.signal({STACKS_SIGNAL}, signal.SIG_DFL)\nbeat(1)\ntime.sleep(1000)\n"
    await started(pod, coordinator, script)
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert (exit.signal, exit.hung) == (9, True)
    assert exit.message.endswith("spec.recovery.hangSeconds)")


async def test_a_rank_that_evaluates_is_not_hung(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, hang=1))
    await started(pod, coordinator, "beat(1)\nbeat(2, 'eval')\ntime.sleep(3)\nbeat(3)\nos._exit(4)\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert (exit.code, exit.hung) == (4, False)


async def test_a_first_step_that_never_comes(make_pod, coordinator):
    pod = make_pod(timeouts=Timeouts(lost=2, start=1))
    (pod.folder / "x.py").write_text(f"{LIBRARY}time.sleep(1000)")
    pod.start("python3", "x.py")
    coordinator.order(plan=a_plan())
    exit = exit_of(await coordinator.wait_for(lambda r: r.plan and r.stopped))
    assert exit.late_start


async def test_a_finished_rank_that_aborts_had_reached_its_end(pod, coordinator):
    await started(pod, coordinator, "import atexit\natexit.register(os.abort)\nbeat(7)\n")
    exit = exit_of(await coordinator.wait_for(lambda r: r.stopped))
    assert (exit.signal, exit.reached_end, exit.fingerprint) == (6, True, "SIGABRT")
    assert rank(coordinator.report, 0).step == 7


PAUSES = """
beat(1)
while not inbox or not inbox[-1]["pause"]: time.sleep(0.01)
say(paused=1)
while inbox[-1]["stop_at"] is None: time.sleep(0.01)
for step in range(2, inbox[-1]["stop_at"] + 1): beat(step)
say(shard_step=step, shard_files=[{"name": "state.pt", "size": 3, "sha256": "abc"}])
say(drained=step)
while inbox[-1]["committed_step"] is None: time.sleep(0.01)
time.sleep(1000)
"""


async def test_a_drain_loses_no_step_and_ends_in_a_manifest(make_pod, coordinator, tmp_path):
    folder = tmp_path / "checkpoints"
    pod = make_pod(checkpoint=CheckpointConfig(str(folder)))
    await started(pod, coordinator, PAUSES)
    coordinator.order(pause=a_plan().world_id)
    report = await coordinator.wait_for(lambda r: rank(r, 0).phase is RankPhase.PAUSED)
    assert rank(report, 0).step == 1
    coordinator.order(stop_at=4)
    report = await coordinator.wait_for(lambda r: rank(r, 0).phase is RankPhase.DRAINED)
    assert rank(report, 0).step == 4
    (shard,) = report.shards
    assert (shard.step, shard.files) == (4, (ShardFile("state.pt", 3, "abc"),))
    ref = CheckpointRef(4, a_plan().world_id)
    (folder / "run-uid-j/step-4/1.0.1").mkdir(parents=True)
    coordinator.order(grant=Grant(ref, 1, shard.files, None))
    report = await coordinator.wait_for(lambda r: r.committed)
    assert report.committed.step == 4
    assert report.shards == ()
    assert (folder / "run-uid-j/step-4/1.0.1" / MANIFEST).exists()
    await pod.printed('"committed_step":4')


async def test_a_grant_waits_for_its_folder(make_pod, coordinator, tmp_path):
    pod = make_pod(checkpoint=CheckpointConfig(str(tmp_path / "checkpoints")))
    await started(pod, coordinator, STEPS)
    coordinator.order(grant=Grant(CheckpointRef(4, a_plan().world_id), 1, (), None))
    await pod.printed("the manifest of step 4 cannot be written")
    (tmp_path / "checkpoints/run-uid-j/step-4/1.0.1").mkdir(parents=True)
    await coordinator.wait_for(lambda r: r.committed)


@pytest.mark.parametrize("line", ["not json", '{"shard_step": "four"}', '{"hello_pid": 1'])
async def test_nonsense_from_a_rank_closes_its_connection_only(pod, coordinator, line):
    script = "second = socket.socket(socket.AF_UNIX)\nsecond.connect(agent.getpeername())\n"
    script += (
        f"second.sendall({line!r}.encode() + b'\\n')\nprint('rest', second.recv(9), flush=True)\n{STEPS}"
    )
    report = await started(pod, coordinator, script)
    await pod.printed("rest b''")
    await pod.printed("because it is malformed")
    seen = rank(report, 0).step
    await coordinator.wait_for(lambda r: rank(r, 0).step > seen)


@pytest.fixture
def named(make_pod, tmp_path):
    """A pod of a job that names a Secret with this entry; keys of the folder itself are there too."""

    def make(entry):
        (tmp_path / "mounted").mkdir()
        if entry is not None:
            (tmp_path / "mounted" / seals.FILE).write_text(entry)
        (tmp_path / seals.FILE).write_text(seals.keys_text((b"folder",)))
        signing = str(tmp_path / "mounted" / seals.FILE)
        return make_pod(checkpoint=CheckpointConfig(str(tmp_path / "checkpoints"), signing=signing))

    return make


async def test_a_named_key_signs_manifests_and_the_journal(named, coordinator, tmp_path):
    pod = named("aa" * 32 + "\n" + "bb" * 32)
    await started(pod, coordinator, STEPS)
    (tmp_path / "checkpoints/run-uid-j/step-4/1.0.1").mkdir(parents=True)
    coordinator.order(grant=Grant(CheckpointRef(4, a_plan().world_id), 1, (), None))
    await coordinator.wait_for(lambda r: r.committed)
    first, _ = seals.read_secret_keys(str(tmp_path / "mounted" / seals.FILE))
    (manifest,) = (tmp_path / "checkpoints").glob("run-*/step-4/*/manifest.json")
    (entry,) = (tmp_path / "checkpoints").glob("run-*/journal/*.commit")
    assert seals.is_valid("manifest.json", manifest.read_bytes(), (first,))
    assert seals.is_valid("journal", entry.read_bytes(), seals.run_keys((first,), "uid-j"))


@pytest.mark.parametrize(
    ("entry", "problem"), [(None, "has no entry checkpoint-keys"), ("ab" * 31, "line 1"), ("\n", "is empty")]
)
async def test_named_keys_that_cannot_be_used_are_a_problem_and_nothing_is_written(
    named, coordinator, tmp_path, entry, problem
):
    pod = named(entry)
    (pod.folder / "x.py").write_text("print('began')")
    pod.start("python3", "x.py")
    coordinator.order(plan=a_plan())
    report = await coordinator.wait_for(lambda r: r.problem and r.applied_orders)
    assert report.problem.reason.value == "CheckpointNotWritable"
    assert not report.problem.transient
    assert report.problem.message.startswith(
        "checkpoints cannot be signed: the Secret of spec.checkpoint.signing"
    )
    assert problem in report.problem.message
    assert report.ranks == ()
    assert not list((tmp_path / "checkpoints").iterdir())


async def test_a_checkpoint_folder_that_cannot_be_written_is_a_problem(make_pod, coordinator, tmp_path):
    (tmp_path / "file").write_text("")
    pod = make_pod(checkpoint=CheckpointConfig(str(tmp_path / "file/ckpt")))
    (pod.folder / "x.py").write_text("")
    pod.start("python3", "x.py")
    report = await coordinator.wait_for(lambda r: r.problem)
    assert report.problem.reason.value == "CheckpointNotWritable"
    assert "spec.checkpoint.volume" in report.problem.message
