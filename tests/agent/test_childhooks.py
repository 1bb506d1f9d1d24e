"""Any Python process below a rank reports to the agent, and changes nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ropeteam_trainer.agent.machine import childreports
from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.local import FromRank

JOIN = """
import time, torch.distributed as dist
dist.init_process_group('gloo', **{})
store = dist.distributed_c10d._get_default_store()
store.add('here', 1)
while store.add('here', 0) < dist.get_world_size():
    time.sleep(0.01)  # who ends sooner resets connections that others are making
dist.destroy_process_group()
"""
_LAST = b"last\n"


class Site:
    """Our folder on PYTHONPATH, and a socket in the agent's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[bytes] = []
        self._all_read = threading.Event()
        (folder / "shims").mkdir()
        self.shims = write_shims(folder / "shims")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "s"))
        self._listener.listen()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                self.lines += lines
            if self.lines[-1:] == [_LAST]:
                self.lines.pop()
                self._all_read.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        ours = {"PYTHONPATH": self.shims.python_path(env), config.AGENT_SOCKET: str(self.folder / "s")}
        base = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.Popen(
            [sys.executable, *argv], env=base | env | ours, cwd=self.folder, text=True, stdout=-1, stderr=-1
        )

    def run(self, *argv: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*argv, **env)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    @property
    def received(self) -> list[FromRank]:
        """By all that have ended: connections are read one after the other, so ours is the last."""
        self._all_read.clear()
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(str(self.folder / "s"))
            ours.sendall(_LAST)
        assert self._all_read.wait(60)
        return [codec.decode(FromRank, line) for line in self.lines]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_an_exception_is_reported_and_printed_as_ever(site: Site) -> None:
    (site.folder / "x.py").write_text("def f():\n    raise ValueError('bad lr')\nf()\n")
    code, _, err = site.run("x.py", RANK="3")
    assert code == 1
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert "sitecustomize" not in err
    (received,) = site.received
    assert (received.message, received.rank, received.child) == ("ValueError: bad lr (x.py:2)", 3, True)
    assert received.error_class == "builtins.ValueError"


def test_a_process_pays_for_no_torch_and_sees_its_own_path(site: Site) -> None:
    probe = "import sys; print(sys.path, 'torch' in sys.modules, 'json' in sys.modules)"
    _, ours, _ = site.run("-c", probe)
    plain = [sys.executable, "-c", probe]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    assert ours == subprocess.check_output(plain, cwd=site.folder, env=environment, text=True)
    assert site.received == []


def test_the_users_own_sitecustomize_runs(site: Site) -> None:
    (site.folder / "theirs").mkdir()
    (site.folder / "theirs" / "sitecustomize.py").write_text("print('theirs'); import sys; sys.mine = 1")
    probe = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__); raise KeyError(1)"
    _, out, _ = site.run("-c", probe, PYTHONPATH=str(site.folder / "theirs"))
    assert out.split() == ["theirs", "1", str(site.folder / "theirs" / "sitecustomize.py")]
    assert site.received[0].message == "KeyError: 1 (<string>:1)"


def test_members_of_one_group_report_the_same_name_and_others_another(site: Site) -> None:
    def group(store: str, size: int) -> list[subprocess.Popen[str]]:
        where = f"init_method='file://{site.folder}/{store}'"
        return [
            site.start("-c", JOIN.format(f"dict({where}, rank={rank}, world_size={size})"))
            for rank in range(size)
        ]

    for process in [*group("one", 2), *group("two", 1)]:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    groups = [received.group for received in site.received if received.group]
    assert sorted((each.size, each.rank) for each in groups) == [(1, 0), (2, 0), (2, 1)]
    assert len({each.id for each in groups}) == 2
    assert "" not in {each.id for each in groups}
    assert {each.who for each in groups} == {"-c"}
    assert [received.joins for received in site.received if not received.group] == [True] * 3, (
        "each before it waited"
    )


@pytest.mark.parametrize("how", ["", "init_method='tcp://127.0.0.1:{}', rank=0, world_size=1"])
def test_a_script_that_names_its_rendezvous_hosts_the_store_there(site: Site, how: str) -> None:
    """TORCHELASTIC_USE_AGENT_STORE made it wait for a store that nobody hosts."""
    with socket.socket() as place:  # bound and never listening: the port is nobody else's
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        code, _, err = site.run(
            *("-c", JOIN.format(f"dict({how.format(port)})")),
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"},
            **{"TORCHELASTIC_USE_AGENT_STORE": "True", config.STORE_ADDRESS: "10.0.0.1:1234"},
        )
    assert code == 0, err
    assert [received.group.size for received in site.received if received.group] == [1]


AGAIN = """
import os, time, torch, torch.distributed as dist
for _ in range(3):
    time.sleep(0.5 * int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""


def test_a_group_of_all_ranks_can_be_formed_again_and_again(site: Site) -> None:
    """torch itself reads the addresses of the group before: under torchrun this fails as a rule."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    where |= {"TORCHELASTIC_USE_AGENT_STORE": "True", config.STORE_ADDRESS: f"127.0.0.1:{store.port}"}
    ranks = [site.start("-c", AGAIN, RANK=str(rank), **where) for rank in range(2)]
    errors = [process.communicate(timeout=300)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    assert len({received.group.id for received in site.received if received.group}) == 3


KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SPAWN = """
import os, sys, torch.multiprocessing as mp
def f(rank):
    if rank == 1:
        {}
if __name__ == "__main__":
    mp.spawn(f, nprocs=2)
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {KILL!r}], check=True)",
            (None, 9, "CalledProcessError: "),
        ),
        (SPAWN.format(KILL), (1, 9, "")),
        (SPAWN.format("sys.exit(3)"), (1, None, "")),
    ],
    ids=["subprocess", "killed", "code"],
)
def test_a_process_that_started_another_reports_how_that_one_ended(
    site: Site, script: str, expected: tuple[int | None, int | None, str]
) -> None:
    (site.folder / "x.py").write_text(script)
    site.run("x.py")
    received = site.received[-1]
    assert received.launcher
    assert (received.rank, received.signal) == expected[:2]
    assert received.message.startswith(expected[2])
    assert bool(received.message) == bool(expected[2])
    assert received.code == (3 if "sys.exit(3)" in script else None)


BOTH_GONE = """
import os, signal, sys, torch.multiprocessing as mp
def f(i):
    if i == 0:
        raise RuntimeError("Connection closed by peer")
    {}
if __name__ == "__main__":
    context = mp.start_processes(f, nprocs=2, join=False, start_method="{}")
    for process in context.processes:
        process.join()
    while not context.join():
        pass
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize(
    ("way", "signal", "code", "message"),
    [
        ("raise ValueError('bad')", None, None, "ValueError: bad (x.py:6)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 9, None, ""),
        ("sys.exit(3)", None, 3, ""),
    ],
    ids=["raised", "killed", "code"],
)
def test_of_processes_of_mp_spawn_the_one_that_went_first_is_known(
    site: Site, way: str, signal: int | None, code: int | None, message: str, method: str
) -> None:
    """The parent takes any of those that are gone when it looks: here both are, and it takes process 0."""
    (site.folder / "x.py").write_text(BOTH_GONE.format(way, method))
    _, _, err = site.run("x.py", RANK="0")
    assert "Process 0 terminated" in err, "as ever"
    cause = cause_of(site)
    assert (cause.rank, cause.signal, cause.code, cause.message) == (1, signal, code, message)


def cause_of(site: Site) -> FromRank:
    """The one of all reported errors that the agent takes."""
    known: FromRank | None = None
    for received in site.received:
        if received.error_type is not None:
            known = received if childreports.is_nearer_to_cause(known, received) else known
    assert known
    return known


CHILD = """
import multiprocessing as mp
def f():
    raise ValueError("bad")
if __name__ == "__main__":
    child = mp.get_context("{}").Process(target=f)
    child.start()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_reports_why_it_ends(site: Site, method: str) -> None:
    (site.folder / "x.py").write_text(CHILD.format(method))
    _, out, err = site.run("x.py", RANK="1")
    (received,) = site.received
    assert (received.message, received.rank, received.child) == ("ValueError: bad (x.py:4)", 1, True)
    assert (out, "ValueError: bad" in err) == ("1\n", True), "and it ends as ever"


def test_torchrun_reports_the_first_that_failed(site: Site) -> None:
    (site.folder / "x.py").write_text(f"import os\nif os.environ['RANK'] == '1':\n    {KILL}\n")
    site.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "x.py")
    assert [(received.rank, received.signal, received.launcher) for received in site.received] == [
        (1, 9, True)
    ]


SECOND_GOES_FIRST = """
import os, sys, time
if os.environ["RANK"] == "0":
    while not os.path.exists("goes"):
        time.sleep(0.01)
    raise RuntimeError("Connection closed by peer")
open("goes", "w").close()
"""


@pytest.mark.parametrize(("way", "signal", "code"), [(KILL, 9, None), ("sys.exit(3)", None, 3)])
def test_of_those_that_torchrun_finds_ended_at_once_the_one_that_missed_no_peer_counts(
    site: Site, way: str, signal: int | None, code: int | None
) -> None:
    """torchrun looks every three seconds here, and takes rank 0."""
    (site.folder / "x.py").write_text(SECOND_GOES_FIRST + way)
    site.run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=3", "x.py"
    )
    cause = cause_of(site)
    assert (cause.rank, cause.signal, cause.code) == (1, signal, code)


def test_a_member_of_a_group_that_ends_is_reported(site: Site) -> None:
    where = f"dict(init_method='file://{site.folder}/one', rank=0, world_size=1)"
    site.run("-c", JOIN.format(where), RANK="5")
    assert [(received.ended, received.rank) for received in site.received if received.ended] == [(True, 5)]


def test_a_group_that_is_formed_twice_is_reported_with_the_line_of_the_script(site: Site) -> None:
    """Not with that of our hook around init_process_group."""
    form = "dist.init_process_group('gloo', init_method='file://{}', rank=0, world_size=1)\n".format
    twice = (form(site.folder / name) for name in ("one", "two"))
    (site.folder / "train.py").write_text("import torch.distributed as dist\n" + "".join(twice))
    assert site.run("train.py")[0] == 1
    (received,) = [received for received in site.received if received.error_type]
    assert received.message.endswith("twice! (train.py:3)")
    assert received.fingerprint == "ValueError at train.py:3"


def test_who_does_not_reach_the_agent_goes_on(site: Site) -> None:
    site.close()
    where = f"dict(init_method='file://{site.folder}/one', rank=0, world_size=1)"
    code, out, err = site.run("-c", JOIN.format(where) + "print('on')")
    assert (code, out) == (0, "on\n"), err
    assert "a process group is not reported to the agent" in err
