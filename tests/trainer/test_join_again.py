"""A rank forms the process group of a later world, whose store ends meanwhile. Real store, real torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from lab.waiting import wait_until
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank import world as module
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.rank.world import World

STORE = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
while store.add("ropeteam/again/arrived", 0) == 0:
    time.sleep(0.01)
"""
"""Ends as soon as a rank has come, while that one waits for the other."""


class Rank:
    """The first of two ranks; the other never comes."""

    def __init__(self, pool: ThreadPoolExecutor, port: int, seconds: int = 60) -> None:
        """seconds: time limit of collectives."""
        self.is_over, self.looks = False, 0
        live = LiveWorld(WorldId(1, 0, 2), "127.0.0.1", port, (1,), WorldId(1, 0, 1))
        world = World(0, 2, torch.device("cpu"), seconds)
        self.joining: Future[None] = pool.submit(world.join_again, live, Mates(), self._look, lambda: None)

    def _look(self) -> bool:
        self.looks += 1
        return self.is_over


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.setenv(name, "0")
    store = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True)
    assert store.stdout is not None
    with ThreadPoolExecutor(1) as pool, store:
        rank = Rank(pool, int(store.stdout.readline()))
        store.wait(timeout=60)
        yield rank
        rank.is_over = True


def forms() -> bool:
    return any(thread.name == "ropeteam-group" for thread in threading.enumerate())


def test_when_its_store_has_ended_it_waits_until_its_agent_knows_and_lives_on(rank: Rank) -> None:
    wait_until("its attempt fails", lambda: not forms())
    seen = rank.looks
    wait_until("it looks again", lambda: rank.looks > seen + 10 or rank.joining.done())
    assert not rank.joining.done(), "it has failed to form the group, and waits"
    rank.is_over = True
    rank.joining.result(timeout=60)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_it_ends_if_its_agent_never_knows_of_a_loss(rank: Rank) -> None:
    with pytest.raises(ConnectionError, match="Connection closed by peer: no process group: "):
        rank.joining.result(timeout=60)


HOLES = """
import time, torch
from torch.distributed import TCPStore
from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.rank.world import World

def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0])

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
world = LiveWorld(WorldId(1, 0, 2), "127.0.0.1", store.port, (), WorldId(1, 0, 1))
tensors = [torch.ones(16_000) for _ in range(2000)]
full = resident()
del tensors[::2]
print("freed", full - resident())
World(0, 1, torch.device("cpu"), 60).join_again(world, Mates(), lambda: False, lambda: None)
for _ in range(500):
    time.sleep(0.01)
    if full - resident() > 30_000:
        print("returned")
        break
"""
"""Frees every second of 2,000 tensors of 64 kB."""


def test_memory_that_was_freed_meanwhile_is_returned_when_the_group_has_formed() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=False)
    freed, *returned = done.stdout.splitlines()
    assert int(freed.split()[1]) < 10_000, "the C library keeps it"
    assert returned == ["returned"], done.stderr


@pytest.mark.usefixtures("impatient")
def test_it_ends_if_another_never_comes_and_its_agent_knows_of_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.setenv(name, "0")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(1) as pool:
        joining = Rank(pool, store.port, seconds=1).joining
        with pytest.raises(ConnectionError, match="no process group: not all ranks have come within 1 s"):
            joining.result(timeout=60)
