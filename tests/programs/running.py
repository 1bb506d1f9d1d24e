"""One program, once, as a TrainingJob on the local cluster: watch it, kill a rank of it, say what was seen.

The order: its world forms; it trains (its log says so, or a moment passes); the process of the last rank gets
SIGKILL; a new world forms and trains; the job becomes Complete, or continues to train. Whatever of this does
not come ends the watch when the patience is over.
Limits: it classifies nothing (outcome.py does); a program that forms no group is killed at its first process
that imported torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from lab.local.cluster import Cluster, Refused
from lab.waiting import wait_until
from tests.programs import outcome
from tests.programs.outcome import Seen
from tests.programs.rows import Row, counts

START_SECONDS = float(os.environ.get("PATIENCE", "150"))
"""Beside a row's own seconds, for each of its starts."""
SETTLED_SECONDS = 2.0
"""Of a row that says not when it trains: so long after its world has formed, it does."""
_REFUSALS = ("LauncherRefused", "InvalidSpec", "CommandNotFound", "InterpreterWithoutTorch")


class Run:
    """`watch()` once."""

    def __init__(self, cluster: Cluster, row: Row, shape: str, folder: Path, programs: Path) -> None:
        self._cluster, self._row, self._shape = cluster, row, shape
        self._folder, self._programs = folder, programs
        self._name = f"{row.name}-{shape}"[:40]
        self._witness = folder.parent / "witness.jsonl"
        self._witness.unlink(missing_ok=True)
        self._before: set[object] = set()
        self._lines_before_kill = 0
        self._since = 0.0
        self.seen = Seen(row.expected(shape))

    def manifest(self) -> dict[str, Any]:
        workers, processes = counts(self._shape)
        env = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._programs.parent),
            "PROGRAMS_WITNESS": str(self._witness),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "TOKENIZERS_PARALLELISM": "false",
        } | dict(self._row.env)
        spec = {
            "workers": workers,
            "processesPerWorker": processes,
            "image": "local",
            "command": self._row.argv(self._shape),
            "workingDir": str((self._folder / self._row.folder).resolve()),
            "env": [{"name": key, "value": value} for key, value in env.items()],
        } | dict(self._row.spec)
        return {
            "apiVersion": "ropeteam.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self._name},
            "spec": spec,
        }

    def watch(self) -> Seen:
        """From the job's creation to its deletion."""
        try:
            self._cluster.create(self.manifest())
        except Refused as error:
            self.seen.refusal = error.text
            return self.seen
        deadline = time.monotonic() + self._row.seconds + START_SECONDS
        while not self.seen.end and not self.seen.refusal and time.monotonic() < deadline:
            time.sleep(0.25)
            self._look_at_status(self._cluster.status(self._name))
            if self._look_at_world() and self._row.kill and not self.seen.killed and not self.seen.end:
                self._kill()
                deadline = time.monotonic() + self._row.seconds + START_SECONDS
            if self._row.reason in self.seen.reasons and not self._row.end:
                break
            if self.seen.again and time.monotonic() > self._since + self._row.seconds:
                break  # it trains on
        return self.seen

    def logs(self) -> str:
        """Logs of its pods, and its status: for a person."""
        text = json.dumps(self._cluster.status(self._name), indent=1) + "\n"
        if self._witness.exists():
            text += self._witness.read_text()
        for pod in self._pods():
            text += f"\n==== {pod}\n" + self._log(pod)[-30_000:]
        return text

    def clean(self) -> None:
        """The job and its pods are gone when this returns."""
        if self._cluster.job(self._name) is not None:
            self._cluster.delete(self._name)
        wait_until("all pods are gone", lambda: not self._cluster.pods(self._name, None))

    def _look_at_status(self, status: Mapping[str, Any]) -> None:
        self.seen.incident = (status.get("incidents") or [{}])[-1]
        for condition in status.get("conditions", []):
            true, reason, message = (condition.get(key, "") for key in ("status", "reason", "message"))
            self.seen.reasons.add(reason)
            if condition["type"] == "Degraded" and reason != "Finished":
                self.seen.degraded = reason if true == "True" else ""
                if true == "True":
                    self.seen.reported.setdefault(reason, (time.time(), message))
            if condition["type"] == "Accepted" and true == "False":
                self.seen.refusal = message
            elif condition["type"] in ("Complete", "Failed") and true == "True":
                self.seen.end, self.seen.message = condition["type"], f"{reason}: {message}"
                if reason in _REFUSALS:
                    self.seen.refusal = self.seen.message

    def _look_at_world(self) -> bool:
        """Is it time to kill? Notes worlds, and whether a new one trains after the kill."""
        text = self._witness.read_text() if self._witness.exists() else ""
        lines = outcome.joined(text)
        smaller = [line.time for line in lines if line.size < self.seen.expected]
        self.seen.smaller = min(smaller, default=0.0)
        alone = [pid for pid in outcome.imported(text) if _is_alive(pid)]
        found = outcome.groups(lines, [line.pid for line in lines if _is_alive(line.pid)])
        right = outcome.whole(found, self.seen.expected)
        self.seen.whole = max(self.seen.whole, len(right))
        self.seen.other = max(self.seen.other, len(found) - len(right))
        worlds: set[object] = set(right or (alone if self.seen.expected == 1 and not found else []))
        new = worlds - self._before
        if not new:
            self._since = 0.0
            return False
        self._victim = self._choose(found, right, alone)
        if not self._since:
            self._since = time.monotonic()
        if not self._trains():
            return False
        self.seen.again = bool(self.seen.killed)
        return True

    def _choose(self, found: dict[str, dict[int, outcome.Joined]], right: list[str], alone: list[int]) -> int:
        """The last rank of the world; of a program without groups its first process."""
        if not right:
            return alone[0]
        ranks = found[right[0]]
        return ranks[max(ranks)].pid

    def _trains(self) -> bool:
        if self._row.trains:
            return self._count() > self._lines_before_kill
        return time.monotonic() > self._since + SETTLED_SECONDS

    def _count(self) -> int:
        text = "".join(self._log(pod) for pod in self._pods())
        return len(re.findall(self._row.trains, text))

    def _log(self, pod: str) -> str:
        """Nothing, if it is gone meanwhile."""
        try:
            return self._cluster.logs(pod)
        except HTTPError:
            return ""

    def _pods(self) -> list[str]:
        pods = self._cluster.pods(self._name)
        return [pod["metadata"]["name"] for pod in pods if pod["status"].get("containerStatuses")]

    def _kill(self) -> None:
        text = self._witness.read_text()
        self._before = {line.group for line in outcome.joined(text)} | set(outcome.imported(text))
        self._lines_before_kill = self._count() if self._row.trains else 0
        try:
            os.kill(self._victim, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.seen.killed, self._since = self._victim, 0.0


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
