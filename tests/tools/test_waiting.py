"""One wait for all tests: it returns what came, and names what did not."""

from __future__ import annotations

import asyncio

import pytest
from lab.waiting import NotYet, wait_until, wait_until_async


def test_the_first_truthy_answer_is_returned():
    answers = iter([None, "", "there"])
    assert wait_until("an answer", lambda: next(answers)) == "there"


@pytest.mark.parametrize("expected", [AssertionError, TimeoutError])
def test_at_the_deadline_the_error_names_what_did_not_come_and_the_last_answer(expected: type[Exception]):
    with pytest.raises(expected, match=r"^three pods: not within 0 s; last seen: \[\]$"):
        wait_until("three pods", list, 0.0)


def test_what_it_waits_for_may_be_described_at_the_deadline():
    seen: list[int] = []
    with pytest.raises(NotYet, match=r"^seen \[1\]: not within"):
        wait_until(lambda: f"seen {seen}", lambda: seen.append(1), 0.0)


async def test_a_coroutine_function_is_awaited_each_time():
    answers = iter([0, 0, 7])

    async def answer() -> int:
        await asyncio.sleep(0)
        return next(answers)

    assert await wait_until_async("an answer", answer) == 7
    assert await wait_until_async("an answer", lambda: "there") == "there"


async def test_a_condition_that_hangs_is_cancelled_at_the_deadline():
    gate = asyncio.Event()
    with pytest.raises(NotYet, match=r"^the gate: not within 0 s; last seen: None$"):
        await wait_until_async("the gate", gate.wait, 0.05)


async def test_an_error_of_the_condition_is_not_hidden():
    async def fails() -> bool:
        raise TimeoutError("of the server")

    with pytest.raises(TimeoutError, match=r"^of the server$"):
        await wait_until_async("an answer", fails)
