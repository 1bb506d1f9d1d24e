"""What a parameter server answers: weights, and gradients that it applies.

A thread for each connection that the door has let in; one condition guards everything. A push is answered
with the weights after it, once they are valid in memory: what was answered is never lost.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ropeteam_trainer.contract.strategy import ParameterServer
from ropeteam_trainer.strategies.parameterserver import wire
from ropeteam_trainer.strategies.parameterserver.admission import Door, say
from ropeteam_trainer.strategies.parameterserver.share import Share, Values
from ropeteam_trainer.strategies.parameterserver.wire import Head


@dataclass
class _Pushed:
    """A gradient that waits for its step to be complete."""

    gradients: list[torch.Tensor | None]
    values: Values


class Server:
    """Serves from its own threads until close(). `ready()` answers workers. `places`: for strangers."""

    def __init__(
        self, share: Share, listener: socket.socket, secret: str, asked: ParameterServer, places: int
    ) -> None:
        self.share, self.changed = share, threading.Condition()
        self.staleness = Counter[int]()
        """Steps of others between pull and push: of how many gradients, since this process began."""
        self.is_over = False
        self._scales = asked.scale_by_staleness
        self.is_ready = share.generation is not None
        self._pending: dict[int, dict[int, _Pushed]] = {}
        self._door = Door(listener, secret, places, self._let_in)
        self._connections: set[socket.socket] = set()
        self._idle, self._answering = threading.Condition(), 0
        self._stepped = threading.Event()
        self._deeds: dict[str, Callable[[Head, bytearray], tuple[Head, bytes]]] = {
            "state": self._tell_state,
            "content": self._give_content,
            "take": self._take_content,
            "end": self._end,
        }

    def start(self) -> None:
        threading.Thread(target=self._rest, daemon=True, name="ropeteam_rest").start()
        self._door.open()

    def ready(self) -> None:
        with self.changed:
            self.is_ready = True
            self.changed.notify_all()

    def close(self) -> None:
        """Once what is being answered is answered: who lost its answer would ask for ever."""
        with self._idle:
            self._idle.wait_for(lambda: not self._answering, timeout=5)
        self._door.close()
        for end in tuple(self._connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def also(self, deeds: Mapping[str, Callable[[Head, bytearray], tuple[Head, bytes]]]) -> None:
        """Answer these requests too: (head, payload) -> (head, payload)."""
        self._deeds |= deeds

    # ---- connections

    def _let_in(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError as error:  # it will come again
            say(f"cannot serve another connection: {error}")
            self._connections.discard(connection)
            connection.close()

    def _rest(self) -> None:
        """Get ready for the next step while workers compute and send."""
        while True:
            self._stepped.wait()
            self._stepped.clear()
            with self.changed:
                self.share.rest()

    def _serve(self, connection: socket.socket) -> None:
        try:
            room = bytearray()
            while True:
                head, size = wire.receive(connection)
                if len(room) != size:
                    room = bytearray(size)
                wire.fill(connection, memoryview(room))
                with self._busy():
                    self._answer(connection, head, room)
        except OSError:
            pass  # it hung up; what it wants it will ask again
        except Exception:
            # A server that cannot apply a gradient is no server: end it, loudly, as any rank that fails.
            traceback.print_exc()
            os._exit(1)
        finally:
            self._connections.discard(connection)
            connection.close()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._idle:
            self._answering += 1
        try:
            yield
        finally:
            with self._idle:
                self._answering -= 1
                self._idle.notify_all()

    def _answer(self, connection: socket.socket, head: Head, room: bytearray) -> None:
        """`room` is free again afterwards: a gradient is applied by then."""
        if head["do"] in self._deeds:
            answer, payload = self._deeds[head["do"]](head, room)
            wire.send(connection, answer, [payload] if payload else [])
            return
        if head["do"] not in ("push", "pull"):
            raise ConnectionError(f"this server does not know how to {head['do']!r}")
        with ExitStack() as reading:
            with self.changed:
                self.changed.wait_for(lambda: self.is_ready)
                if head["do"] == "push":
                    self._push(head, room)
                version = self.share.version
                weights = reading.enter_context(self.share.weights())
            self._stepped.set()
            wire.send(connection, {"version": version}, [weights])

    # ---- gradients

    def _push(self, head: Head, room: bytearray) -> None:
        """Returns once the gradient is applied. Under the condition."""
        worker, n, of = int(head["worker"]), int(head["n"]), int(head["of"])
        if self.share.has_applied(worker, n):
            return  # and the answer was lost
        views = list(self.share.layout.tensors(room).values())
        lacking = set(head["lacking"])
        gradients = [None if index in lacking else view for index, view in enumerate(views)]
        pushed = _Pushed(gradients, head["values"])
        if of == 1:
            stale = self.share.version - head["version"]
            self.staleness[stale] += 1
            self.share.step(gradients, pushed.values, {worker: n}, stale if self._scales else 0)
            return
        step = self._pending.setdefault(n, {})
        step[worker] = pushed
        if len(step) == of:
            del self._pending[n]
            first = min(step)
            self.staleness[0] += of
            self.share.step(mean(step), step[first].values, dict.fromkeys(step, n))
            self.changed.notify_all()
        self.changed.wait_for(lambda: self.share.has_applied(worker, n))

    # ---- the chief's requests

    def _tell_state(self, _: Head, __: bytearray) -> tuple[Head, bytes]:
        return {"generation": self.share.generation}, b""

    def _give_content(self, _: Head, __: bytearray) -> tuple[Head, bytes]:
        with self.changed:
            return {}, packed(self.share.content())

    def _take_content(self, head: Head, payload: bytearray) -> tuple[Head, bytes]:
        with self.changed:
            self._pending.clear()
            self.share.take(unpacked(payload), head["generation"])
        self.ready()
        return {}, b""

    def _end(self, _: Head, __: bytearray) -> tuple[Head, bytes]:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        return {}, b""


def mean(step: Mapping[int, _Pushed]) -> list[torch.Tensor | None]:
    """Of all gradients, always added in the same order. One that a worker lacks counts as zero."""
    ordered = [step[worker].gradients for worker in sorted(step)]
    means: list[torch.Tensor | None] = []
    for each in zip(*ordered, strict=True):
        found = [gradient for gradient in each if gradient is not None]
        if not found:
            means.append(None)
            continue
        total = found[0]
        for gradient in found[1:]:
            total.add_(gradient)
        means.append(total.div_(len(ordered)))
    return means


def packed(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def unpacked(payload: bytearray | bytes) -> Any:
    """Tensors and plain values alone: nothing that could run."""
    return torch.load(io.BytesIO(payload), weights_only=True)
