"""The one call to a job's coordinator: tell it what should be, read how it is.

    PUT http://<clusterIP>:29402/desired    Desired -> JobReport

Short timeouts, no second try: the next round asks again, and training does not wait for us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import aiohttp

from ropeteam.controller.cluster import Fenced
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Desired, JobReport

_TIMEOUT = aiohttp.ClientTimeout(total=3, connect=1)


class Unreachable(Exception):
    """There is no report. The text says why, in a few words."""


def _connect() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a Service may lead to another pod by now
    return aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)


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
        url = f"http://{address}:{self._port}/desired"
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        try:
            async with self._session.put(url, data=codec.encode(desired), headers=headers) as answer:
                content = await answer.read()
        except TimeoutError:
            raise Unreachable(f"{address}: no answer within {_TIMEOUT.total:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{address}: {error}") from None
        if answer.status != 200:
            raise Unreachable(f"{address}: HTTP {answer.status}: {content[:200].decode(errors='replace')}")
        try:
            return codec.decode(JobReport, content)
        except codec.DecodeError as error:
            raise Unreachable(f"{address}: its report is not understood: {error}") from None
