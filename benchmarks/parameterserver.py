"""Cost of parameter servers, and gain of backup workers and bounds.

    python -m benchmarks.parameterserver [TRIALS]        (5 by default; about five minutes)

Exchange: push and pull of 100 MB of gradients and weights, one worker, one server, against the same bytes
over a bare TCP connection of the same machine, in turns; the server's step and its two copies of the state
are in it. Backup workers: four workers of which one is slow by 100 ms in each step, with one backup worker,
against four equal ones without; steps of 20 ms that are slept, because ranks are more than cores here.
Bound: 10,000 updates of three workers, one of them slower, may be `staleness` apart and never more.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.ranks.processes import RankGroup

from benchmarks.results import Row, print_rows, row, write
from ropeteam_trainer.contract import config

SCRIPT = Path(__file__).parent / "train_served.py"
MEGABYTES, EXCHANGES, WARM = 100, 12, 2
STEP_SECONDS, SLOW_SECONDS = 0.02, 0.1
UPDATES, BOUND = 10_000, 4


def served(**fields: Any) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameter_server": fields}}


def run(folder: Path, kind: str, world: int, workers: int, request: dict[str, Any]) -> tuple[list[Any], str]:
    """Results of each worker, and the output of the chief."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, RankGroup(folder, world) as group:
        group.environment[config.MEMORY] = memory
        ended = group.start(str(SCRIPT), kind, str(folder), json.dumps(request)).wait(seconds=300)
    if any(ended.codes):
        raise RuntimeError("\n".join(ended.output))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(workers)], ended.output[
        workers
    ]


def bare_tcp(megabytes: int, times: int) -> list[float]:
    """Seconds to send so much and to receive as much, over loopback, memory to memory."""
    size = megabytes * 1_000_000
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        buffer = memoryview(bytearray(size))
        with connection:
            for _ in range(times):
                _fill(connection, buffer)
                connection.sendall(buffer)

    thread = threading.Thread(target=serve)
    thread.start()
    buffer = memoryview(bytearray(size))
    seconds = []
    with socket.create_connection(listener.getsockname()) as connection:
        for _ in range(times):
            begin = time.perf_counter()
            connection.sendall(buffer)
            _fill(connection, buffer)
            seconds.append(time.perf_counter() - begin)
    thread.join()
    listener.close()
    return seconds


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    begin = 0
    while begin < len(buffer):
        begin += connection.recv_into(buffer[begin:])


def exchange(folder: Path) -> tuple[float, float]:
    """Median seconds: bare TCP, ours."""
    floor = statistics.median(bare_tcp(MEGABYTES, EXCHANGES)[WARM:])
    request = {"strategy": served(), "megabytes": MEGABYTES, "steps": EXCHANGES}
    (ours,), _ = run(folder / "exchange", "exchange", 2, 1, request)
    return floor, statistics.median(ours[WARM:])


def steps_per_second(worker: list[Any]) -> float:
    ends: list[float] = [at for at, _, _ in worker[3:]]
    return 1 / statistics.median(end - begin for begin, end in itertools.pairwise(ends))


def backup(folder: Path) -> tuple[float, float, float, int, float, float]:
    """Steps per second: four equal workers, one slow without and with a backup; dropped; last losses."""
    usual = {"batch": 64, "epochs": 4, "rate": 0.5, "seconds": STEP_SECONDS}
    slow = {**usual, "slow": 3, "slow_seconds": STEP_SECONDS + SLOW_SECONDS}
    equal = {**usual, "slow": -1, "slow_seconds": 0.0, "strategy": served()}
    calm, _ = run(folder / "equal", "train", 5, 4, equal)
    waits, _ = run(folder / "waits", "train", 5, 4, {**slow, "strategy": served()})
    backed, output = run(folder / "backed", "train", 5, 4, {**slow, "strategy": served(backup_workers=1)})
    last = [statistics.mean(loss for _, _, loss in each[0][-10:]) for each in (calm, backed)]
    speeds = [steps_per_second(each[0]) for each in (calm, waits, backed)]
    return speeds[0], speeds[1], speeds[2], int(server_counters(output)["dropped"]), last[0], last[1]


def bounded(folder: Path) -> dict[str, Any]:
    """Counters of the chief after 10,000 updates under a bound."""
    request = {
        "strategy": served(mode="BoundedStaleness", staleness=BOUND),
        **{"batch": 12, "epochs": 23, "rate": 0.05, "seconds": 0.0, "slow": 2, "slow_seconds": 0.002},
    }
    _, output = run(folder / "bounded", "train", 4, 3, request)
    return server_counters(output)


def server_counters(output: str) -> dict[str, Any]:
    found = re.search(r"all workers have left: (\{.*\})", output)
    assert found, output
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def least(name: str, samples: list[float], goal: float, *, unit: str, beside: str) -> Row:
    """More is better."""
    plain = row(name, samples, unit=unit, beside=beside)
    return replace(plain, worst=round(min(samples), 3), goal=f">= {goal}", holds=plain.value >= goal)


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = Path(tempfile.mkdtemp(prefix="served-"))
    try:
        exchanges = [exchange(folder / f"x-{number}") for number in range(trials)]
        print(f"bare TCP and ours, seconds: {exchanges}", flush=True)
        backups = [backup(folder / f"b-{number}") for number in range(trials)]
        print(f"steps per second, dropped, losses: {backups}", flush=True)
        stale = bounded(folder)
        print(f"bounded: {stale}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    samples = {
        f"push and pull of {MEGABYTES} MB: speed beside bare TCP": [a / b for a, b in exchanges],
        "one of four slow, one backup worker: speed beside equal workers": [b[2] / b[0] for b in backups],
        "one of four slow, no backup worker: speed beside equal workers": [b[1] / b[0] for b in backups],
    }
    names, dropped = list(samples), [float(trial[3]) for trial in backups]
    equal = "four equal workers, the same run"
    ahead, updates = int(stale["most_ahead"]), int(stale["steps"])
    rows = [
        least(names[0], samples[names[0]], 0.8, unit="x", beside="bare TCP, the same bytes"),
        least(names[1], samples[names[1]], 0.9, unit="x", beside=equal),
        row(names[2], samples[names[2]], unit="x", beside=equal),
        least("gradients that steps did not wait for", dropped, 1, unit="", beside=equal),
        row("loss with a backup worker, beside equal workers", [b[5] / b[4] for b in backups], unit="x"),
        Row("updates a worker was ahead of the slowest", ahead, f"of {updates}", 1, ahead, f"<= {BOUND}",
            ahead <= BOUND and updates >= UPDATES, "asynchronous without a bound"),
    ]  # fmt: skip
    write("parameterserver", rows, samples, "speed")
    return print_rows(rows)


if __name__ == "__main__":
    sys.exit(main())
