"""A worker's end: ask the chief, push the gradient to all servers, take their weights.

A server that does not answer is asked again until it does, wherever it is by then: its agent brings it back.
Nothing is applied twice, so asking again is safe.
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
"""Seconds between two tries to reach a server."""

Addresses = Callable[[], tuple[str, ...]]


class Line:
    """To one server, whatever becomes of it."""

    def __init__(
        self,
        index: int,
        addresses: Addresses,
        secret: str,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._index, self._addresses, self._secret, self._waiting = index, addresses, secret, waiting
        self._connection: socket.socket | None = None

    def call(
        self, head: Head, payload: Sequence[memoryview | bytes] = (), into: memoryview | None = None
    ) -> tuple[Head, bytes]:
        """The answer; its payload goes into `into` where that is given."""
        wait = FIRST_WAIT
        with self._waiting():
            with suppress(OSError):
                return self._try(head, payload, into)
            while True:
                self.close()
                try:
                    return self._try(head, payload, into)
                except wire.WrongSecret:
                    raise
                except OSError:
                    time.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _try(
        self, head: Head, payload: Sequence[memoryview | bytes], into: memoryview | None
    ) -> tuple[Head, bytes]:
        if self._connection is None:
            self._connection = wire.connect(self._addresses()[self._index], self._secret)
        wire.send(self._connection, head, payload)
        answer, size = wire.receive(self._connection)
        if into is None:
            return answer, bytes(wire.take(self._connection, size))
        if len(into) != size:
            raise RuntimeError(
                f"server {self._index} has {size} bytes of weights, this worker {len(into)}: their scripts "
                "build different models"
            )
        wire.fill(self._connection, into)
        return answer, b""


class _Part:
    """The parameters that one server keeps, in one piece of memory here."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], line: Line) -> None:
        self.parameters, self.line = list(parameters.values()), line
        self.layout = flat.layout(parameters)
        memory = bytearray(max(self.layout.size, 1))
        self._room = memoryview(memory)[: self.layout.size]
        self._views = list(self.layout.tensors(memory).values())
        self.version = 0
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type == "cpu":
                view.copy_(parameter.detach())
                parameter.data = view  # weights are received where they are used

    def exchange(self, head: Head) -> None:
        """Send a request, with gradients if it is a push, and take the weights."""
        payload: list[memoryview | bytes] = []
        if head["do"] == "push":
            grads = [parameter.grad for parameter in self.parameters]
            lacking = [index for index, grad in enumerate(grads) if grad is None]
            head = {**head, "version": self.version, "lacking": lacking}
            payload = self.layout.pieces(
                [
                    torch.zeros_like(view) if grad is None else grad.detach().cpu()
                    for grad, view in zip(grads, self._views, strict=True)
                ]
            )
        answer, _ = self.line.call(head, payload, self._room)
        self.version = answer["version"]
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.device.type != "cpu":
                parameter.data.copy_(view)


class Worker:
    """`clock`: gradients of this worker that are done. me: {worker: number, epoch: of this process}.
    lines: one for requests to the chief, then one to each server.
    """

    def __init__(
        self, me: Head, named: Mapping[str, nn.Parameter], optimizer: Optimizer, lines: Sequence[Line]
    ) -> None:
        self.clock = 0
        self._me, self._optimizer, self._chief = me, optimizer, lines[0]
        # The chief keeps a part, too: a line of its own, so that requests to it stay in order.
        parts = shares(named, len(lines) - 1)
        self._parts = [_Part(part, line) for part, line in zip(parts, lines[1:], strict=True)]
        self._pool = ThreadPoolExecutor(len(self._parts), "ropeteam-push")
        self._is_told = True

    def join(self) -> dict[str, Any]:
        """Take the weights. Returns this worker's own state, as it was when its last gradient was done."""
        answer, payload = self._chief.call({"do": "hello", **self._me})
        state: dict[str, Any] = unpacked(payload)
        self.clock = max(answer["clock"], state.get("clock", 0))
        if self.clock > answer["clock"]:  # the chief died between two lines of its memory
            self._chief.call({"do": "done", **self._me, "clock": self.clock}, [payload])
        self._exchange({"do": "pull"})
        return state

    def step(self) -> int:
        """Push the gradient, or learn that the step is closed. Returns the steps that were skipped."""
        if not self._is_told:
            self.tell({})
        n = self.clock
        answer, _ = self._chief.call({"do": "ask", **self._me, "n": n})
        self._is_told = False
        if "skip" in answer:
            self._exchange({"do": "pull"})
            self.clock = answer["skip"]
            return self.clock - n - 1
        values = values_of(self._optimizer)
        self._exchange({"do": "push", **self._me, "n": n, "of": answer["of"], "values": values})
        self.clock = n + 1
        return 0

    def tell(self, state: dict[str, Any]) -> None:
        """The last gradient is done, and this is what a successor of this process would go on from."""
        self._is_told = True
        payload = packed({**state, "clock": self.clock})
        self._chief.call({"do": "done", **self._me, "clock": self.clock}, [payload])

    def leave(self) -> None:
        """The script has ended."""
        self._chief.call({"do": "leave", **self._me})
        self._pool.shutdown()
        for line in (self._chief, *(part.line for part in self._parts)):
            line.close()

    def _exchange(self, head: Head) -> None:
        for done in [self._pool.submit(part.exchange, head) for part in self._parts]:
            done.result()
