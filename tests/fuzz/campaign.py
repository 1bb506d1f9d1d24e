"""A campaign throws cases at one reader of ours, each made by a seed and a number, and stops at the first
that does what none may do: an exception that the reader's caller does not handle, also in a task, a callback
or a thread; more than SLOW_SECONDS of the processor; a promise broken that the campaign checks itself.

A case is bytes, so what was found is played again from them alone. `attempt` says what became of each part of
a case (a connection says many frames): that is what a limit counts.
Limits: cases are one after the other; nothing here ends a case that hangs (tools/fuzz.py does, from outside).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SLOW_SECONDS = 20.0
"""Of this process's processor time, for one case: a hundred times what the slowest of them takes."""
FLAT_MIB = 32.0
"""By which a process may grow after the first tenth of a campaign."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

Attempt = Callable[[bytes], Awaitable[list[str]]]


@dataclass(frozen=True)
class Campaign:
    """`opened`: the reader, ready; gives the attempt. `whole`: parts, of a campaign that is not cut short."""

    name: str
    part: str
    whole: int
    draw: Callable[[Random], bytes]
    opened: Callable[[], AbstractAsyncContextManager[Attempt]]


@dataclass
class Played:
    campaign: str
    ended: Counter[str] = field(default_factory=Counter)
    """How the parts ended."""
    cases: int = 0
    seconds: float = 0.0
    early_mib: float = 0.0
    """Resident memory after a tenth."""
    late_mib: float = 0.0

    @property
    def parts(self) -> int:
        return self.ended.total()

    @property
    def is_flat(self) -> bool:
        return self.late_mib <= self.early_mib + FLAT_MIB


class Found(AssertionError):
    """A case has broken something. `case`: the bytes."""

    def __init__(self, campaign: str, number: int, case: bytes, what: object) -> None:
        super().__init__(f"{campaign}, case {number}: {type(what).__name__}: {what}"[:1000])
        self.number, self.case = number, case


def case_of(campaign: Campaign, seed: int, number: int) -> bytes:
    return campaign.draw(Random(f"{campaign.name} {seed} {number}"))


def play(
    campaign: Campaign,
    seed: int,
    limit: int,
    seconds: float = 1e9,
    note: Callable[[int], None] = lambda _: None,
) -> Played:
    """So many parts, or for so long. `note` gets the number of each case before it. Raises Found."""
    with _quiet():
        return asyncio.run(_play(campaign, seed, limit, seconds, note))


async def _play(
    campaign: Campaign, seed: int, limit: int, seconds: float, note: Callable[[int], None]
) -> Played:
    played, began = Played(campaign.name), time.monotonic()
    async with _watched(campaign) as attempt:
        while played.parts < limit and time.monotonic() < began + seconds:
            note(played.cases)
            case = case_of(campaign, seed, played.cases)
            played.ended.update(await attempt(played.cases, case))
            played.cases += 1
            if not played.early_mib and played.parts >= limit / 10:
                played.early_mib = memory_mib()
    played.seconds, played.late_mib = time.monotonic() - began, memory_mib()
    return played


def replay(campaign: Campaign, case: bytes) -> list[str]:
    """Play one case. Raises Found."""

    async def once() -> list[str]:
        async with _watched(campaign) as attempt:
            return await attempt(0, case)

    with _quiet():
        return asyncio.run(once())


class _watched:  # noqa: N801 (a context manager)
    """The campaign's attempt, in which everything that nobody handles is found."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._open = campaign, campaign.opened()
        self._loose: list[BaseException | str] = []
        """Raised where no caller is."""

    async def __aenter__(self) -> Callable[[int, bytes], Awaitable[list[str]]]:
        asyncio.get_running_loop().set_exception_handler(self._in_loop)
        self._hook, threading.excepthook = threading.excepthook, self._in_thread
        self._attempt = await self._open.__aenter__()
        return self.attempt

    async def __aexit__(self, found: object, *_: object) -> None:
        threading.excepthook = self._hook
        with suppress(Exception) if found else nullcontext():  # what was found counts, not what comes of it
            await self._open.__aexit__(None, None, None)

    async def attempt(self, number: int, case: bytes) -> list[str]:
        begin = time.process_time()
        try:
            ended = await self._attempt(case)
        except Exception as error:
            raise Found(self._campaign.name, number, case, error) from error
        took = time.process_time() - begin
        if took > SLOW_SECONDS:
            self._loose.append(f"it took {took:.0f} s of the processor")
        if self._loose:
            first = self._loose.pop(0)
            cause = first if isinstance(first, BaseException) else None
            raise Found(self._campaign.name, number, case, first) from cause
        return ended

    def _in_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._loose.append(context.get("exception") or context["message"])

    def _in_thread(self, args: threading.ExceptHookArgs) -> None:
        self._loose.append(args.exc_value or "a thread ended")


class _Formatting(logging.Handler):
    """Lines of the log go nowhere, but each is made: one that cannot be is found."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


@contextmanager
def _quiet() -> Iterator[None]:
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Formatting()]
    try:
        yield
    finally:
        root.handlers = before


def memory_mib() -> float:
    """Resident, of this process, but for what malloc keeps to hand it out again."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / (1 << 20)
