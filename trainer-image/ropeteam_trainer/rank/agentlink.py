"""A rank's two channels to its agent: the heartbeat page, written at every step, and the Unix socket, for
rare messages.

The training thread never touches the socket: it puts messages in a queue and reads attributes; two daemon
threads do the rest. Without an agent the link is a NoAgent, and the page is private memory.
"""

from __future__ import annotations

import mmap
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import (
    PAGE_SIZE,
    Beat,
    FromRank,
    ToRank,
    read_beat,
    write_beat,
)
from ropeteam_trainer.system.notice import notice

_WAIT_SECONDS = 1.0
"""Interval of the heartbeats of a rank that waits."""
_LOSS_SECONDS = 1.0
"""Minimum interval between two losses that are sent."""
_ANSWER_SECONDS = 60.0
"""Timeout of the request for the secret."""


class HeartbeatWriter:
    """Step and phase of this rank, which write() puts into the page that its agent reads."""

    def __init__(self, path: str | None) -> None:
        """path: file of the page, which is mapped; None: no agent reads it."""
        self._page = memoryview(bytearray(PAGE_SIZE))
        if path is not None:
            with open(path, "r+b") as file:
                self._page = memoryview(mmap.mmap(file.fileno(), PAGE_SIZE))
        self._sequence = 0
        self._writing = threading.Lock()  # threads that serve write too
        self._is_waiting = False
        self._watch: threading.Thread | None = None
        self.step = 0
        """Steps done by the job."""
        self.steps_here = 0
        """Steps done by this process."""
        self.samples = 0.0
        """Samples of all ranks, in steps of this process."""
        self.phase = ""
        """One of PHASES; "" while there is none."""

    def write(self) -> None:
        """Write a heartbeat. Nothing once the script has ended, so that its end stays in the page: what
        follows, such as leaving the parameter servers, is no step."""
        with self._writing:
            if self.script_has_ended:
                return
            self._sequence += 1
            now = time.monotonic_ns()
            write_beat(
                self._page,
                Beat(self.step, self.steps_here, now, self.phase, self.samples),
                self._sequence,
            )

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Context in which the phase is `phase`, one of PHASES; heartbeats are written at its begin and
        end."""
        before, self.phase = self.phase, phase
        self.write()
        try:
            yield
        finally:
            self.phase = before
            self.write()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which this rank does nothing but wait for others: heartbeats show that it lives, so that
        only a rank that these wait for can hang."""
        if self._watch is None:
            self._watch = threading.Thread(target=self._show_waits, daemon=True, name="ropeteam-waits")
            self._watch.start()
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def _show_waits(self) -> None:
        while True:
            time.sleep(_WAIT_SECONDS)
            if self._is_waiting:
                self.write()

    @property
    def script_has_ended(self) -> bool:
        """Whether the agent's shim, which runs the script, has marked its regular end."""
        heartbeat = read_beat(self._page)
        return heartbeat is not None and heartbeat.reached_end


class AgentLink:
    """Connection to the agent. Two threads read and write it: each line that is read carries the agent's
    whole state for this rank, which attributes show. No method blocks, except wait_for_stop_at() and
    close()."""

    connected = True

    def __init__(self, connection: socket.socket, heart: HeartbeatWriter) -> None:
        """heart: of this rank."""
        self._socket, self._heart = connection, heart
        self._outbox: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self.paused = False
        """Whether a drain is requested: report to it, and wait for the step to stop at."""
        self.stop_at: int | None = None
        """Step at which this rank saves and stops. None: not decided yet, or no drain."""
        self.servers: tuple[str, ...] = ()
        """Addresses of the parameter servers, if they have changed since this rank was started."""
        self.newest = ToRank()
        """The agent's newest line."""
        self._has_ended = False
        self._loss: Any = None
        self._total_steps: int | None = None
        threading.Thread(target=self._read, daemon=True, name="ropeteam-read").start()
        self._writer = threading.Thread(target=self._write, daemon=True, name="ropeteam-write")
        self._writer.start()

    def send(self, message: FromRank) -> None:
        """Queue a message and return at once. Messages keep their order; they are lost if the connection
        ends."""
        self._outbox.put(message)

    def offer_loss(self, loss: Any) -> None:
        """Set the newest loss, a number or a tensor of one element. The writing thread reads and sends one
        per second, so that no step waits for a device."""
        self._loss = loss

    def offer_total_steps(self, total: int | None) -> None:
        """Send the job's number of steps, if it has changed. None: unknown, nothing is sent."""
        total = None if total is None else min(int(total), sys.maxsize)
        if total not in (None, self._total_steps):
            self._total_steps = total
            self.send(FromRank(total_steps=total))

    def wait_for_stop_at(self) -> int | None:
        """Block a paused rank until the agent sends the step to stop at, or ends the pause (None)."""
        with self._changed:
            self._changed.wait_for(lambda: self.stop_at is not None or not self.paused)
            return self.stop_at

    def wait_until(self, holds: Callable[[ToRank], bool], seconds: float | None) -> ToRank | None:
        """Wait for a line of the agent of which this holds, and return it. None: not within so many
        seconds (None: however long), or the agent has ended."""
        with self._changed:
            self._changed.wait_for(lambda: holds(self.newest) or self._has_ended, seconds)
            return self.newest if holds(self.newest) else None

    def close(self) -> None:
        """Send the queued messages, for two seconds at most, and close the connection."""
        self._outbox.put(None)
        self._writer.join(timeout=2)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        """Body of a thread: apply the agent's lines until the connection ends, or one cannot be decoded."""
        with suppress(OSError, codec.DecodeError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._apply(codec.decode(ToRank, line))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _apply(self, message: ToRank) -> None:
        """Show a line, and acknowledge a pause. Order: first the pause is shown, then the step is read: so
        this rank waits after the step that is sent, or after the next one, and makes none beyond."""
        with self._changed:
            begins = message.pause and not self.paused
            self.paused, self.stop_at = message.pause, message.stop_at
            self.servers, self.newest = message.servers, message
            self._changed.notify_all()
        if begins:  # not by the other thread, which may wait for a device, and that for a paused rank
            self._send_line(FromRank(pause_received=self._heart.step))

    def _write(self) -> None:
        """Body of a thread: send queued messages, and every second the newest loss, until close() or an
        error."""
        next_loss = 0.0
        with suppress(OSError):
            while True:
                try:
                    message = self._outbox.get(timeout=_LOSS_SECONDS)
                except queue.Empty:
                    message = FromRank()
                if message is None or time.monotonic() >= next_loss:
                    next_loss = time.monotonic() + _LOSS_SECONDS
                    self._send_loss()
                if message is None:
                    return
                if message != FromRank():
                    self._send_line(message)

    def _send_loss(self) -> None:
        """Send the loss that was offered last, if it is not sent yet. Reading it may wait for a device."""
        loss, self._loss = self._loss, None
        if loss is not None:
            self._send_line(FromRank(loss=f"{float(loss):.6g}"))

    def _send_line(self, message: FromRank) -> None:
        """Send a message now. Raises OSError."""
        with self._sending:
            self._socket.sendall(codec.encode(message) + b"\n")


class NoAgent:
    """AgentLink of a rank without an agent, or whose agent cannot be reached: sends nothing, never pauses."""

    connected = False
    paused = False
    stop_at: int | None = None
    servers: tuple[str, ...] = ()
    newest = ToRank()

    def send(self, message: FromRank) -> None:
        pass

    def offer_loss(self, loss: Any) -> None:
        pass

    def offer_total_steps(self, total: int | None) -> None:
        pass

    def wait_for_stop_at(self) -> int | None:
        return None

    def wait_until(self, holds: Callable[[ToRank], bool], seconds: float | None) -> ToRank | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        pass


def fetch_secret_of_servers(environ: Mapping[str, str]) -> str:
    """Fetch the secret of the parameter servers from the agent. Raises OSError, also after 60 s, and
    DecodeError if the agent closes the connection instead."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(environ[config.RANK_SOCKET])
        connection.sendall(codec.encode(FromRank(wants_secret=True)) + b"\n")
        with connection.makefile("rb") as lines:
            return codec.decode(ToRank, lines.readline()).secret


def wait_to_be_killed() -> NoReturn:
    """Wait, after a drain, until the agent kills this rank."""
    while True:
        time.sleep(3600)


def connect(environ: Mapping[str, str], rank: int | None, heart: HeartbeatWriter) -> AgentLink | NoAgent:
    """Connect to the agent. Returns NoAgent outside of a TrainingJob, or if the agent cannot be reached:
    training continues without it.

    rank: reported to the agent with feature level 1: so it may pause this rank, and expects a first step in
    time. None: nothing is reported. heart: of this rank.
    """
    path = environ.get(config.RANK_SOCKET)
    if path is None:
        return NoAgent()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        notice(
            f"cannot reach the agent at {path}: {error}. Training continues, but this rank reports no loss "
            "and cannot be paused for a drain: its pod's agent may have ended, see the log above"
        )
        return NoAgent()
    link = AgentLink(connection, heart)
    if rank is not None:
        level = FeatureLevel.STEPS
        link.send(FromRank(hello_pid=os.getpid(), rank=rank, feature_level=level, acknowledges_pause=True))
    return link
