"""The connection to the coordinator: one at a time, for ever. Reports go out, orders come in.

Reconnects after 50 ms, then with exponential backoff up to 0.4 s, with jitter. A peer that does not send the
greeting within lostSeconds is dropped. Messages of an older release could be a replay: they are accepted only
if the term is higher than that of every coordinator that took a nonce of this agent. Reports are numbered,
and orders are passed on with the age of the report that they answer. Frames are authenticated
(contract/wire.py). Limit: the address is numeric, and fixed for the life of the agent.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.events import Event, LinkLost, LinkUp, OrdersReceived
from ropeteam_trainer.agent.processes.waiting import within
from ropeteam_trainer.contract import LEASES, OLDEST, codec, grantchunks, wire
from ropeteam_trainer.contract.errors import ProtocolError
from ropeteam_trainer.contract.messages import LEASE, AgentReport, Orders, parse_lease_answer
from ropeteam_trainer.system.clocks import boot_seconds

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 0.4
"""Seconds before a reconnection."""
_MAX_UNANSWERED = 1024
"""Unanswered reports of one connection: as many as are sent before it is given up."""


class Link:
    """The agent's side of the connection. Posts LinkUp, OrdersReceived and LinkLost.

    `address`: `host:port`, numeric. `token`: the job's. `lost`: lostSeconds. `chance`: for jitter and nonces.
    `clock`: for the age of reports; it must count suspended time.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        lost: float,
        post: Callable[[Event], None],
        chance: Random,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._token, self._lost, self._post, self._chance = token, lost, post, chance
        self._clock = clock
        self._writer: asyncio.StreamWriter | None = None
        """Set while connected, as is the sealer."""
        self._sealer: wire.Sealer | None = None
        self._delay = _FIRST_DELAY
        self._received_at = 0.0
        """Time at which the last frame, or the greeting, of this connection was received."""
        self._takes_nonce = False
        """Whether this coordinator takes a nonce of the agent, and is of LEASES or later."""
        self._number = 0
        """Number of the newest report on this connection."""
        self._sent: deque[tuple[int, float]] = deque(maxlen=_MAX_UNANSWERED)
        """Numbers of reports, and when they were sent."""
        self._term = 0
        """The highest term of a coordinator whose messages cannot be a replay."""

    async def run(self) -> None:
        """Connect, for ever, again after each end. An error is logged if it differs from the last one."""
        last_error = ""
        while True:
            try:
                await self._connect()
            except (OSError, EOFError, ProtocolError) as error:
                text = f"{type(error).__name__}: {error}"
                if text != last_error:
                    where = f"{self._host}:{self._port}"
                    log(f"no connection to the coordinator at {where}, trying again: {text}")
                last_error = text
            await asyncio.sleep(self._delay * self._chance.uniform(0.5, 1.0))
            self._delay = min(self._delay * 2, _LONGEST_DELAY)

    def send(self, report: AgentReport) -> None:
        """Send a report. Does nothing without a connection: the next one begins with a report."""
        contract = LEASES if self._takes_nonce else OLDEST
        self._write(codec.encode(replace(report, number=self._number + 1, contract=contract)))

    def renew(self) -> bool:
        """Renew the lease by its short frame: nothing has changed since the last report. False: nothing was
        sent, because the coordinator is too old, or this connection has had no report; send one instead."""
        if self._takes_nonce and self._number:
            self._write(LEASE)
        return self._takes_nonce and self._number > 0

    def _write(self, body: bytes) -> None:
        """Number a report or lease, remember its time and send it. Nothing happens without a connection."""
        if self._writer is None or self._sealer is None:
            return
        self._number += 1
        self._sent.append((self._number, self._clock()))
        try:
            self._writer.write(self._sealer.seal(body))
        except wire.WireError as error:
            log(f"report to the coordinator not sent: {error}")

    def drop(self, why: str) -> None:
        """Close the connection, if there is one, and log why. `run` connects again; LinkLost follows."""
        log(f"connection to the coordinator closed: {why}")
        if self._writer is not None:
            self._writer.transport.abort()

    def silent_seconds(self) -> float:
        """Seconds since the coordinator of this connection last sent anything. 0 without a connection."""
        if self._writer is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._received_at

    def _report_age(self, answered: int | None) -> float:
        """Seconds since the report of this number was sent; forgets those before it. 0: no number is given.
        Infinite: it is not remembered."""
        if answered is None:
            return 0.0
        while self._sent and self._sent[0][0] < answered:
            self._sent.popleft()
        known = bool(self._sent) and self._sent[0][0] == answered
        return self._clock() - self._sent[0][1] if known else float("inf")

    async def _connect(self) -> None:
        """Connect, check the greeting, and exchange messages until the connection ends. Always raises then:
        OSError, EOFError or ProtocolError."""
        reader, writer = await within(self._lost, asyncio.open_connection(self._host, self._port))
        try:
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._lost * 1000))
            greeting = await within(self._lost, reader.readexactly(len(wire.HELLO) + wire.NONCE_SIZE))
            if not greeting.startswith(wire.HELLO):
                raise wire.WireError("the peer is not a coordinator")
            await self._exchange(reader, writer, greeting[len(wire.HELLO) :])
        finally:
            writer.transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes
    ) -> None:
        """Send the agent's nonce, if the peer takes one, and post LinkUp; then post the orders of each frame.

        The handshake is described in contract/wire.py. Files of a grant may come in frames of their own,
        before the orders that name it (contract/grantchunks.py). Always raises: EOFError at the end of the
        connection, ProtocolError for a frame that is malformed or not authentic. Posts LinkLost before.
        """
        self._takes_nonce = takes_nonce = wire.accepts_answer(nonce)
        key = self._token
        if takes_nonce:
            agent_nonce = self._chance.randbytes(wire.NONCE_SIZE)
            writer.write(wire.ANSWER + agent_nonce)
            key = wire.session_key(self._token, agent_nonce)
        opener = wire.Opener(key, nonce, wire.TO_AGENT)
        self._writer, self._sealer = writer, wire.Sealer(key, nonce, wire.TO_COORDINATOR)
        if wire.expects_empty_frame(nonce):
            writer.write(self._sealer.seal(LEASE))
        self._received_at, self._delay = asyncio.get_running_loop().time(), _FIRST_DELAY
        self._number = 0
        self._sent.clear()
        self._post(LinkUp())
        files: grantchunks.GrantFiles | None = None
        try:
            while data := await reader.read(1 << 16):
                for body in opener.feed(data):
                    if part := grantchunks.parse_part(body):
                        files = grantchunks.with_part(files, part)
                        continue
                    orders = parse_lease_answer(body) or codec.decode(Orders, body)
                    orders = grantchunks.with_files(orders, files)
                    self._check_term(orders.term, takes_nonce)
                    self._received_at = asyncio.get_running_loop().time()
                    self._post(OrdersReceived(orders, self._report_age(orders.answers)))
            raise EOFError("the coordinator closed the connection")
        finally:
            self._writer = self._sealer = None
            self._post(LinkLost())

    def _check_term(self, term: int, takes_nonce: bool) -> None:
        """Raise WireError for orders that may be a replay (see above); remember the term of others."""
        if takes_nonce:
            self._term = max(self._term, term)
        elif term <= self._term:
            raise wire.WireError(
                f"orders of term {term} are refused, because they may be a replay: the peer takes no nonce, "
                f"and a coordinator of term {self._term} did"
            )
