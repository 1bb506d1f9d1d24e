"""The end of a local cluster, and of pods that do not want to end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from lab.local.client import CORE, Client, alive
from lab.waiting import wait_until_async, within
from tests.local.test_pods import pid_of

from ropeteam.local import __main__ as program
from ropeteam.local.node.container import Container


async def test_stop_leaves_no_process_no_file_and_no_lock(api: Client):
    cluster = api.cluster
    await api.run("p", "sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600", restartPolicy="Always")
    pod = await api.phase("p", "Running")
    await cluster.stop()
    assert not alive(pid_of(pod))
    assert os.listdir(cluster.home) == ["lock"]  # noqa: PTH208
    await cluster.start()
    await cluster.stop()


@pytest.mark.parametrize("by", ["the cluster", "its grace"])
async def test_a_kill_that_a_starting_shim_has_lost_comes_again(
    api: Client, monkeypatch: pytest.MonkeyPatch, by: str
):
    lost: list[int] = []

    def lossy(self: Container, number: int) -> None:
        if number == signal.SIGINT and not lost:
            lost.append(number)
        else:
            send(self, number)

    send = Container.signal
    monkeypatch.setattr(Container, "signal", lossy)
    await api.run("p", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    pod = await api.logged("p", "up")
    if by == "the cluster":
        await within("the cluster stops", api.cluster.stop())
    else:
        await api.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 1})

    async def is_dead() -> bool:
        return not alive(pid_of(pod))

    await wait_until_async("the process is dead", is_dead)
    assert lost == [signal.SIGINT]


async def test_a_second_signal_does_not_interrupt_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stopped: list[Path] = []

    async def cluster(home: Path) -> None:
        handled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR1)  # handled after it
            await within("the second signal is handled", handled.wait())
            asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
            stopped.append(home)

    monkeypatch.setattr(program, "run_until_cancelled", cluster)
    await program.main(tmp_path)
    assert stopped == [tmp_path]
