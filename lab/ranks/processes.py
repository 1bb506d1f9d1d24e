"""Worlds of real processes for the tests: ranks that fork from a server with torch imported, and their agent.

A RankGroup is one world: each rank has torchrun's environment, a store that lives in the test's process, and
a file for its output. FakeAgent gives each rank a page and a socket, as the agent does.
"""

from __future__ import annotations

import atexit
import json
import mmap
import multiprocessing
import os
import re
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lab.ranks.forkserver import forkserver
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest, folder, ref_text
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.local import (
    PAGE_SIZE,
    Beat,
    FromRank,
    ToRank,
    read_beat,
    write_beat,
)
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_SECONDS = 180
os.environ["OMP_NUM_THREADS"] = "1"
_server = forkserver()


@dataclass(frozen=True)
class Ended:
    """How a world ended."""

    codes: list[int | None]
    """Exit code of each rank, -9 for SIGKILL."""
    output: list[str]

    @property
    def result(self) -> dict[str, Any]:
        """JSON that rank 0 printed as RESULT."""
        found = re.search(r"^RESULT (.*)$", self.output[0], re.MULTILINE)
        assert found, self.output[0]
        value: dict[str, Any] = json.loads(found[1])
        return value


class FakeAgent:
    """The agent's end of the sockets and pages of all ranks; it commits where a test says so."""

    def __init__(
        self, path: Path, world: int, checkpoint: CheckpointConfig | None, world_id: WorldId
    ) -> None:
        self.path, self.world, self.checkpoint, self.world_id = path, world, checkpoint, world_id
        self.messages: list[list[FromRank]] = [[] for _ in range(world)]
        self.lineage: list[CheckpointRef] = []
        self._changed = threading.Condition()
        self._connections: dict[int, socket.socket] = {}
        self._listeners = [socket.socket(socket.AF_UNIX) for _ in range(world)]
        for rank, listener in enumerate(self._listeners):
            (path / f"page.{rank}").write_bytes(bytes(PAGE_SIZE))
            listener.bind(str(path / f"socket.{rank}"))
            listener.listen()
            threading.Thread(target=self._serve, args=(rank, listener), daemon=True).start()

    def plan(self, restore: Iterable[CheckpointRef] = (), **fields: Any) -> RankPlan:
        texts = tuple(ref_text(ref) for ref in restore)
        base = RankPlan(
            str(self.world_id), texts, bool(texts), self.checkpoint, Resume.LATEST, None, "job", "uid"
        )
        return replace(base, **fields)

    def heartbeat(self, rank: int) -> Beat:
        return self.wait(lambda: read_beat(memoryview((self.path / f"page.{rank}").read_bytes())))

    def received(self, rank: int, name: str) -> list[Any]:
        """All values that `rank` has sent of one field, in order."""
        with self._changed:
            return [v for line in self.messages[rank] if (v := getattr(line, name)) not in (None, ())]

    def send(self, message: ToRank, ranks: Iterable[int] | None = None) -> None:
        """Send to these ranks (None: all), once all have connected."""
        self.wait(lambda: len(self._connections) == self.world)
        for rank in range(self.world) if ranks is None else ranks:
            self._connections[rank].sendall(codec.encode(message) + b"\n")

    def wait(self, condition: Callable[[], Any]) -> Any:
        """The first true value of `condition`, looked at whenever a rank sends a message, and now and
        then."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        with self._changed:
            while not (value := condition()):
                assert time.monotonic() < deadline, f"received until now: {self.messages}"
                self._changed.wait(0.05)
        return value

    def commit(self, step: int, savers: Iterable[int] | None = None, size: int | None = None) -> Manifest:
        """Wait for the shards of a step, of all ranks or of those that save, and write the manifest. `size`:
        number of ranks in it; None: all."""
        assert self.checkpoint is not None
        ranks = list(range(self.world) if savers is None else savers)
        shards = self.wait(lambda: self._shards(step, ranks))
        files = tuple(file for shard in shards for file in shard)
        parent = self.lineage[0] if self.lineage else None
        manifest = Manifest(step, self.world_id, size or self.world, "job", "uid", files, parent)
        place = Path(self.checkpoint.directory) / folder(manifest.ref)
        (place / MANIFEST).write_bytes(manifest.to_bytes())
        self.lineage.insert(0, manifest.ref)
        return manifest

    def drain(self) -> None:
        """Return once all messages of ended ranks are received: connections are read one after the other, and
        the last one is ours."""
        for rank in range(self.world):
            with socket.socket(socket.AF_UNIX) as last:
                last.settimeout(TIMEOUT_SECONDS)
                last.connect(str(self.path / f"socket.{rank}"))
                last.shutdown(socket.SHUT_WR)
                assert last.recv(1) == b""

    def close(self) -> None:
        for end in (*self._listeners, *self._connections.values()):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _shards(self, step: int, ranks: list[int]) -> list[tuple[ShardFile, ...]] | None:
        found = [[m.shard_files for m in self.messages[rank] if m.shard_step == step] for rank in ranks]
        return [shards[0] for shards in found] if all(found) else None

    def _serve(self, rank: int, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:  # a rank that is restarted comes again
                self._connections[rank], _ = listener.accept()
                self._receive_from(rank, self._connections[rank])

    def _receive_from(self, rank: int, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self.messages[rank].append(codec.decode(FromRank, line))
                    self._changed.notify_all()


class RankGroup:
    """One world. Use as a context manager: what still lives at the end is killed."""

    def __init__(self, path: Path, world: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.world = path, world
        self.trace = path / "trace"
        self.environment: dict[str, str] = {}
        """Of all ranks, beyond torchrun's and the agent's."""
        self._agent: FakeAgent | None = None
        self._store: TCPStore | None = None
        self._processes: list[ForkServerProcess] = []
        self._requests: list[tuple[str, tuple[str, ...], dict[str, str], str]] = []

    def start(self, script: str, *argv: str, agent: FakeAgent | None = None, **plan: Any) -> RankGroup:
        """Start all ranks. With an agent, `plan` has more fields of RankPlan."""
        self._agent = agent
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.world):
            env = self._environment(rank) | self.environment
            if agent is not None:
                env |= {
                    config.RANK_SOCKET: str(agent.path / f"socket.{rank}"),
                    config.RANK_PAGE: str(agent.path / f"page.{rank}"),
                    config.RANK_PLAN: codec.encode(agent.plan(**plan)).decode(),
                }
            self._requests.append((str(SCRIPTS / script), argv, env, str(self.path / f"output.{rank}")))
            self._processes.append(_started(self._requests[rank]))
        return self

    def kill_one(self, rank: int) -> None:
        self._processes[rank].kill()
        self._processes[rank].join()

    def freeze_one(self, rank: int) -> None:
        os.kill(self._pid(rank), signal.SIGSTOP)

    def resume_one(self, rank: int) -> None:
        """Let a rank run that was stopped."""
        os.kill(self._pid(rank), signal.SIGCONT)

    def is_stopped(self, rank: int) -> bool:
        """Whether a signal has stopped the rank."""
        status = Path(f"/proc/{self._pid(rank)}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def exit_code(self, rank: int) -> int | None:
        """None: it lives."""
        return self._processes[rank].exitcode

    def restart(
        self, rank: int, plan: RankPlan | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Kill one rank, if it lives, and start it again as its agent would; the others live on."""
        self.kill_one(rank)
        self._processes[rank].close()
        self._requests[rank][2].update(environment or {})
        if plan is not None:
            self._requests[rank][2][config.RANK_PLAN] = codec.encode(plan).decode()
        self._processes[rank] = _started(self._requests[rank])

    def wait(self, seconds: float = TIMEOUT_SECONDS) -> Ended:
        """Wait until all ranks have ended, and their agent has received all their messages."""
        for process in self._processes:
            process.join(seconds)
        codes = [process.exitcode for process in self._processes]
        texts = [(self.path / f"output.{rank}").read_text() for rank in range(self.world)]
        assert None not in codes, f"still running: {codes}\n" + "\n".join(texts)
        if self._agent is not None:
            self._agent.drain()
        return Ended(codes, texts)

    def run(self, script: str, *argv: str, **more: Any) -> Ended:
        with self:
            return self.start(script, *argv, **more).wait()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        self._processes, self._requests, self._store = [], [], None

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _pid(self, rank: int) -> int:
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def _environment(self, rank: int) -> dict[str, str]:
        assert self._store is not None
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            config.STORE_ADDRESS: f"127.0.0.1:{self._store.port}",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            config.TRACE: str(self.trace),
        }


def _started(request: tuple[str, tuple[str, ...], dict[str, str], str]) -> ForkServerProcess:
    process = _server.Process(target=_be_rank, args=request)
    process.start()
    return process


def _be_rank(script: str, argv: tuple[str, ...], environment: dict[str, str], output: str) -> None:
    """Run the script as __main__ and mark its end, as the agent's shim does. Runs in the rank's process."""
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    multiprocessing.set_start_method("fork", force=True)  # as in a process that no forkserver has made
    os.environ.update(environment)
    sys.argv = [script, *argv]
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    page = environment.get(config.RANK_PAGE)
    if page and code == 0:
        with open(page, "r+b") as file, mmap.mmap(file.fileno(), PAGE_SIZE) as view:
            heartbeat = read_beat(memoryview(view)) or Beat()
            write_beat(memoryview(view), replace(heartbeat, reached_end=True), 1 << 40)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.exit(code)
