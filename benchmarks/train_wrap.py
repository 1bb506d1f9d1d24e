"""Two or three copies of a model in one process, each trained by another loop, in turns.

    train_wrap.py PAIRS FIRST

The loops: `hand` (DistributedDataParallel as torch's documentation shows it), `wrap` (job.wrap() and
job.report()), and `again`, a second one by hand: what the method itself takes for a difference. FIRST is
whose model is made first. Rank 0 prints RESULT {loop: seconds of each turn}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from lab.ranks import tiny
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer

SIZE = tiny.Size(symbols=128, length=32, width=128, blocks=4)
SAMPLES, STEPS_A_TURN, WARM = 4, 4, 2
Turn = Callable[[], None]


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(number)
    letters = torch.randint(0, SIZE.symbols, (SAMPLES, SIZE.length + 1), generator=chance)
    return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = tiny.Tiny(SIZE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def hand() -> Turn:
    model, optimizer = made()
    copies = DistributedDataParallel(model)

    def turn() -> None:
        for number in range(STEPS_A_TURN):
            inputs, target = batch(number)
            loss = tiny.loss_of(copies(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return turn


def wrap(job: ropeteam_trainer.Job) -> Turn:
    plain, its_optimizer = made()
    model, optimizer = job.wrap(plain, its_optimizer)

    def turn() -> None:
        for number in range(STEPS_A_TURN):
            inputs, target = batch(number)
            loss = tiny.loss_of(model(inputs), target)
            optimizer.zero_grad()
            (loss * job.batch_weight).backward()
            optimizer.step()
            job.report(loss=loss)

    return turn


def main() -> None:
    pairs, first = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    job = ropeteam_trainer.init(device="cpu")
    makers: dict[str, Callable[[], Turn]] = {"hand": hand, "wrap": lambda: wrap(job), "again": hand}
    order = sorted(makers, key=lambda name: name != first)
    turns = {name: makers[name]() for name in order}
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(WARM + pairs):
        for place in range(len(order)):
            name = order[(place + number) % len(order)]
            began = time.perf_counter()
            turns[name]()
            seconds[name].append(time.perf_counter() - began)
    if job.rank == 0:
        print(f"RESULT {json.dumps({name: each[WARM:] for name, each in seconds.items()})}")


if __name__ == "__main__":
    main()
