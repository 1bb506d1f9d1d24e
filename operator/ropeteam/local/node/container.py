"""One container: its state in the terms of Kubernetes, and the process of its current run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropeteam.local.api.verbs import timestamp
from ropeteam.local.node import shim
from ropeteam.local.node.podspec import ContainerStartError, ProcessSpec
from ropeteam.local.resources import Object
from ropeteam_trainer.contract import config

AGAIN_SECONDS = 1.0
"""Interval at which a kill is sent again to a container that still runs."""


class Container:
    """One container of one pod, over all of its restarts. `logs`: folder of the pod's logs; each run has a
    file. `changed` is called whenever the state has changed."""

    def __init__(self, spec: Object, logs: Path, changed: Callable[[], None]) -> None:
        self.spec, self.name = spec, spec["name"]
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}
        self.restarts = 0
        self.exit_code: int | None = None
        """Exit code of a container that will not run again."""
        self._logs, self._changed = logs / self.name, changed
        self._shim: asyncio.subprocess.Process | None = None
        self._last_signal: int | None = None
        """Last signal to this run, also one that came before its process: `run` sends it then."""
        self._id = ""

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def ever_ran(self) -> bool:
        """Whether a run has begun; one whose command could not be started counts."""
        return self.running or self.restarts > 0 or "terminated" in (self.state | self.last_state)

    def prepare_restart(self) -> None:
        """Count a restart, before `run`. A signal that was sent to the previous run does not apply to the
        next one."""
        self.restarts += 1
        self._last_signal = None

    def set_waiting(self, reason: str, message: str = "") -> None:
        """Set the state to waiting; a state of terminated becomes lastState."""
        waiting = {"reason": reason} | ({"message": message} if message else {})
        if "terminated" in self.state:
            self.last_state = self.state
        self._set_state({"waiting": waiting})

    async def run(self, process: ProcessSpec) -> int:
        """One run, from the start of the shim to its exit. Returns the exit code: 128 + signal for one that
        was killed. Order: request to the shim; an earlier signal; its answer; its exit. Cancelled: the
        container is killed, and has exited when this ends. Raises ContainerStartError if the command cannot
        be executed."""
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{self.restarts}.log"
        log.touch(0o600)
        uid = process.environment.get(config.POD_UID)
        memory = [config.memory_folder(uid)] if uid else []
        self._shim = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", shim.__file__, str(os.getpid()), *memory,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the cluster
        )  # fmt: skip
        assert self._shim.stdin
        assert self._shim.stdout
        folder = str(process.folder)
        self._shim.stdin.write(shim.request(str(log), folder, process.command, process.environment))
        self._shim.stdin.close()
        try:
            if self._last_signal:
                self.signal(self._last_signal)
            outcome, _, rest = (await self._shim.stdout.readline()).decode().strip().partition(" ")
            started = timestamp()
            if outcome == "pid":
                self._id = f"local://{rest}"
                self._set_state({"running": {"startedAt": started}})
            code = await self._shim.wait()
            code = 128 - code if code < 0 else code
        finally:
            while self._shim.returncode is None:  # cancelled
                self.signal(signal.SIGINT)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._shim.wait(), AGAIN_SECONDS)
        if outcome == "error":
            raise ContainerStartError(f"exec: {process.command[0]}: {rest}")
        self.set_terminated(code, "Completed" if code == 0 else "Error", started)
        return code

    def set_terminated(self, code: int, reason: str, started: str, message: str = "") -> None:
        """Set the state to terminated. `reason`: as in Kubernetes. `started`: the timestamp of the start."""
        terminated: dict[str, Any] = {"exitCode": code, "reason": reason, "containerID": self._id}
        if message:
            terminated["message"] = message
        self._set_state({"terminated": terminated | {"startedAt": started, "finishedAt": timestamp()}})

    def signal(self, signum: int) -> None:
        """Send a signal to the shim. SIGTERM is forwarded to the command; SIGINT kills the command and all
        its descendants. Repeat SIGINT until the container has exited: a shim that is just being started may
        lose it."""
        self._last_signal = signum
        if self._shim and self._shim.returncode is None:
            self._shim.send_signal(signum)

    def status(self) -> Object:
        """The ContainerStatus. A running container is a ready one."""
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "containerID": self._id,
            "ready": self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    def _set_state(self, state: Object) -> None:
        if state != self.state:
            self.state = state
            self._changed()
