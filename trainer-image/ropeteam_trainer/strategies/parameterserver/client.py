"""A worker's client: send a request to the chief, push the gradient to all servers, receive their weights.

A request without an answer is repeated until one comes, at the server's current address: its agent restarts
it. Servers apply no gradient twice, so repetitions are safe.
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
from ropeteam_trainer.strategies.parameterserver.hyperparameters import Hyperparameters, hyperparameters_of
from ropeteam_trainer.strategies.parameterserver.payloads import packed, unpacked
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
from ropeteam_trainer.strategies.parameterserver.share import shares_by_server

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.02, 1.0
"""Pause between two attempts to reach a server: it doubles from the first to the maximum."""

Addresses = Callable[[], tuple[str, ...]]
"""Current `host:port` of all servers, chief first."""
Payload = Sequence[memoryview | bytes]
A = TypeVar("A")


class ServerConnection:
    """Connection to the server `index`, opened by the first call and again after each failure. For one thread
    at a time."""

    def __init__(
        self,
        index: int,
        addresses: Addresses,
        secret: str,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """waiting: context for the time of a call, in which this rank does not count as hung."""
        self._index, self._addresses, self._secret, self._waiting = index, addresses, secret, waiting
        self._socket: socket.socket | None = None

    def call(
        self, request: Request[A], payload: Payload = (), into: memoryview | None = None
    ) -> tuple[A, bytes]:
        """Send a request and return its answer, with the answer's payload. Blocks until the server answers:
        connection errors are retried without a limit. Every request may be repeated.

        into: buffer for the payload, which is then returned empty. Raises ServerRefused; WrongSecret
        if the server belongs to another job; DecodeError if the answer cannot be read; RuntimeError if its
        payload has another size than `into`.
        """
        backoff = FIRST_BACKOFF_SECONDS
        with self._waiting():
            with suppress(OSError):  # an idle connection may have ended, so the first failure has no pause
                return self._attempt(request, payload, into)
            while True:
                self.close()
                try:
                    return self._attempt(request, payload, into)
                except wire.WrongSecret:
                    raise
                except OSError:
                    time.sleep(backoff)
                    backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    def close(self) -> None:
        """Close the socket, if there is one; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _attempt(self, request: Request[A], payload: Payload, into: memoryview | None) -> tuple[A, bytes]:
        """One attempt of call(). Raises OSError if the connection fails."""
        if self._socket is None:
            self._socket = wire.connect(self._addresses()[self._index], self._secret)
        wire.send(self._socket, requests.encode(request), payload)
        header, size = wire.receive_header(self._socket)
        answer = requests.parse_answer(request, header)
        if into is None:
            return answer, bytes(wire.receive_exactly(self._socket, size))
        if len(into) != size:
            raise RuntimeError(
                f"parameter server {self._index} has {size} bytes of weights, this worker {len(into)} for "
                "the same part of the model: workers and servers must run the same script and build the "
                "same model"
            )
        wire.receive_into(self._socket, into)
        return answer, b""


WorkerProcess = tuple[int, tuple[int, ...]]
"""A worker's number, and its world (term, boot, n), by which two processes of a worker differ."""


class _ServerPart:
    """One server's part of the model, as this worker has it: all parameters in one contiguous buffer."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], connection: ServerConnection) -> None:
        """Moves parameters on the CPU into the buffer, in place."""
        self.parameters, self.connection = list(parameters.values()), connection
        self.layout = flat.layout_of(parameters)
        memory = bytearray(max(self.layout.size, 1))
        self._buffer = memoryview(memory)[: self.layout.size]
        self._views = list(self.layout.tensors(memory).values())
        self.version = 0
        """Steps that the server had done when the weights were received."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type == "cpu":
                view.copy_(parameter.detach())
                parameter.data = view  # weights are received where they are used

    def pull(self) -> None:
        """Receive the server's weights into the parameters."""
        self._receive_weights(PullWeights(), ())

    def push(self, sender: WorkerProcess, n: int, of: int, hyperparameters: Hyperparameters) -> None:
        """Send gradient `n` of a step of `of` gradients, and receive the weights after the step. A parameter
        without a gradient is sent as zeros and listed as missing."""
        grads = [parameter.grad for parameter in self.parameters]
        missing = tuple(index for index, grad in enumerate(grads) if grad is None)
        payload = self.layout.buffers(
            [
                torch.zeros_like(view) if grad is None else grad.detach().cpu()
                for grad, view in zip(grads, self._views, strict=True)
            ]
        )
        request = PushGradient(*sender, n, of, tuple(hyperparameters), self.version, missing)
        self._receive_weights(request, payload)

    def _receive_weights(self, request: Request[Weights], payload: Payload) -> None:
        """Send the request, and receive the weights of its answer into the parameters."""
        answer, _ = self.connection.call(request, payload, self._buffer)
        self.version = answer.version
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type != "cpu":
                parameter.data.copy_(view)


class WorkerClient:
    """A worker's client of all servers. Order of calls: join(), then for each gradient push_or_skip() and
    report_step(), then leave(). Each blocks until the servers have answered, and raises as
    ServerConnection.call().

    clock: gradients of this worker that are done, applied or dropped.
    """

    def __init__(
        self,
        me: WorkerProcess,
        named: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        connections: Sequence[ServerConnection],
    ) -> None:
        """named: all parameters, in the same order as on the servers. connections: one for requests to the
        chief, then one to each server."""
        self.clock = 0
        self._me, self._optimizer, self._chief = me, optimizer, connections[0]
        # The chief keeps a part, too: over a connection of its own, so that requests to it stay in order.
        parts = shares_by_server(named, len(connections) - 1)
        self._parts = [_ServerPart(part, each) for part, each in zip(parts, connections[1:], strict=True)]
        self._pool = ThreadPoolExecutor(len(self._parts), "ropeteam-push")
        self._is_reported = True
        """Whether the gradient before `clock` was reported to the chief."""

    def join(self) -> dict[str, Any]:
        """Register, pull the weights and set `clock`. Returns this worker's own state: as the
        previous process of this worker reported it, or else of the checkpoint or the start."""
        registered, payload = self._chief.call(Register(*self._me))
        state: dict[str, Any] = unpacked(payload)
        self.clock = max(registered.clock, state.get("clock", 0))
        if self.clock > registered.clock:  # the chief died between two writes to its memory
            self._chief.call(ReportStep(*self._me, self.clock), [payload])
        self._pull()
        return state

    def push_or_skip(self) -> int:
        """Push the gradients of the parameters, or drop them if their step is closed; then the parameters
        have the newest weights. Returns how many further steps are skipped: 0 after a push, or if the open
        step is the next one. The caller skips the data of these.

        If report_step() was not called since the last push, reports that first, without a state.
        """
        if not self._is_reported:
            self.report_step({})
        n = self.clock
        decision, _ = self._chief.call(RequestStep(*self._me, n))
        self._is_reported = False
        if isinstance(decision, SkipDecision):
            self._pull()
            self.clock = decision.skip
            return self.clock - n - 1
        hyperparameters, of = hyperparameters_of(self._optimizer), decision.of
        self._at_all_servers(lambda part: part.push(self._me, n, of, hyperparameters))
        self.clock = n + 1
        return 0

    def report_step(self, state: dict[str, Any]) -> None:
        """Report that the gradients below `clock` are done. state: of this worker, for a process that
        replaces it; plain values and tensors."""
        self._is_reported = True
        payload = packed({**state, "clock": self.clock})
        self._chief.call(ReportStep(*self._me, self.clock), [payload])

    def leave(self) -> None:
        """Report the end of the script, and close all connections."""
        self._chief.call(Deregister(*self._me))
        self._pool.shutdown()
        for connection in (self._chief, *(part.connection for part in self._parts)):
            connection.close()

    def _pull(self) -> None:
        self._at_all_servers(_ServerPart.pull)

    def _at_all_servers(self, act: Callable[[_ServerPart], None]) -> None:
        """Call `act` for all servers in parallel, and return when it is done for all. Raises its first
        error."""
        for done in [self._pool.submit(act, part) for part in self._parts]:
            done.result()
