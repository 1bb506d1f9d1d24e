"""Request handlers of a parameter server: it sends weights, and applies gradients.

One thread for each admitted connection; one condition guards everything. The response to a push carries the
weights after it, once they are valid in memory: no answered update is ever lost.
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
    """Gradient that waits for its step to be complete."""

    gradients: list[torch.Tensor | None]
    values: Values


class Server:
    """Server with its own threads until close(). ready() starts answering workers. places: connections that
    may be unauthenticated at once."""

    def __init__(
        self, share: Share, listener: socket.socket, secret: str, spec: ParameterServer, places: int
    ) -> None:
        self.share, self.changed = share, threading.Condition()
        self.staleness = Counter[int]()
        """Histogram: steps of others between pull and push -> gradients, since this process started."""
        self.is_over = False
        self._scales = spec.scale_by_staleness
        self.is_ready = share.generation is not None
        self._pending: dict[int, dict[int, _Pushed]] = {}
        self._admission = Door(listener, secret, places, self._serve_in_thread)
        self._connections: set[socket.socket] = set()
        self._no_responses, self._pending_responses = threading.Condition(), 0
        self._stepped = threading.Event()
        self._handlers: dict[str, Callable[[Head, bytearray], tuple[Head, bytes]]] = {
            "state": self._send_state,
            "content": self._send_content,
            "take": self._take_content,
            "end": self._end,
        }

    def start(self) -> None:
        threading.Thread(target=self._prepare_steps, daemon=True, name="ropeteam_rest").start()
        self._admission.open()

    def ready(self) -> None:
        with self.changed:
            self.is_ready = True
            self.changed.notify_all()

    def close(self) -> None:
        """Close after pending responses are sent: a worker without its response would retry for ever."""
        with self._no_responses:
            self._no_responses.wait_for(lambda: not self._pending_responses, timeout=5)
        self._admission.close()
        for end in tuple(self._connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def also(self, handlers: Mapping[str, Callable[[Head, bytearray], tuple[Head, bytes]]]) -> None:
        """Add request handlers: (head, payload) -> (head, payload)."""
        self._handlers |= handlers

    # ---- connections

    def _serve_in_thread(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError as error:  # the worker will connect again
            say(f"cannot serve another connection: {error}")
            self._connections.discard(connection)
            connection.close()

    def _prepare_steps(self) -> None:
        """Prepare the next step while workers compute and send."""
        while True:
            self._stepped.wait()
            self._stepped.clear()
            with self.changed:
                self.share.rest()

    def _serve(self, connection: socket.socket) -> None:
        try:
            buffer = bytearray()
            while True:
                head, size = wire.receive(connection)
                if len(buffer) != size:
                    buffer = bytearray(size)
                wire.fill(connection, memoryview(buffer))
                with self._counted():
                    self._answer(connection, head, buffer)
        except OSError:
            pass  # the worker closed the connection; it will retry
        except Exception:
            # A server that cannot apply a gradient is useless: exit with a traceback, as any rank that fails.
            traceback.print_exc()
            os._exit(1)
        finally:
            self._connections.discard(connection)
            connection.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._no_responses:
            self._pending_responses += 1
        try:
            yield
        finally:
            with self._no_responses:
                self._pending_responses -= 1
                self._no_responses.notify_all()

    def _answer(self, connection: socket.socket, head: Head, buffer: bytearray) -> None:
        """Handle one request. `buffer` may be reused afterwards: a gradient is applied by then."""
        if head["do"] in self._handlers:
            answer, payload = self._handlers[head["do"]](head, buffer)
            wire.send(connection, answer, [payload] if payload else [])
            return
        if head["do"] not in ("push", "pull"):
            raise ConnectionError(f"this server does not support {head['do']!r}")
        with ExitStack() as reading:
            with self.changed:
                self.changed.wait_for(lambda: self.is_ready)
                if head["do"] == "push":
                    self._push(head, buffer)
                version = self.share.version
                weights = reading.enter_context(self.share.weights())
            self._stepped.set()
            wire.send(connection, {"version": version}, [weights])

    # ---- gradients

    def _push(self, head: Head, buffer: bytearray) -> None:
        """Apply a gradient; return once it is applied. The caller holds the condition."""
        worker, n, of = int(head["worker"]), int(head["n"]), int(head["of"])
        if self.share.has_applied(worker, n):
            return  # and the response was lost
        views = list(self.share.layout.tensors(buffer).values())
        missing = set(head["lacking"])
        gradients = [None if index in missing else view for index, view in enumerate(views)]
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

    # ---- requests of the chief

    def _send_state(self, _: Head, __: bytearray) -> tuple[Head, bytes]:
        return {"generation": self.share.generation}, b""

    def _send_content(self, _: Head, __: bytearray) -> tuple[Head, bytes]:
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
    """Mean of all gradients, always added in the same order. A worker's missing gradient counts as zero."""
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
    """Unpickle tensors and plain values only: nothing executable."""
    return torch.load(io.BytesIO(payload), weights_only=True)
