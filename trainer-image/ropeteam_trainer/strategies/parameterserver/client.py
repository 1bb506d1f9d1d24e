"""A worker's client: request from the chief, push the gradient to all servers, receive their weights.

A request without a response is retried until one comes, at the server's current address: its agent restarts
it. Nothing is applied twice, so retries are safe.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.strategies.parameterserver import flat, wire
from ropeteam_trainer.strategies.parameterserver.service import packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import shares, values_of
from ropeteam_trainer.strategies.parameterserver.wire import Head

FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Backoff in seconds between two attempts to reach a server: first, longest."""

Addresses = Callable[[], tuple[str, ...]]


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
        self, head: Head, payload: Sequence[memoryview | bytes] = (), into: memoryview | None = None
    ) -> tuple[Head, bytes]:
        """Send a request and return the response; its payload is written to `into` if that is given."""
        wait = FIRST_WAIT
        with self._alive():
            with suppress(OSError):
                return self._attempt(head, payload, into)
            while True:
                self.close()
                try:
                    return self._attempt(head, payload, into)
                except wire.WrongSecret:
                    raise
                except OSError:
                    time.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(
        self, head: Head, payload: Sequence[memoryview | bytes], into: memoryview | None
    ) -> tuple[Head, bytes]:
        if self._connection is None:
            self._connection = wire.connect(self._addresses()[self._index], self._secret)
        wire.send(self._connection, head, payload)
        response, size = wire.receive(self._connection)
        if into is None:
            return response, bytes(wire.take(self._connection, size))
        if len(into) != size:
            raise RuntimeError(
                f"server {self._index} has {size} bytes of weights, this worker {len(into)}: their scripts "
                "build different models"
            )
        wire.fill(self._connection, into)
        return response, b""


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

    def exchange(self, head: Head) -> None:
        """Send a request, with gradients if it is a push, and receive the weights."""
        payload: list[memoryview | bytes] = []
        if head["do"] == "push":
            grads = [parameter.grad for parameter in self.parameters]
            missing = [index for index, grad in enumerate(grads) if grad is None]
            head = {**head, "version": self.version, "lacking": missing}
            payload = self.layout.pieces(
                [
                    torch.zeros_like(view) if grad is None else grad.detach().cpu()
                    for grad, view in zip(grads, self._views, strict=True)
                ]
            )
        response, _ = self.line.call(head, payload, self._buffer)
        self.version = response["version"]
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type != "cpu":
                parameter.data.copy_(view)


class Worker:
    """Client of all servers. `clock`: gradients of this worker that are done. me: {worker: number, epoch: of
    this process}. lines: one for requests to the chief, then one to each server.
    """

    def __init__(
        self, me: Head, named: Mapping[str, nn.Parameter], optimizer: Optimizer, lines: Sequence[Line]
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
        response, payload = self._chief.call({"do": "hello", **self._me})
        state: dict[str, Any] = unpacked(payload)
        self.clock = max(response["clock"], state.get("clock", 0))
        if self.clock > response["clock"]:  # the chief died between two writes to its memory
            self._chief.call({"do": "done", **self._me, "clock": self.clock}, [payload])
        self._exchange({"do": "pull"})
        return state

    def step(self) -> int:
        """Push the gradient, or skip if the step is closed. Returns the steps that were skipped."""
        if not self._is_reported:
            self.tell({})
        n = self.clock
        response, _ = self._chief.call({"do": "ask", **self._me, "n": n})
        self._is_reported = False
        if "skip" in response:
            self._exchange({"do": "pull"})
            self.clock = response["skip"]
            return self.clock - n - 1
        values = values_of(self._optimizer)
        self._exchange({"do": "push", **self._me, "n": n, "of": response["of"], "values": values})
        self.clock = n + 1
        return 0

    def tell(self, state: dict[str, Any]) -> None:
        """Report the last gradient done, with the state from which a successor would resume."""
        self._is_reported = True
        payload = packed({**state, "clock": self.clock})
        self._chief.call({"do": "done", **self._me, "clock": self.clock}, [payload])

    def leave(self) -> None:
        """Report the end of the script, and close all connections."""
        self._chief.call({"do": "leave", **self._me})
        self._pool.shutdown()
        for line in (self._chief, *(part.line for part in self._parts)):
            line.close()

    def _exchange(self, head: Head) -> None:
        for done in [self._pool.submit(part.exchange, head) for part in self._parts]:
            done.result()
