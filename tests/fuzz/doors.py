"""What strangers say to a parameter server (29404), over its real port: greetings, frames and noise.

None is let in that has not shown the secret, and a worker that knows it is let in afterwards, as long as the
door is. Limits: with the secret a peer is a rank of the same job, which ends its server by what no optimizer
takes, loudly, as any rank that fails; that is not tried here.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import queue
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stderr, suppress
from random import Random

from tests.fuzz import odd
from tests.fuzz.campaign import Attempt, Campaign

from ropeteam_trainer.strategies.parameterserver import wire
from ropeteam_trainer.strategies.parameterserver.admission import Door

SECRET, PLACES, AT_ONCE = "of this job", 8, 16


def draw(chance: Random) -> bytes:
    nonce = chance.randbytes(wire.NONCE)
    proof = hmac.digest(b"another", b"worker" + nonce, "sha256")
    pull = b"\0\0\0\x0e" + b"\0" * 8 + b'{"do": "pull"}'
    whole = chance.choice((nonce + proof, nonce + proof + pull, pull, nonce * 9, b"GET / HTTP/1.1\r\n\r\n"))
    return odd.damaged(chance, whole) if chance.random() < 0.7 else whole


@asynccontextmanager
async def _door() -> AsyncIterator[Attempt]:
    listener = socket.create_server(("127.0.0.1", 0))
    address, inside = f"127.0.0.1:{listener.getsockname()[1]}", queue.Queue[socket.socket]()

    def let_in(connection: socket.socket) -> None:
        inside.put(connection)
        with suppress(OSError):  # it may be closed by now
            connection.sendall(b"x" * wire.ANSWER)  # who waits to be refused hears of it

    door = Door(listener, SECRET, PLACES, let_in)

    def attempt(case: bytes) -> str:
        with socket.create_connection(listener.getsockname(), 30) as stranger, suppress(OSError):
            stranger.recv(wire.NONCE)
            stranger.sendall(case)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16) and inside.empty():
                pass
        assert inside.empty()
        return "kept out"

    async def attempted(case: bytes) -> list[str]:
        return [attempt(case)]

    with redirect_stderr(io.StringIO()):
        door.open()
        yield attempted
        worker = await asyncio.to_thread(wire.connect, address, SECRET)
        inside.get().close()
        worker.close()
        door.close()


CAMPAIGNS = (Campaign("servers", "greetings", 1_000_000, draw, _door),)
