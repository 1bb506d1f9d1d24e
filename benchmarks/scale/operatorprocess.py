"""The operator as a process, unchanged, and what it costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
from lab.kube.daemons import START_SECONDS
from lab.waiting import wait_until, wait_until_async

from benchmarks.scale.worlds import OPERATOR_KEY


@dataclass(frozen=True)
class OperatorProcess:
    process: psutil.Process
    address: str

    def peak_mib(self) -> float:
        """The most memory it ever had (VmHWM)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        return int(kib) / 1024

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@asynccontextmanager
async def operator(kubeconfig: Path, home: Path) -> AsyncIterator[OperatorProcess]:
    """Ready. Its log is `home`/operator.log, or what $SCALE_LOG names. Raises RuntimeError, TimeoutError."""
    log = Path(os.environ.get("SCALE_LOG") or home / "operator.log")
    process = await asyncio.to_thread(_start, kubeconfig, home, log)
    try:
        address = await asyncio.to_thread(_address, process, home, log)
        await wait_until_async("the operator is ready", lambda: _is_ready(address), START_SECONDS)
        yield OperatorProcess(psutil.Process(process.pid), address)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _start(kubeconfig: Path, home: Path, log: Path) -> subprocess.Popen[bytes]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "operator.key").write_text(OPERATOR_KEY.hex())
    flags = ("--kubeconfig", str(kubeconfig), "--home", str(home))
    with log.open("wb") as output:
        command = (sys.executable, "-m", "ropeteam.controller", *flags)
        return subprocess.Popen(command, stdout=output, stderr=output)


def _address(process: subprocess.Popen[bytes], home: Path, log: Path) -> str:
    """Of its probes, as it publishes it."""
    file = home / "operator.address"
    wait_until("the operator starts", lambda: file.exists() or process.poll() is not None, START_SECONDS)
    if process.poll() is not None:
        raise RuntimeError(f"the operator ended: {log.read_text()[-500:]}")
    return file.read_text().strip()


async def _is_ready(address: str) -> bool:
    async with aiohttp.request("GET", f"http://{address}/readyz") as answer:
        return answer.status == 200
