"""The first of the parameter servers: it keeps the ledger, saves for all of them, and knows the end.

What it answers is written to memory that outlives it before it is answered. A worker's own state (data
position, random generators, schedulers, buffers) comes with each done gradient and is handed back to the
process that takes its place.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.contract import codec
from ropeteam_trainer.strategies.parameterserver import ledger as rules
from ropeteam_trainer.strategies.parameterserver.doublebuffer import DoubleBuffer, remember
from ropeteam_trainer.strategies.parameterserver.ledger import Ask, Ledger, Push, Rules, Skip
from ropeteam_trainer.strategies.parameterserver.service import Server, packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import content_of, shares
from ropeteam_trainer.strategies.parameterserver.wire import Head

Call = Callable[[int, Head, bytes], tuple[Head, bytes]]
"""Ask another server: (which, head, payload) -> its answer."""


@dataclasses.dataclass(frozen=True)
class FullModel:
    """The script's model and optimizer, of which the chief's own share is a part."""

    named: dict[str, nn.Parameter]
    model: nn.Module
    optimizer: Optimizer
    servers: int


class Chief:
    def __init__(self, whole: FullModel, server: Server, call: Call, ruled: Rules, path: Path | None) -> None:
        self._whole, self._server, self._call, self._rules, self._path = whole, server, call, ruled, path
        self.changed: threading.Condition = server.changed
        self._answered: dict[Ask, rules.Answer] = {}
        self._epochs: dict[int, list[int]] = {}
        """Of each worker, that of its newest process."""
        self._kept = DoubleBuffer.found(path)
        self.ledger = rules.opened(ruled)
        self.worker_states: dict[int, bytes] = {}
        if self._kept is not None:
            self.ledger = dataclasses.replace(codec.decode(Ledger, self._kept.record), rules=ruled)
            paths = {worker: self._state_path(worker) for worker in range(ruled.workers)}
            self.worker_states = {n: path.read_bytes() for n, path in paths.items() if path.exists()}
        server.also({"hello": self._hello, "ask": self._ask, "done": self._done, "leave": self._leave})

    # ---- the beginning

    def goes_on(self) -> bool:
        """All servers have the state of one and the same life, and this one its ledger."""
        own = self._server.share.generation
        others = (self._call(i, {"do": "state"}, b"")[0]["generation"] for i in range(1, self._whole.servers))
        return own is not None and self._kept is not None and all(other == own for other in others)

    def begin(self, ledger: Ledger, worker_states: Sequence[bytes]) -> None:
        """A new life: what this process has of the whole model is everybody's."""
        self.ledger = ledger
        for worker, state in enumerate(worker_states):
            self._remember(worker, state)
        generation = secrets.token_hex(8)
        content = content_of(self._whole.named, self._whole.optimizer)
        for index, part in enumerate(shares(self._whole.named, self._whole.servers)):
            mine = {name: content[name] for name in part}
            if index:
                self._call(index, {"do": "take", "generation": generation}, packed(mine))
            else:
                self._server.share.take(mine, generation)
        self._whole.optimizer.state.clear()
        self._keep()

    # ---- checkpoints

    def gather(self) -> None:
        """Put everybody's share into the whole model and optimizer. While the ledger is quiet."""
        state = self._whole.optimizer.state
        for index in range(self._whole.servers):
            content = self._server.share.content()
            if index:
                content = unpacked(self._call(index, {"do": "content"}, b"")[1])
            for name, parts in content.items():
                p = self._whole.named[name]
                if index:
                    p.data = parts[""]
                if held := {key: value for key, value in parts.items() if key}:
                    state[p] = held

    def scatter(self) -> None:
        """Let go of what the others keep."""
        self._whole.optimizer.state.clear()

    def judge(self, change: Callable[[Ledger], Ledger]) -> None:
        """Change the ledger, answer who can be answered, remember it. Under the condition."""
        self.ledger, given = rules.answers(change(self.ledger))
        self._answered |= dict(given)
        self._keep()
        self.changed.notify_all()

    # ---- what workers ask

    def _worker(self, head: Head) -> int:
        """Who asks. Raises ConnectionError for a process that another one has taken the place of: its pod may
        be cut off from everybody but us.
        """
        worker, epoch = int(head["worker"]), head["epoch"]
        if epoch < self._epochs.get(worker, []):
            raise ConnectionError(f"worker {worker} has a newer process than that of world {epoch}")
        self._epochs[worker] = epoch
        return worker

    def _hello(self, head: Head, _: bytearray) -> tuple[Head, bytes]:
        worker = self._worker(head)
        with self.changed:
            self.changed.wait_for(lambda: self._server.is_ready)
            self.judge(lambda ledger: rules.join(ledger, worker))
            clock = self.ledger.clocks[worker]
            return {"clock": clock, "generation": self._server.share.generation}, self.worker_states[worker]

    def _ask(self, head: Head, _: bytearray) -> tuple[Head, bytes]:
        asked = Ask(self._worker(head), int(head["n"]))
        with self.changed:
            self._answered = {a: answer for a, answer in self._answered.items() if a.worker != asked.worker}
            self.judge(lambda ledger: rules.ask(ledger, asked))
            self.changed.wait_for(lambda: asked in self._answered or asked not in self.ledger.waiting)
            match self._answered.get(asked):
                case Push(n, of):
                    return {"push": n, "of": of}, b""
                case Skip(to):
                    return {"skip": to}, b""
        raise ConnectionError("this worker has asked again on another connection")

    def _done(self, head: Head, payload: bytearray) -> tuple[Head, bytes]:
        worker, clock = self._worker(head), int(head["clock"])
        with self.changed:
            self._remember(worker, bytes(payload))
            self.judge(lambda ledger: rules.done(ledger, worker, clock))
        return {}, b""

    def _leave(self, head: Head, _: bytearray) -> tuple[Head, bytes]:
        worker = self._worker(head)
        with self.changed:
            self.judge(lambda ledger: rules.leave(ledger, worker))
        return {}, b""

    def _remember(self, worker: int, state: bytes) -> None:
        self.worker_states[worker] = state
        if self._path is not None:
            remember(self._state_path(worker), state)

    def _state_path(self, worker: int) -> Path:
        assert self._path is not None
        return self._path.with_name(f"worker-{worker}")

    def _keep(self) -> None:
        durable = codec.encode(dataclasses.replace(self.ledger, waiting=()))
        if self._kept is None:
            self._kept = DoubleBuffer(self._path)
            self._kept.rebuild({}, durable)
        else:
            self._kept.draft()
            self._kept.commit(durable)
