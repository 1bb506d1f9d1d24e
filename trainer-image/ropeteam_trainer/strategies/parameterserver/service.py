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
from typing import Any, TypeVar

import torch

from ropeteam_trainer.contract.codec import DecodeError
from ropeteam_trainer.contract.strategy import ParameterServer
from ropeteam_trainer.strategies.parameterserver import requests, wire
from ropeteam_trainer.strategies.parameterserver.admission import Door, say
from ropeteam_trainer.strategies.parameterserver.requests import (
    Done,
    EndServing,
    Failure,
    FetchGeneration,
    FetchShare,
    Generation,
    PullWeights,
    PushGradient,
    ReplaceShare,
    Request,
    Weights,
)
from ropeteam_trainer.strategies.parameterserver.share import Share, Values

Handler = Callable[[Any, bytearray], tuple[Any, bytes]]
R = TypeVar("R", bound=Request[Any])


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
        self._handlers: dict[type[Request[Any]], Handler] = {
            FetchGeneration: self._send_generation,
            FetchShare: self._send_share,
            ReplaceShare: self._replace_share,
            EndServing: self._end,
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

    def handle(self, kind: type[R], handler: Callable[[R, bytearray], tuple[Any, bytes]]) -> None:
        """Add a handler of requests of one type: (request, its payload) -> (answer, its payload)."""
        self._handlers[kind] = handler

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
            peer, *_ = connection.getpeername()
            buffer = bytearray()
            while True:
                head, size = wire.receive(connection)
                if len(buffer) == size:
                    wire.fill(connection, memoryview(buffer))
                else:
                    buffer = wire.take(connection, size)
                with self._counted():
                    self._answer(connection, requests.parse(head), buffer)
        except OSError:
            pass  # the worker closed the connection; it will retry
        except DecodeError as error:
            say(f"refused a request of {peer}: {error}")
            with suppress(OSError):
                wire.send(connection, requests.encode(Failure(str(error))))
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

    def _answer(self, connection: socket.socket, request: Request[Any], buffer: bytearray) -> None:
        """Handle one request. `buffer` may be reused afterwards: a gradient is applied by then. Raises
        DecodeError."""
        if isinstance(request, PushGradient | PullWeights):
            self._send_weights(connection, request, buffer)
            return
        handler = self._handlers.get(type(request))
        if handler is None:  # its address was that of another server: the peer will look it up again
            raise ConnectionError(f"this server does not support {request.do!r}")
        answer, payload = handler(request, buffer)
        wire.send(connection, requests.encode(answer), [payload] if payload else [])

    def _send_weights(
        self, connection: socket.socket, request: PushGradient | PullWeights, buffer: bytearray
    ) -> None:
        with ExitStack() as reading:
            with self.changed:
                self.changed.wait_for(lambda: self.is_ready)
                if isinstance(request, PushGradient):
                    self._apply(request, buffer)
                answer = Weights(self.share.version)
                weights = reading.enter_context(self.share.weights())
            self._stepped.set()
            wire.send(connection, requests.encode(answer), [weights])

    # ---- gradients

    def _apply(self, push: PushGradient, buffer: bytearray) -> None:
        """Apply a gradient; return once it is applied. The caller holds the condition. Raises DecodeError."""
        worker, n, of = push.worker, push.n, push.of
        self._check(push, len(buffer))
        if self.share.has_applied(worker, n):
            return  # and the response was lost
        views = list(self.share.layout.tensors(buffer).values())
        missing = set(push.lacking)
        gradients = [None if index in missing else view for index, view in enumerate(views)]
        pushed = _Pushed(gradients, push.values)
        if of == 1:
            stale = self.share.version - push.version
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

    def _check(self, push: PushGradient, size: int) -> None:
        """Raises DecodeError for what cannot be a gradient of this share."""
        check_worker(push.worker, self.share.workers)
        if push.of > self.share.workers:
            raise DecodeError(f"a step of {push.of} gradients, but {self.share.workers} workers")
        if size != self.share.layout.size:
            raise DecodeError(f"{size} bytes of gradients for {self.share.layout.size} bytes of parameters")
        if len(push.values) != self.share.groups:
            raise DecodeError(f"{len(push.values)} groups of the optimizer, not {self.share.groups}")

    # ---- requests of the chief

    def _send_generation(self, _: FetchGeneration, __: bytearray) -> tuple[Generation, bytes]:
        return Generation(self.share.generation), b""

    def _send_share(self, _: FetchShare, __: bytearray) -> tuple[Done, bytes]:
        with self.changed:
            return Done(), packed(self.share.content())

    def _replace_share(self, request: ReplaceShare, payload: bytearray) -> tuple[Done, bytes]:
        try:
            content = unpacked(payload)
        except Exception as error:  # torch.load can go wrong in any way
            raise DecodeError(f"its content cannot be read: {str(error)[:200]}") from None
        with self.changed:
            self.share.check(content)
            self._pending.clear()
            self.share.take(content, request.generation)
        self.ready()
        return Done(), b""

    def _end(self, _: EndServing, __: bytearray) -> tuple[Done, bytes]:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        return Done(), b""


def check_worker(worker: int, workers: int) -> None:
    """Raises DecodeError for the number of no worker."""
    if not 0 <= worker < workers:
        raise DecodeError(f"worker {worker}, but there are {workers} workers")


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
