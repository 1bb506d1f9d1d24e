"""Linux facts that the agent relies on."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from lab.waiting import wait_until

from ropeteam_trainer.agent.processes import proc


def test_a_process_and_its_descendants_are_found():
    child = subprocess.Popen(["sh", "-c", "sleep 100; true"])
    try:
        # its environment can be read only once exec is over
        wait_until("sleep is started", lambda: proc.descendants([child.pid], proc.living_processes()))
        table = proc.living_processes()
        assert table[child.pid].parent == os.getpid()
        assert child.pid in proc.descendants([os.getpid()], table)
        assert os.getpid() not in proc.descendants([child.pid], table)
        assert proc.environment_variable(child.pid, "PATH") == os.environ["PATH"]
        assert proc.environment_variable(child.pid, "PAT") == ""
    finally:
        for pid in proc.descendants([child.pid], proc.living_processes()) | {child.pid}:
            proc.send_signal(pid)
        child.wait()
    assert child.pid not in proc.living_processes()
    proc.send_signal(child.pid)
    assert proc.environment_variable(child.pid, "PATH") == ""


def test_who_was_stopped_by_a_signal_is_not_dying_of_it():
    child = subprocess.Popen(["sleep", "100"])
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert proc.deadly_signal(child.pid) is None
    finally:
        child.kill()
        child.wait()


def test_a_zombie_is_dead():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid not in proc.living_processes()
    child.wait()


def test_a_dying_process_shows_its_signal():
    child = subprocess.Popen(["sleep", "100"])
    assert proc.deadly_signal(child.pid) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.deadly_signal(child.pid) == 9
    child.wait()
    assert proc.deadly_signal(child.pid) is None


def test_a_process_that_ends_by_itself_dies_of_no_signal():
    child = subprocess.Popen(["false"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert proc.deadly_signal(child.pid) is None
    child.wait()


def test_the_interface_of_an_address():
    assert proc.interface_of("127.0.0.1") == proc.interface_of("127.8.9.1") == "lo"
    assert proc.interface_of("192.0.2.1") is None


def test_the_interface_of_an_ipv6_address(monkeypatch: pytest.MonkeyPatch):
    table = (
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
    )
    monkeypatch.setattr(proc, "_read_text", {"/proc/net/if_inet6": table}.__getitem__)
    assert (proc.interface_of("::1"), proc.interface_of("fd00::2")) == ("lo", "eth0")
    assert proc.interface_of("2001:db8::1") is None


def test_oom_kills_of_all_visible_cgroups_are_added_up(monkeypatch: pytest.MonkeyPatch):
    files = {
        "/proc/self/cgroup": "0::/kubepods/pod1\n",
        "/sys/fs/cgroup/kubepods/pod1/memory.events": "oom 9\noom_kill 2\noom_group_kill 4\n",
        "/sys/fs/cgroup/memory.events": "oom_kill 5\n",
    }
    monkeypatch.setattr(proc, "_read_text", lambda path: files.get(path, ""))
    assert proc.oom_kill_count() == 7
    files.clear()
    assert proc.oom_kill_count() == 0, "no file can be read"


@pytest.mark.parametrize(
    ("cgroups", "file"),
    [
        ("0::/kubepods/pod1\n", "/sys/fs/cgroup/kubepods/pod1/memory.events"),
        ("5:cpu,memory:/k8s.io/c1\n0::/\n", "/sys/fs/cgroup/memory/k8s.io/c1/memory.oom_control"),
    ],
)
def test_oom_kills_are_counted_in_either_version_of_cgroups(cgroups: str, file: str):
    found = list(proc._oom_count_files(cgroups))
    assert found[:2] == ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
    assert file in found
