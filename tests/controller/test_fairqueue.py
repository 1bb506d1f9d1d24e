"""No group of keys waits for what another does with its turns."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from lab.waiting import wait_until_async, within

from ropeteam.controller.queue.fairqueue import FairQueue
from ropeteam.controller.queue.workqueue import WorkQueue, run_workers


def group(key: str) -> str:
    return key[0]


async def taken(turns: FairQueue[str]) -> str:
    return await within("a turn", turns.take(), 30)


async def nothing_to_take(turns: FairQueue[str]) -> bool:
    task = asyncio.create_task(turns.take())
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


async def test_keys_of_different_groups_take_turns() -> None:
    turns = FairQueue[str](100, group)
    for key in ("a1", "a2", "a3", "b1", "c1", "b2"):
        turns.add(key)
    assert [await taken(turns) for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert len(turns) == 0


async def test_a_new_group_finds_a_place_whatever_the_others_hold() -> None:
    turns = FairQueue[str](8, group)
    for name in "abcd":
        for number in range(20):
            turns.add(f"{name}{number}")
    out = [await taken(turns) for _ in range(7)]
    assert {name: sum(group(key) == name for key in out) for name in "abcd"} == {
        "a": 2,
        "b": 2,
        "c": 2,
        "d": 1,
    }
    assert await nothing_to_take(turns)
    turns.add("new")
    assert await taken(turns) == "new"


async def test_one_group_alone_leaves_half_of_the_places_and_goes_on_when_it_gives_one_back() -> None:
    turns = FairQueue[str](8, group)
    for number in range(20):
        turns.add(f"a{number}")
    out = [await taken(turns) for _ in range(4)]
    assert await nothing_to_take(turns)
    turns.give_back(out[0])
    assert await taken(turns) == "a4"


async def test_who_waits_is_woken_when_another_group_gives_back() -> None:
    turns = FairQueue[str](4, group)
    for key in ("a1", "a2", "a3"):
        turns.add(key)
    out = [await taken(turns) for _ in range(2)]
    turns.add("b1")
    assert await taken(turns) == "b1"
    assert await nothing_to_take(turns)
    turns.give_back(out[0])
    assert await taken(turns) == "a3"


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 6))
def test_everything_that_is_added_is_handled(names: list[str], workers: int) -> None:
    async def play() -> None:
        queue, handled = WorkQueue[str](workers, group), list[str]()
        keys = {f"{name}{number}" for number, name in enumerate(names)}

        async def handle(key: str) -> None:
            await asyncio.sleep(0)
            handled.append(key)

        serving = asyncio.create_task(run_workers(queue, handle))
        for key in keys:
            queue.add(key)
        await wait_until_async("all keys are handled", lambda: len(handled) == len(keys))
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        assert set(handled) == keys

    asyncio.run(play())


async def test_coordinators_that_never_answer_take_no_turns_from_another_namespace() -> None:
    queue, handled, silent = WorkQueue[str](8, group), list[str](), asyncio.Event()

    async def handle(key: str) -> None:
        handled.append(key)
        if group(key) == "x":
            await silent.wait()

    for number in range(1000):
        queue.add(f"x{number}")
    serving = asyncio.create_task(run_workers(queue, handle))
    await wait_until_async("all four workers are busy", lambda: len(handled) == 4)
    queue.add("honest")
    await wait_until_async("the job of the other namespace is handled", lambda: "honest" in handled)
    assert len(handled) == 5
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
