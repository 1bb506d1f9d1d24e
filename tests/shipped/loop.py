"""An asyncio event loop of simulated time, on which several processes run as if each had a loop of its own.

    loop = Loop(seed); process = Process(loop, "agent 0"); process.spawn(main()); loop.run(60.0)

The process that a callback belongs to is in its context (`OWNER`), so tasks, timers and connections that a
process makes are its own. A process can be frozen (what is due waits, in order), killed (what is due never
comes), and have a clock of its own. Nothing here looks at real time or at chance other than `loop.random`:
a seed is a history.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any

_LEAST = 1e-4
"""Seconds until a timer that is due already: nothing is done in no time."""
_MOST_AWAITS = 5
OWNER: ContextVar[Process | None] = ContextVar("owner", default=None)


Entry = tuple[float, int, "Process | None", asyncio.Handle]
"""When it is due, its number, whose it is, and what to call. Numbers differ, so the rest is not compared."""


class Loop(asyncio.BaseEventLoop):
    """`now`: seconds since the world began. `faults`: exceptions that nobody caught."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.now = 0.0
        self.count = 0
        self.faults: list[BaseException] = []
        self.graveyard: list[object] = []
        """Keeps what died: a coroutine that is collected would run its `finally` in the living world."""
        self.connect: Callable[..., Coroutine[Any, Any, Any]]
        """Of the network: create_connection."""
        self.listen: Callable[..., Any]
        self.work: Callable[..., None]
        """Of the disk: run_in_executor."""
        self._trace = hashlib.blake2b(digest_size=16)
        self._heap: list[Entry] = []
        self._over = False
        self._nobody = Context()

    # ---- what asyncio calls

    def time(self) -> float:
        owner = OWNER.get()
        return self.now + owner.ahead if owner else self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._push(self.now, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._push(max(self.now + _LEAST, self.now + when - self.time()), handle)
        return handle

    def _push(self, when: float, handle: asyncio.Handle) -> None:
        if self._over:
            return
        self.count += 1
        owner = handle._context.get(OWNER)  # type: ignore[attr-defined]
        heapq.heappush(self._heap, (when, self.count, owner, handle))

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.work(future, executor, func, args)
        return future

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.connect(factory, host, port)

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.listen(factory, host, port)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., Any], *args: Any
    ) -> None:
        owner = OWNER.get()
        assert owner is not None
        owner.signals[sig] = asyncio.Handle(callback, args, self, None)

    def get_debug(self) -> bool:
        return False

    def set_exception_handler(self, handler: Any) -> None:
        """Of one process."""
        if owner := OWNER.get():
            owner.handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        owner, error = OWNER.get(), context.get("exception")
        if owner and owner.handler and not isinstance(error, AssertionError):
            owner.handler(self, context)
        elif error is not None and "never retrieved" not in context["message"]:
            self.faults.append(error)

    # ---- the world's own

    def after(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        """A callback without a process: it runs when any of them is frozen or dead."""
        handle = asyncio.TimerHandle(self.now + seconds, call, arguments, self, self._nobody.copy())
        self._push(self.now + max(seconds, 0.0), handle)
        return handle

    def note(self, *facts: object) -> None:
        """Part of the history's fingerprint."""
        self._trace.update(f"{self.now:.6f} {facts}\n".encode())

    @property
    def fingerprint(self) -> str:
        return self._trace.hexdigest()

    def run(self, until: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let everything up to `until` happen, or until it is enough. Raises what nobody caught."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._heap and self._heap[0][0] <= until:
                self._step(heapq.heappop(self._heap))
                if self.faults:
                    raise self.faults[0]
                if enough():
                    return
            self.now = max(self.now, until)
        finally:
            events._set_running_loop(before)

    def _step(self, entry: Entry) -> None:
        when, number, owner, handle = entry
        if handle._cancelled:
            return
        if when > self.now:
            self.now = when
        if owner is None:
            handle._run()
        elif not owner.alive:
            self.graveyard.append(handle)
        elif owner.frozen:
            owner.held.append(entry)
        elif owner.busy_until > self.now:
            heapq.heappush(self._heap, (owner.busy_until, number, owner, handle))
        else:
            owner.busy_until = self.now + owner.cost
            handle._run()

    def release(self, entries: list[Entry]) -> None:
        """Callbacks that waited for their process are due now, in their order."""
        for _, _, owner, handle in entries:
            self.count += 1
            heapq.heappush(self._heap, (self.now, self.count, owner, handle))

    def put_off(self, owner: Process, seconds: float) -> None:
        """The clock of a process was paused: its timers are due that much later."""
        self._heap = [(entry[0] + seconds * (entry[2] is owner), *entry[1:]) for entry in self._heap]
        heapq.heapify(self._heap)

    def forget(self) -> None:
        """The end of the world: every coroutine ends now, and nothing that it does in its end matters."""
        self._over = True
        self._heap.clear()
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                for _ in range(_MOST_AWAITS):
                    with contextlib.suppress(BaseException):  # some await in their `finally`
                        task.get_coro().close()
                        break
        finally:
            events._set_running_loop(before)
            self.graveyard.clear()
            self.close()


class Process:
    """One operating system process. `node`: of its network; `ahead`: seconds of its clock."""

    def __init__(self, loop: Loop, name: str, node: str = "", ip: str = "") -> None:
        self.loop, self.name, self.node, self.ip = loop, name, node, ip
        self.alive, self.frozen = True, False
        self.previous = False
        """Of the release before (skew.py)."""
        self.ahead = 0.0
        self.wall_ahead = 0.0
        """Of the wall clock."""
        self.cost, self.busy_until = 0.0, 0.0
        """Seconds that each callback takes: what is due meanwhile is late, in its order."""
        self.held: list[Entry] = []
        self.signals: dict[int, asyncio.Handle] = {}
        self.handler: Any = None
        """Of exceptions that nobody caught."""
        self.at_end: list[Callable[[bool], None]] = []
        """Called when it dies. True: its kernel dies too, and closes no connection."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._context = Context()
        self._context.run(OWNER.set, self)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """In this process, when it runs."""
        self.loop.call_soon(function, *arguments, context=self._context.copy())

    def spawn(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        def start() -> None:
            self._tasks.append(self.loop.create_task(main()))

        self.call(start)

    def signal(self, number: int, default: Callable[[], None]) -> None:
        """SIGTERM and its like; `default` if there is no handler (yet)."""
        if not self.alive:
            return
        if handler := self.signals.get(number):
            self.call(handler._run)
        else:
            default()

    def die(self, silent: bool = False) -> None:
        if self.alive:
            self.alive = False
            self.loop.graveyard += [self._tasks, self.held]
            for call in self.at_end:
                call(silent)

    def freeze(self) -> None:
        self.frozen = self.alive

    def thaw(self, asleep: float = 0.0) -> None:
        """`asleep`: for so long the whole machine was suspended, its clock too."""
        if not self.frozen:
            return
        self.frozen = False
        if asleep:
            self.ahead -= asleep
            self.loop.put_off(self, asleep)
        held, self.held = self.held, []
        self.loop.release(held)
