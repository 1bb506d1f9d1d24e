"""Work that nobody awaits: nothing that goes wrong in it is lost."""

from __future__ import annotations

import asyncio
import gc

from lab.waiting import wait_until_async

from ropeteam_trainer.system.background import install_exception_handler, start_task


class Process:
    """Faults of a process that reach its own log."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self.ended: list[BaseException] = []
        install_exception_handler(self.output.append, self.ended.append)


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_a_fault_in_work_that_nobody_awaits_ends_the_process():
    process = Process()
    start_task(fails(KeyError("x")))
    await wait_until_async("the error is reported", lambda: process.ended)
    assert isinstance(process.ended[0], KeyError)
    assert "KeyError: 'x'" in process.output[0]


async def test_an_error_of_a_file_is_logged_and_ends_nothing():
    process = Process()
    start_task(fails(OSError(24, "Too many open files")))
    await wait_until_async("the error is reported", lambda: process.output)
    assert "Too many open files" in process.output[0]
    assert process.ended == []


async def test_a_fault_in_a_callback_ends_the_process():
    process = Process()
    asyncio.get_running_loop().call_soon(lambda: 1 // 0)
    await wait_until_async("the error is reported", lambda: process.ended)
    assert isinstance(process.ended[0], ZeroDivisionError)


async def test_a_fault_over_one_connection_ends_that_alone():
    process = Process()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
        raise KeyError("y")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    await wait_until_async("the error is reported", lambda: process.output)
    assert process.ended == []
    writer.close()
    server.close()


async def test_work_that_only_waits_is_not_thrown_away():
    gate = asyncio.get_running_loop().create_future()
    done: list[str] = []

    async def waits() -> None:
        done.append(await gate)

    start_task(waits())
    await asyncio.sleep(0)
    gc.collect()
    gate.set_result("done")
    await wait_until_async("the task has ended", lambda: done)


async def test_what_was_cancelled_is_no_fault():
    process = Process()
    task = start_task(asyncio.sleep(1000))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    assert (process.output, process.ended) == ([], [])
