"""Request handlers of a parameter server: they send weights, and apply gradients.

Each authenticated connection has a thread. The condition `changed` guards the share, the flags and the
ledger; its methods that say so are called with it held. The answer to a push carries the weights after it,
once they are valid in memory: no answered update is ever lost.
"""

from __future__ import annotations

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
from ropeteam_trainer.strategies.parameterserver.admission import Admission, log
from ropeteam_trainer.strategies.parameterserver.hyperparameters import Hyperparameters
from ropeteam_trainer.strategies.parameterserver.payloads import packed, unpacked
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
from ropeteam_trainer.strategies.parameterserver.share import Share

Handler = Callable[[Any, bytearray], tuple[Any, bytes]]
"""(request, its payload) -> (answer, its payload). Raises DecodeError to refuse the request, ConnectionError
to close the connection, so that the peer connects again."""
R = TypeVar("R", bound=Request[Any])


@dataclass
class _Pushed:
    """A worker's gradients that wait for those of the other workers of their step; views of the request's
    payload. None: the parameter has no gradient."""

    gradients: list[torch.Tensor | None]
    hyperparameters: Hyperparameters


class Server:
    """Parameter server. Order: add_handler(), start(), set_ready() once the share has its weights,
    close()."""

    def __init__(
        self,
        share: Share,
        listener: socket.socket,
        secret: str,
        spec: ParameterServer,
        max_unauthenticated: int,
    ) -> None:
        """max_unauthenticated: connections that may be in handshake at once."""
        self.share, self.changed = share, threading.Condition()
        self.staleness = Counter[int]()
        """Histogram: steps of others between pull and push -> gradients, since this process started."""
        self.is_over = False
        """Whether all workers have left: the chief has sent EndServing."""
        self._scales = spec.scale_by_staleness
        self.is_ready = share.generation is not None
        """Whether pushes and pulls are answered; else they wait."""
        self._pending: dict[int, dict[int, _Pushed]] = {}
        """Synchronous: gradients of steps that are not complete, by step and worker."""
        self._admission = Admission(listener, secret, max_unauthenticated, self._serve_in_thread)
        self._connections: set[socket.socket] = set()
        self._responses_changed, self._pending_responses = threading.Condition(), 0
        self._weights_sent = threading.Event()
        self._handlers: dict[type[Request[Any]], Handler] = {
            FetchGeneration: self._send_generation,
            FetchShare: self._send_share,
            ReplaceShare: self._replace_share,
            EndServing: self._end_serving,
        }

    def start(self) -> None:
        """Start the server's threads, and accept connections."""
        threading.Thread(target=self._synchronize_halves, daemon=True, name="ropeteam-halves").start()
        self._admission.open()

    def set_ready(self) -> None:
        """Answer pushes and pulls from now on: the share has its weights."""
        with self.changed:
            self.is_ready = True
            self.changed.notify_all()

    def close(self) -> None:
        """Close all connections once pending responses are sent, or after five seconds: a worker without its
        response would retry for ever. Threads of connections end by themselves."""
        with self._responses_changed:
            self._responses_changed.wait_for(lambda: not self._pending_responses, timeout=5)
        self._admission.close()
        for end in tuple(self._connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def add_handler(self, kind: type[R], handler: Callable[[R, bytearray], tuple[Any, bytes]]) -> None:
        """Add a handler of requests of one type, as the type Handler says; it must be done before start()."""
        self._handlers[kind] = handler

    # ---- connections

    def _serve_in_thread(self, connection: socket.socket) -> None:
        """Start a thread for an authenticated connection; close the connection if that fails."""
        self._connections.add(connection)
        try:
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()
        except RuntimeError as error:  # the worker will connect again
            log(
                f"cannot serve another connection: {error}. {len(self._connections) - 1} are served; the "
                "worker will connect again. If this repeats, raise the pod's memory limit, or podPidsLimit "
                "of the node's kubelet"
            )
            self._connections.discard(connection)
            connection.close()

    def _synchronize_halves(self) -> None:
        """Body of a thread: after each step copy it to the other half of the share, while workers compute.
        Else the next step would do that before it begins."""
        while True:
            self._weights_sent.wait()
            self._weights_sent.clear()
            with self.changed:
                self.share.synchronize_halves()

    def _serve_connection(self, connection: socket.socket) -> None:
        """Body of a thread: answer requests until the peer closes the connection. A request that cannot be
        decoded is refused, and closes the connection; an unexpected error ends the process.

        The buffer is reused while payloads have the same size.
        """
        try:
            peer, *_ = connection.getpeername()
            buffer = bytearray()
            while True:
                header, size = wire.receive_header(connection)
                if len(buffer) == size:
                    wire.receive_into(connection, memoryview(buffer))
                else:
                    buffer = wire.receive_exactly(connection, size)
                with self._pending_response():
                    self._answer(connection, requests.parse(header), buffer)
        except OSError:
            pass  # the worker closed the connection; it will retry
        except DecodeError as error:
            log(f"refused a request of {peer}: {error}")
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
    def _pending_response(self) -> Iterator[None]:
        """Context in which a response counts as pending, so that close() waits for it."""
        with self._responses_changed:
            self._pending_responses += 1
        try:
            yield
        finally:
            with self._responses_changed:
                self._pending_responses -= 1
                self._responses_changed.notify_all()

    def _answer(self, connection: socket.socket, request: Request[Any], buffer: bytearray) -> None:
        """Handle one request with its payload, and send the answer. `buffer` may be reused afterwards: a
        gradient is applied by then. Raises DecodeError, and OSError if the connection is to be closed."""
        if isinstance(request, PushGradient | PullWeights):
            self._send_weights(connection, request, buffer)
            return
        handler = self._handlers.get(type(request))
        if handler is None:  # it was sent to the chief, whose address this server has now: the peer retries
            raise ConnectionError(f"this server does not handle {request.do!r}, a request to the chief")
        answer, payload = handler(request, buffer)
        wire.send(connection, requests.encode(answer), [payload] if payload else [])

    def _send_weights(
        self, connection: socket.socket, request: PushGradient | PullWeights, buffer: bytearray
    ) -> None:
        """Apply the gradient, if the request is a push, and send the weights after it. Waits until the server
        is ready. Weights are sent without the condition: the half that is sent stays unchanged meanwhile."""
        with ExitStack() as reading:
            with self.changed:
                self.changed.wait_for(lambda: self.is_ready)
                if isinstance(request, PushGradient):
                    self._apply(request, buffer)
                answer = Weights(self.share.version)
                weights = reading.enter_context(self.share.weights())
            self._weights_sent.set()
            wire.send(connection, requests.encode(answer), [weights])

    # ---- gradients

    def _apply(self, push: PushGradient, buffer: bytearray) -> None:
        """Apply a gradient; return once it is applied. The caller holds the condition, which is released
        while this waits. Raises DecodeError.

        Order: a gradient that was applied before returns at once; a step of one gradient is made at once;
        else it waits for the other gradients of step n, and the last one makes the step with the mean of all.
        """
        worker, n, of = push.worker, push.n, push.of
        self._check_push(push, len(buffer))
        if self.share.has_applied(worker, n):
            return  # the worker repeats the request, because the response was lost
        views = list(self.share.layout.tensors(buffer).values())
        missing = set(push.missing)
        gradients = [None if index in missing else view for index, view in enumerate(views)]
        if of == 1:
            staleness = self.share.version - push.version
            self.staleness[staleness] += 1
            self.share.step(gradients, push.values, {worker: n}, staleness if self._scales else 0)
            return
        step = self._pending.setdefault(n, {})
        step[worker] = _Pushed(gradients, push.values)
        if len(step) == of:
            del self._pending[n]
            first = min(step)
            self.staleness[0] += of
            self.share.step(mean_gradients(step), step[first].hyperparameters, dict.fromkeys(step, n))
            self.changed.notify_all()
        self.changed.wait_for(lambda: self.share.has_applied(worker, n))

    def _check_push(self, push: PushGradient, size: int) -> None:
        """Raise DecodeError if this cannot be a gradient of the share. size: bytes of its payload."""
        check_worker(push.worker, self.share.workers)
        if push.of > self.share.workers:
            raise DecodeError(f"a step of {push.of} gradients, but there are {self.share.workers} workers")
        if size != self.share.layout.size:
            raise DecodeError(
                f"{size} bytes of gradients for {self.share.layout.size} bytes of parameters: workers and "
                "servers must run the same script and build the same model"
            )
        if len(push.values) != self.share.groups:
            raise DecodeError(
                f"the worker's optimizer has {len(push.values)} parameter groups, the server's "
                f"{self.share.groups}: workers and servers must run the same script"
            )

    # ---- requests of the chief

    def _send_generation(self, _: FetchGeneration, __: bytearray) -> tuple[Generation, bytes]:
        """Handle FetchGeneration."""
        return Generation(self.share.generation), b""

    def _send_share(self, _: FetchShare, __: bytearray) -> tuple[Done, bytes]:
        """Handle FetchShare: the content of the share, while no gradient is being applied."""
        with self.changed:
            return Done(), packed(self.share.content())

    def _replace_share(self, request: ReplaceShare, payload: bytearray) -> tuple[Done, bytes]:
        """Handle ReplaceShare: begin a server generation, and answer workers from now on. Raises
        DecodeError."""
        try:
            content = unpacked(payload)
        except Exception as error:  # torch.load can go wrong in any way
            raise DecodeError(
                f"parameters and optimizer state from the chief cannot be read: {str(error)[:200]}"
            ) from None
        with self.changed:
            self.share.check_content(content)
            self._pending.clear()  # gradients of the previous server generation
            self.share.replace_content(content, request.generation)
        self.set_ready()
        return Done(), b""

    def _end_serving(self, _: EndServing, __: bytearray) -> tuple[Done, bytes]:
        """Handle EndServing."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        return Done(), b""


def check_worker(worker: int, workers: int) -> None:
    """Raise DecodeError if `worker` is not one of 0..workers-1."""
    if not 0 <= worker < workers:
        raise DecodeError(
            f"no worker has the number {worker}: there are {workers}, counted from 0; "
            "workers and servers must be of the same job and image"
        )


def mean_gradients(step: Mapping[int, _Pushed]) -> list[torch.Tensor | None]:
    """Mean gradient of each parameter, over the workers of the step; added in order of workers, so that the
    sum is reproducible. A missing gradient counts as zero. None: no worker has a gradient.

    In place: the sum is made in the first worker's buffer.
    """
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
