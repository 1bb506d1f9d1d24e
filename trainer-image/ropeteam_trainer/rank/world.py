"""The process group of a rank: joining it, agreeing in it, leaving it without a crash."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank import defaultgroup, exchange
from ropeteam_trainer.rank.exchange import PLAIN, Vocabulary
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.system.memory import return_freed_memory

T = TypeVar("T")
_POLL_SECONDS = 0.005
_TERM_BITS, _BOOT_BITS, _GROUP_BITS = 16, 24, 16
_SAVING = timedelta(hours=1)
"""Time limit of collectives while a checkpoint is written."""
_LINE_SECONDS = 45.0
"""Time for the agent's line after a group could not be formed: it says which rank is lost."""


@dataclass(frozen=True)
class World:
    """Ranks that train together, as one of them sees it. Its collectives must be called by all ranks, in the
    same order."""

    rank: int
    size: int
    device: torch.device
    timeout_seconds: int = 600
    """Time limit of collectives."""
    group: dist.ProcessGroup | None = None
    """Of these ranks. None: the default group, or of one rank none."""
    first: int = 0
    """Number of the first one in the job."""

    @classmethod
    def join(cls, device: str | torch.device | None, timeout_seconds: int) -> World:
        """World of torchrun's environment; of one rank where there is none. Initializes the process group,
        unless the script has done so, with NCCL for CUDA tensors and gloo for all others. device: as for
        alone()."""
        chosen = cls.alone(device).device
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            dist.init_process_group(_backend(chosen), timeout=timedelta(seconds=timeout_seconds))
        if dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), chosen, timeout_seconds)
        return cls(0, 1, chosen)

    @classmethod
    def apart(cls, device: str | torch.device | None, timeout_seconds: int) -> World:
        """World of torchrun's environment, whose other ranks train already, or will later. device: as for
        alone()."""
        chosen = cls.alone(device).device
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), chosen, timeout_seconds)

    @property
    def is_apart(self) -> bool:
        """Whether this rank has no process group of all ranks (yet): others train already, or will later,
        and some join the others at the end of a step (join_again())."""
        return self.size > 1 and self.group is None and not defaultgroup.is_formed()

    def of_mates(self, mates: Mates) -> World:
        """The world of the mates of this rank, which is apart from all others."""
        first, size = mates.ranks.start, len(mates.ranks)
        return World(mates.part, size, self.device, self.timeout_seconds, mates.group, first)

    @classmethod
    def alone(cls, device: str | torch.device | None) -> World:
        """World of one rank, whatever the environment says. device: None: CUDA if available. A CUDA device
        without an index gets that of LOCAL_RANK, and becomes torch's current one."""
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if chosen.type == "cuda":
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            chosen = torch.device("cuda", local_rank if chosen.index is None else chosen.index)
            torch.cuda.set_device(chosen)
        return cls(0, 1, chosen)

    @property
    def communicates(self) -> bool:
        """Whether collectives move data. False for one rank alone, and in a dry run (`ropeteam plan`), where
        torch's fake backend completes them at once."""
        return self.size > 1 and not self.is_apart and dist.get_backend(self.group) != "fake"

    def from_rank_0(self, answer: Callable[[], T], names: Vocabulary = PLAIN) -> T:
        """Call `answer()` on rank 0 and return its result on all ranks. If it raises there, all ranks raise
        the error; on other ranks an error of a class that cannot be sent is a RuntimeError with its text.

        names: classes of ours that the result, or the error, may contain.
        """
        if self.size == 1 or self.is_apart:
            return answer()
        mine, failed = (b"", b""), None  # (result, error) as sent: one of them is None
        if self.rank == 0:
            try:
                mine = exchange.pack(answer(), names), exchange.pack(None)
            except Exception as error:
                failed = error
                known = exchange.is_sendable(error, names)
                sent = error if known else RuntimeError(f"{type(error).__name__}: {error}")
                mine = exchange.pack(None), exchange.pack(sent, names)
        answered, fault = (_unpacked(0, part, names) for part in self._broadcast(mine))
        if fault is not None:
            raise failed or fault
        result: T = answered
        return result

    def number_of_rank_0(self, number: int) -> int:
        """Rank 0's `number`, on all ranks."""
        if self.size == 1 or self.is_apart:
            return number
        tensor = torch.tensor([number], device="cpu")
        dist.broadcast(tensor, self.first, self.group)
        return int(tensor)

    def highest(self, numbers: Sequence[int]) -> list[int]:
        """The highest of all ranks' numbers, at each place."""
        if self.size == 1 or self.is_apart:
            return [*numbers]
        tensor = torch.tensor(numbers, dtype=torch.long, device="cpu")
        dist.all_reduce(tensor, dist.ReduceOp.MAX, self.group)
        return tensor.tolist()

    def gather(self, value: T, names: Vocabulary = PLAIN) -> list[T]:
        """Values of all ranks, by rank, on all ranks. names: classes of ours that they may contain. Raises
        BadMessage, with the rank whose value cannot be decoded."""
        if self.size == 1 or self.is_apart:
            return [value]
        received = self._all_gather(exchange.pack(value, names))
        return [_unpacked(rank, content, names) for rank, content in enumerate(received)]

    def _all_gather(self, mine: bytes) -> list[bytes]:
        """Bytes of each rank, by the same collectives as torch's all_gather_object."""
        sizes = [self._numbers(0) for _ in range(self.size)]
        dist.all_gather(sizes, self._numbers(len(mine)), self.group)
        longest = max(int(size) for size in sizes)
        theirs = [self._bytes(longest) for _ in range(self.size)]
        dist.all_gather(theirs, self._bytes(longest, mine), self.group)
        return [_content(part)[: int(size)] for part, size in zip(theirs, sizes, strict=True)]

    def _broadcast(self, parts: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Bytes of rank 0, by the same collectives as torch's broadcast_object_list."""
        sizes = self._numbers(*map(len, parts))
        dist.broadcast(sizes, self.first, self.group)
        first, second = sizes.tolist()
        joined = self._bytes(first + second, b"".join(parts))
        dist.broadcast(joined, self.first, self.group)
        content = _content(joined)
        return content[:first], content[first:]

    def _numbers(self, *numbers: int) -> torch.Tensor:
        """Tensor of these numbers, for a collective."""
        return torch.tensor(numbers, dtype=torch.long, device=self._object_device)

    def _bytes(self, size: int, content: bytes = b"") -> torch.Tensor:
        """Tensor of `size` bytes that begins with `content`, for a collective."""
        filled = bytearray(content.ljust(size, b"\0"))
        return torch.frombuffer(filled, dtype=torch.uint8).to(self._object_device)

    @property
    def _object_device(self) -> torch.device:
        """Device of exchanged objects, the one that torch's own functions use: earlier releases call
        these."""
        is_cpu = self.group is not None or "cpu:" in dist.get_backend_config()
        return torch.device("cpu") if is_cpu else self.device

    def mates(self, replica_ranks: int) -> Mates:
        """The mates of this rank, in replicas of so many neighbours. A collective of all ranks; of the mates,
        if they are apart from the others."""
        first = self.rank - self.rank % replica_ranks
        ranks = range(first, first + replica_ranks)
        if replica_ranks == 1:
            return Mates(ranks, self.rank)
        if self.is_apart:
            store = self._store_of(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            self._put_placeholder(PrefixStore(f"ropeteam/replica{first}", store))
        is_apart, mine = self.is_apart, list[dist.ProcessGroup]()
        for timeout in (self._timeout, _SAVING):
            for start in [first] if is_apart else range(0, self.size, replica_ranks):
                of_replica = [*range(start, start + replica_ranks)]
                group = dist.new_group(of_replica, timeout, "gloo", use_local_synchronization=is_apart)
                mine += [group] if start == first else []
        return Mates(ranks, self.rank, *mine)

    def _put_placeholder(self, store: Store) -> None:
        defaultgroup.put_placeholder(self.rank, self.size, _backend(self.device), store)

    def join_again(
        self, world: LiveWorld, mates: Mates, is_over: Callable[[], bool], and_then: Callable[[], None]
    ) -> None:
        """Replace the process group by one that all ranks of this world form in its store, and call
        `and_then()`, a collective. Groups of its mates live on. Returns without it when `is_over()`: a rank
        has been lost meanwhile. Raises ConnectionError where a group cannot be formed, and it is not
        over for _LINE_SECONDS: the end of a rank, or of the store, is an error here before the agent knows of
        it.

        No call of torch ends early. So it is called once all ranks are here, and in a thread, which is left
        alone if it is over.
        """
        defaultgroup.destroy(keep=mates.ranks)
        os.environ |= {
            "MASTER_ADDR": world.store_host,
            "MASTER_PORT": str(world.store_port),
            "TORCHELASTIC_RESTART_COUNT": str(world.restart_count),
        }
        failures: list[Exception] = []
        formed = threading.Event()

        def form() -> None:
            try:
                if self._all_are_here(world, is_over):
                    self._form_group(world, mates, is_over)
                    if not is_over():
                        and_then()
            except Exception as error:
                failures.append(error)
            formed.set()
            return_freed_memory()  # copies of the state; meanwhile the training continues

        threading.Thread(target=form, daemon=True, name="ropeteam-group").start()
        while not formed.wait(_POLL_SECONDS) and not is_over():
            pass
        deadline = time.monotonic() + _LINE_SECONDS
        while failures and not is_over():
            if time.monotonic() > deadline:
                raise ConnectionError(f"Connection closed by peer: no process group: {failures[0]}")
            time.sleep(_POLL_SECONDS)

    def _all_are_here(self, world: LiveWorld, is_over: Callable[[], bool]) -> bool:
        """Wait until all ranks have called this. False: it is over. Raises TimeoutError after the time limit
        of collectives: a rank may have ended without a fault that its agent knows of."""
        deadline = time.monotonic() + self.timeout_seconds
        store = PrefixStore("ropeteam/again", self._store_of(world.store_host, world.store_port))
        store.add("arrived", 1)
        while store.add("arrived", 0) < self.size:
            if is_over():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all ranks have come within {self.timeout_seconds} s")
            time.sleep(_POLL_SECONDS)
        return True

    def _form_group(self, world: LiveWorld, mates: Mates, is_over: Callable[[], bool]) -> None:
        c10d._world.group_count = _first_group_name(world.world_id)  # names of groups are numbers
        store = PrefixStore("ropeteam/group", self._store_of(world.store_host, world.store_port))
        if mates.group is None:
            backend, timeout = _backend(self.device), self._timeout
            dist.init_process_group(
                backend, timeout=timeout, store=store, rank=self.rank, world_size=self.size
            )
            return
        self._put_placeholder(store)
        formed = dist.new_group(timeout=self._timeout)
        if not is_over():  # else another one may be formed already
            defaultgroup.replace_placeholder(formed)

    def _store_of(self, host: str, port: int) -> TCPStore:
        """The store at this address."""
        return TCPStore(host, port, is_master=False, timeout=self._timeout)

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_seconds)

    def leave(self, seconds: float) -> None:
        """Destroy the process group when all ranks have called this, or after `seconds`; 0: do not wait.
        Errors are ignored.

        A gloo process that exits while peers still use its connections now and then dies of SIGABRT after all
        its work is done (pytorch#190489); a barrier first prevents it. The barrier uses the store: a peer
        that is still training would take a collective for another one.
        """
        if not dist.is_initialized():
            return
        if seconds > 0:
            self.barrier("exit", seconds)
        with suppress(Exception):
            dist.destroy_process_group()

    def barrier(self, where: str, seconds: float) -> bool:
        """Wait at the store until all ranks have called this with the same `where`. Returns whether they did
        within `seconds`: peers that failed or left never do. False also without a process group, or after an
        error. `where` must not be used twice."""
        if self.size == 1:
            return True
        if not dist.is_initialized():
            return False
        with suppress(Exception):
            self._wait_at_store(where, timedelta(seconds=seconds))
            return True
        return False

    def _wait_at_store(self, where: str, timeout: timedelta) -> None:
        """Count this rank in, and wait until the last one has set the key. Raises an error after the
        timeout."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps its store over restarts
        tcp = TCPStore(address, port, is_master=False, timeout=timeout)
        store = PrefixStore(f"ropeteam/{where}/{attempt}", tcp)
        if store.add("arrived", 1) == self.size:
            store.set("all", "here")
        store.wait(["all"], timeout)


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _first_group_name(world_id: WorldId) -> int:
    """Greater than the names of groups in earlier worlds, and equal on all ranks of this one."""
    number = world_id.term << _TERM_BITS | world_id.boot
    return (number << _BOOT_BITS | world_id.n) << _GROUP_BITS


def _content(tensor: torch.Tensor) -> bytes:
    """Bytes of a tensor of bytes."""
    return tensor.cpu().numpy().tobytes()


def _unpacked(rank: int, content: bytes, names: Vocabulary) -> Any:
    """Value that `rank` sent. Raises BadMessage."""
    try:
        return exchange.unpack(content, names)
    except exchange.BadMessage as error:
        raise exchange.BadMessage(
            f"the message of rank {rank} cannot be decoded: {error}. Do all ranks run the same image?"
        ) from None
