"""A key is handled once however often it was added, never twice at a time, rests after that, and is handled
later each time it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from lab.waiting import wait_until_async, within

from ropeteam.controller.queue.workqueue import WorkQueue, run_workers

Run = Callable[[Coroutine[Any, Any, None]], None]


async def serving_until(queue: WorkQueue[str], handle: Callable, done: Callable[[], bool]) -> None:  # type: ignore[type-arg]
    task = asyncio.create_task(run_workers(queue, handle))
    try:
        await wait_until_async("the queue has done its part", done)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_key_that_is_queued_already_is_not_queued_again() -> None:
    queue, handled = WorkQueue[str](4), list[str]()

    async def handle(key: str) -> None:
        handled.append(key)

    for key in ("a", "b", "a", "a"):
        queue.add(key)
    await serving_until(queue, handle, lambda: len(handled) >= 2)
    assert handled == ["a", "b"]


async def test_a_change_during_a_round_leads_to_one_more_and_never_to_two_at_once() -> None:
    queue, running, most, rounds = WorkQueue[str](4), 0, 0, 0

    async def handle(key: str) -> None:
        nonlocal running, most, rounds
        running, rounds = running + 1, rounds + 1
        most = max(most, running)
        if rounds == 1:
            queue.add(key)
            queue.add(key)
        await asyncio.sleep(0)
        running -= 1

    queue.add("a")
    await serving_until(queue, handle, lambda: rounds == 2 and running == 0)
    assert most == 1


async def test_many_changes_soon_after_a_round_lead_to_one_more() -> None:
    queue, rounds = WorkQueue[str](4), 0

    async def handle(_: str) -> None:
        nonlocal rounds
        rounds += 1

    async def ring() -> None:
        await wait_until_async("the first round has begun", lambda: rounds == 1)
        for _ in range(100):
            queue.add("a")
            await asyncio.sleep(0)

    queue.add("a")
    ringing = asyncio.create_task(ring())
    await serving_until(queue, handle, lambda: ringing.done() and rounds > 1)
    assert rounds == 2


async def test_what_is_planned_does_not_wait_for_the_rest_and_answers_what_came_meanwhile() -> None:
    queue, handled = WorkQueue[str](4), list[str]()

    async def handle(key: str) -> float | None:
        handled.append(key)
        if len(handled) > 2:
            return None
        asyncio.get_running_loop().call_soon(queue.add, key)  # in the rest after this round
        return 0.0 if key == "planned" else None

    queue.add("rings")
    queue.add("planned")
    await serving_until(queue, handle, lambda: len(handled) >= 4)
    assert handled == ["rings", "planned", "planned", "rings"]
    assert not queue._dirty


async def test_a_failing_key_is_tried_again_and_later_each_time() -> None:
    queue, tries, waits = WorkQueue[str](4), 0, list[float]()
    add_after = queue.add_after

    def recorded(key: str, seconds: float) -> None:
        waits.append(seconds)
        add_after(key, seconds)

    queue.add_after = recorded  # type: ignore[method-assign]

    async def handle(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise OSError("not yet")

    queue.add("a")
    await serving_until(queue, handle, lambda: tries == 4)
    assert waits == [0.005, 0.01, 0.02]


async def test_one_job_that_fails_does_not_stop_the_others() -> None:
    queue, healthy = WorkQueue[str](4), 0

    async def handle(key: str) -> float | None:
        nonlocal healthy
        if key == "bad":
            raise ValueError("a bug")
        healthy += 1
        return 0.0 if healthy < 50 else None

    queue.add("bad")
    queue.add("good")
    await serving_until(queue, handle, lambda: healthy == 50)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_of_two_planned_wake_ups_the_earlier_one_stays(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    run(two_wake_ups())


async def two_wake_ups() -> None:
    queue = WorkQueue[str](4)
    queue.add_after("now", 0)
    queue.add_after("now", 0)
    assert await within("a key is due", queue.get(), 20) == "now"
    queue.add_after("a", 0.01)
    queue.add_after("a", 3600)
    assert await within("a key is due", queue.get(), 20) == "a"
    queue.add_after("b", 3600)
    queue.add_after("b", 0.01)
    assert await within("a key is due", queue.get(), 20) == "b"
