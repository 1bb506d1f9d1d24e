"""A worker's client: request from the chief, push the gradient to all servers, receive their weights.

A request without an answer is retried until one comes, at the server's current address: its agent restarts
it. Nothing is applied twice, so retries are safe.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.strategies.parameterserver import flat, requests, wire
from ropeteam_trainer.strategies.parameterserver.requests import (
    Deregister,
    PullWeights,
    PushGradient,
    Register,
    ReportStep,
    Request,
    RequestStep,
    SkipDecision,
    Weights,
)
from ropeteam_trainer.strategies.parameterserver.service import packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import Values, shares, values_of

FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Backoff in seconds between two attempts to reach a server: first, longest."""

Addresses = Callable[[], tuple[str, ...]]
Payload = Sequence[memoryview | bytes]
A = TypeVar("A")


class Line:
    """Connection to one server, re-established when it fails."""

    def __init__(
        self,
        index: int,
        addresses: Addresses,
        secret: str,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._index, self._addresses, self._secret, self._alive = index, addresses, secret, waiting
        self._connection: socket.socket | None = None

    def call(
        self, request: Request[A], payload: Payload = (), into: memoryview | None = None
    ) -> tuple[A, bytes]:
        """Send a request and return the answer; its payload is written to `into` if that is given. Raises
        ServerRefused."""
        wait = FIRST_WAIT
        with self._alive():
            with suppress(OSError):
                return self._attempt(request, payload, into)
            while True:
                self.close()
                try:
                    return self._attempt(request, payload, into)
                except wire.WrongSecret:
                    raise
                except OSError:
                    time.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, request: Request[A], payload: Payload, into: memoryview | None) -> tuple[A, bytes]:
        if self._connection is None:
            self._connection = wire.connect(self._addresses()[self._index], self._secret)
        wire.send(self._connection, requests.encode(request), payload)
        head, size = wire.receive(self._connection)
        answer = requests.parse_answer(request, head)
        if into is None:
            return answer, bytes(wire.take(self._connection, size))
        if len(into) != size:
            raise RuntimeError(
                f"server {self._index} has {size} bytes of weights, this worker {len(into)}: their scripts "
                "build different models"
            )
        wire.fill(self._connection, into)
        return answer, b""


Sender = tuple[int, tuple[int, ...]]
"""A worker's number, and the number of its world."""


class _Part:
    """Parameters that one server keeps, in one contiguous buffer on this worker."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], line: Line) -> None:
        self.parameters, self.line = list(parameters.values()), line
        self.layout = flat.layout(parameters)
        memory = bytearray(max(self.layout.size, 1))
        self._buffer = memoryview(memory)[: self.layout.size]
        self._views = list(self.layout.tensors(memory).values())
        self.version = 0
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type == "cpu":
                view.copy_(parameter.detach())
                parameter.data = view  # weights are received where they are used

    def pull(self) -> None:
        self._receive_weights(PullWeights(), ())

    def push(self, sender: Sender, n: int, of: int, values: Values) -> None:
        """Send gradient `n`, and receive the weights."""
        grads = [parameter.grad for parameter in self.parameters]
        missing = tuple(index for index, grad in enumerate(grads) if grad is None)
        payload = self.layout.pieces(
            [
                torch.zeros_like(view) if grad is None else grad.detach().cpu()
                for grad, view in zip(grads, self._views, strict=True)
            ]
        )
        request = PushGradient(*sender, n, of, tuple(values), self.version, missing)
        self._receive_weights(request, payload)

    def _receive_weights(self, request: Request[Weights], payload: Payload) -> None:
        answer, _ = self.line.call(request, payload, self._buffer)
        self.version = answer.version
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type != "cpu":
                parameter.data.copy_(view)


class Worker:
    """Client of all servers. `clock`: gradients of this worker that are done. lines: one for requests to the
    chief, then one to each server.
    """

    def __init__(
        self, me: Sender, named: Mapping[str, nn.Parameter], optimizer: Optimizer, lines: Sequence[Line]
    ) -> None:
        self.clock = 0
        self._me, self._optimizer, self._chief = me, optimizer, lines[0]
        # The chief keeps a part, too: over a connection of its own, so that requests to it stay in order.
        parts = shares(named, len(lines) - 1)
        self._parts = [_Part(part, line) for part, line in zip(parts, lines[1:], strict=True)]
        self._pool = ThreadPoolExecutor(len(self._parts), "ropeteam-push")
        self._is_reported = True

    def join(self) -> dict[str, Any]:
        """Pull the weights. Returns this worker's own state, as of its last finished gradient."""
        registered, payload = self._chief.call(Register(*self._me))
        state: dict[str, Any] = unpacked(payload)
        self.clock = max(registered.clock, state.get("clock", 0))
        if self.clock > registered.clock:  # the chief died between two writes to its memory
            self._chief.call(ReportStep(*self._me, self.clock), [payload])
        self._pull()
        return state

    def step(self) -> int:
        """Push the gradient, or skip if the step is closed. Returns the steps that were skipped."""
        if not self._is_reported:
            self.tell({})
        n = self.clock
        decision, _ = self._chief.call(RequestStep(*self._me, n))
        self._is_reported = False
        if isinstance(decision, SkipDecision):
            self._pull()
            self.clock = decision.skip
            return self.clock - n - 1
        values, of = values_of(self._optimizer), decision.of
        self._at_all_servers(lambda part: part.push(self._me, n, of, values))
        self.clock = n + 1
        return 0

    def tell(self, state: dict[str, Any]) -> None:
        """Report the last gradient done, with the state from which a successor would resume."""
        self._is_reported = True
        payload = packed({**state, "clock": self.clock})
        self._chief.call(ReportStep(*self._me, self.clock), [payload])

    def leave(self) -> None:
        """Report the end of the script, and close all connections."""
        self._chief.call(Deregister(*self._me))
        self._pool.shutdown()
        for line in (self._chief, *(part.line for part in self._parts)):
            line.close()

    def _pull(self) -> None:
        self._at_all_servers(_Part.pull)

    def _at_all_servers(self, act: Callable[[_Part], None]) -> None:
        for done in [self._pool.submit(act, part) for part in self._parts]:
            done.result()
