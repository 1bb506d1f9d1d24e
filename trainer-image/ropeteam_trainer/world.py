"""The process group of a rank: joining it, agreeing in it, leaving it without a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: str | torch.device | None, timeout_seconds: int) -> World:
        """From torchrun's environment; alone where there is none."""
        chosen = cls.alone(device).device
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
        if dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), chosen)
        return cls(0, 1, chosen)

    @classmethod
    def alone(cls, device: str | torch.device | None) -> World:
        """Of one rank, whatever the environment says."""
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if chosen.type == "cuda":
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            chosen = torch.device("cuda", local_rank if chosen.index is None else chosen.index)
            torch.cuda.set_device(chosen)
        return cls(0, 1, chosen)

    def from_rank_0(self, answer: Callable[[], T]) -> T:
        """What `answer()` gives on rank 0, on all ranks; if it raises there, the same error everywhere."""
        if self.size == 1:
            return answer()
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = answer()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        result: T = box[0]
        return result

    def number_of_rank_0(self, number: int) -> int:
        """Rank 0's number on all ranks."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number])
        dist.broadcast(tensor, src=0)
        return int(tensor)

    def gather(self, value: T) -> list[T]:
        """The value of each rank, on all ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def leave(self, seconds: float) -> None:
        """Destroy the group when all ranks have come here, or after `seconds`; 0: do not wait for them.

        A gloo process that ends while peers still use its connections now and then dies of SIGABRT after all
        its work is done (pytorch#190489); meeting first prevents it. They meet at the store: a peer
        that is still training would take a collective for another one.
        """
        if not dist.is_initialized():
            return
        with suppress(Exception):  # peers that failed or left do not matter any more
            if self.size > 1 and seconds > 0:
                self._meet(timedelta(seconds=seconds))
        with suppress(Exception):
            dist.destroy_process_group()

    def _meet(self, timeout: timedelta) -> None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps its store over restarts
        tcp = TCPStore(address, port, is_master=False, timeout=timeout)
        store = PrefixStore(f"ropeteam/exit/{attempt}", tcp)
        if store.add("arrived", 1) == self.size:
            store.set("all", "here")
        store.wait(["all"], timeout)
