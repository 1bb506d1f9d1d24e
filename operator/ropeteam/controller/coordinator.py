"""The one call to a job's coordinator: tell it what should be, read how it is.

    PUT http://<clusterIP>:29402/desired    Desired -> JobReport

Short timeouts, no second try: the next round asks again, and training does not wait for us.
Whoever may make pods in a namespace can answer here in a coordinator's place. So an answer is read up to a
bound and for a time, is not unpacked, and leads nowhere else; whatever it is, it is a report within bounds
(core/bounds.py) or Unreachable, with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import aiohttp

from ropeteam.controller.cluster import Fenced
from ropeteam.core import bounds
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Desired, JobReport

_TIMEOUT = aiohttp.ClientTimeout(total=3, connect=1)
_BASE_BYTES, _SLOT_BYTES = 1 << 20, 4 << 10
"""What a report may take. The base: ten incidents with 20 lines of output each, if every character of them is
an escape, take 300 KiB. A slot: 900 bytes if its node's name is of the longest, and another pod is asked for
with a message of 360 characters; some contain a whole PATH."""
_WORDS = 300
"""Of an answer, in the sentence about it."""


class Unreachable(Exception):
    """There is no report. The text says why, in a few words."""


def _connect() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a Service may lead to another pod by now
    return aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


class Coordinators:
    """The coordinators of all jobs. Use as `async with`. `may_write`, `connect`: as for ApiClient."""

    def __init__(
        self,
        port: int = COORDINATOR_HTTP_PORT,
        may_write: Callable[[], bool] = lambda: True,
        connect: Callable[[], aiohttp.ClientSession] = _connect,
    ) -> None:
        self._port, self._may_write, self._connect = port, may_write, connect

    async def __aenter__(self) -> Self:
        self._session = self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def tell(self, address: str, bearer: str, desired: Desired) -> JobReport:
        """Raises Unreachable, Fenced."""
        if not self._may_write():
            raise Fenced(f"{address}: this operator does not lead any more")
        try:
            told = codec.decode(JobReport, await self._put(address, bearer, desired))
            if told.term != desired.term:  # ours would have said 409
                raise Unreachable(f"its report is of term {told.term}, and term {desired.term} was asked")
            return bounds.bounded(told, len(desired.slots))
        except TimeoutError:
            why = f"no answer within {_TIMEOUT.total:.0f} s"
        except codec.DecodeError as error:
            why = f"its report is not understood: {error}"
        except bounds.OutOfBounds as error:
            why = f"its report is out of bounds: {error}"
        except (Unreachable, aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        raise Unreachable(f"{address}: {_printable(why)}")

    async def _put(self, address: str, bearer: str, desired: Desired) -> bytes:
        """Raises Unreachable, and what aiohttp does: mostly ClientError, ValueError for some odd headers."""
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        headers["Accept-Encoding"] = "identity"
        url, body = f"http://{address}:{self._port}/desired", codec.encode(desired)
        most = _BASE_BYTES + _SLOT_BYTES * len(desired.slots)
        async with self._session.put(url, data=body, headers=headers, allow_redirects=False) as answer:
            packed = answer.headers.get("Content-Encoding", "")
            if packed:
                raise Unreachable(f"its answer is compressed ({packed}), which it was asked not to do")
            content = await _read(answer.content, most if answer.status == 200 else _WORDS)
        if answer.status != 200:
            raise Unreachable(f"HTTP {answer.status}: {content.decode(errors='replace')}")
        if len(content) > most:
            raise Unreachable(f"its answer is over {most} bytes")
        return content


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    """All of it, or the beginning, of a little over `most`."""
    content = bytearray()
    async for part in stream.iter_any():
        content += part
        if len(content) > most:
            break
    return bytes(content)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_WORDS])
