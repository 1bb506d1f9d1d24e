"""The sums of gradients in one world: the replicas that add them, along the fixed tree, bucket by bucket.

Each replica is responsible for one slice of each bucket. It is sent that slice of all maximal nodes of the
others (reduce-scatter), adds them along the tree as they come, and sends the sum to all (all-gather).
Cost per step and replica: with n replicas that have one node each, 2 (n-1)/n x 4P bytes sent, as in a ring
all-reduce; each further node another (n-1)/n x 4P. Messages: (n-1) x (nodes + 1) per bucket. Memory: the
nodes, the sum, and the slices that have come and have no sibling yet.

Each replica has one node at least, so no sum is complete before all have added theirs. All of it happens in
the thread of the connections, except wait().
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from ropeteam_trainer.contract.errors import RopeteamError
from ropeteam_trainer.partition.reductiontree import Node, parent_and_sibling
from ropeteam_trainer.strategies.exact.links import Header, Links

NODE, SUM = 1, 2
"""Kinds of messages: a slice of one node; the sum of a slice."""


class ReplicaLost(RopeteamError, ConnectionError):
    """A replica has ended, or cannot be reached, before the sum of a step was complete."""


def to_raise(noted: Exception) -> Exception:
    """Copy of an error that another thread has noted. One that was raised holds the frames of its thread, and
    with them the tensors of the step, for as long as it is noted."""
    return copy(noted).with_traceback(noted.__traceback__)


@dataclass(frozen=True)
class BucketShape:
    """A bucket of gradients: a flat tensor, the same on all replicas."""

    numel: int
    dtype: torch.dtype

    def slice_of(self, part: int, parts: int) -> slice:
        """The part of the flat tensor for which one of so many replicas is responsible."""
        return slice(self.numel * part // parts, self.numel * (part + 1) // parts)

    def new(self) -> torch.Tensor:
        """Buffer on the CPU with any content."""
        return torch.empty(self.numel, dtype=self.dtype, device="cpu")


@dataclass
class _Sum:
    """The sum of one bucket in one step, as far as it has come."""

    parts: dict[Node, torch.Tensor] = field(default_factory=dict)
    """This replica's slice of the nodes that have no sibling yet."""
    arriving: dict[tuple[int, Node], torch.Tensor] = field(default_factory=dict)
    """Slices that are being received, by sender."""
    result: torch.Tensor | None = None
    """The whole bucket; None: this replica has not added its own nodes yet."""
    awaited: set[int] = field(default_factory=set)
    """Replicas whose slice of the result has not come yet, this one too. A replica sends it after its nodes,
    so one that is not awaited is not needed any more."""
    unsent: int = 0
    """Peers that have not been sent this replica's slice. Only then the result may be changed."""
    failure: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class WorldSums:
    """Sums of `members`, numbers of replicas, of which `replica` is this one. `leaves` of the tree.

    Order in each step: add() for each bucket once, then wait() for each.
    """

    def __init__(
        self,
        world: int,
        replica: int,
        members: Iterable[int],
        leaves: int,
        shapes: Sequence[BucketShape],
        links: Links,
    ) -> None:
        """world: number of these members, in messages."""
        self.world, self.members = world, (*sorted(members),)
        self._replica, self._leaves, self._shapes, self._links = replica, leaves, shapes, links
        self._peers = [member for member in self.members if member != replica]
        self._root = Node(0, leaves)
        self._sums: dict[tuple[int, int], _Sum] = {}
        """By step and bucket. Peers may be a step ahead."""
        self._gone: dict[int, Exception] = {}
        """Members that are lost."""
        self._lock = threading.Lock()
        self._spare: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        """Slices that are free again."""

    def add(self, step: int, bucket: int, nodes: Mapping[Node, torch.Tensor], result: torch.Tensor) -> None:
        """Add this replica's maximal nodes of a bucket, flat tensors that must not change before wait()
        returns. The sum over all replicas will be in `result`."""
        self._sum(step, bucket)
        copied = dict(nodes)  # read in another thread, also just after the sum is complete
        self._links.run(lambda: self._add(step, bucket, copied, result))

    def wait(self, step: int, bucket: int, seconds: float) -> None:
        """Return when the sum of this bucket is complete. Raises ReplicaLost if a replica is lost whose part
        is missing, also after so many seconds."""
        sums = self._sum(step, bucket)
        if not sums.done.wait(seconds):
            missing = ", ".join(map(str, sorted(sums.awaited - {self._replica})))
            raise ReplicaLost(
                f"no gradients {f'came from replicas {missing}' if missing else 'were taken by a replica'} "
                f"within {seconds} s, the timeout_seconds of ropeteam_trainer.init()"
            )
        if sums.failure is not None:
            raise to_raise(sums.failure)
        with self._lock:
            del self._sums[step, bucket]

    def buffer(self, peer: int, header: Header, size: int) -> memoryview:
        """As Receiver.buffer(), for NODE and SUM."""
        shape = self._shape(header.bucket)
        sums = self._sum(header.step, header.bucket)
        if header.kind == NODE:
            mine = self._slice(shape, self._replica)
            into = self._new_slice(mine.stop - mine.start, shape.dtype)
            node = Node(header.begin, header.end)
            if node in sums.parts or any(node == arriving for _, arriving in sums.arriving):
                raise ValueError(f"it sent the sum of {node} twice")
            sums.arriving[peer, node] = into
        elif header.kind == SUM and sums.result is not None:
            into = sums.result[self._slice(shape, peer)]
        else:
            raise ValueError(f"it sent a message of kind {header.kind} that was not due")
        view = as_bytes(into)
        if len(view) != size:
            raise ValueError(f"it sent {size} bytes for a slice of {len(view)}")
        return view

    def received(self, peer: int, header: Header) -> None:
        """As Receiver.received()."""
        sums = self._sum(header.step, header.bucket)
        if header.kind == SUM:
            sums.awaited.discard(peer)
            self._note_progress(sums)
            return
        node = Node(header.begin, header.end)
        self._join(header.step, header.bucket, sums, node, sums.arriving.pop((peer, node)))

    def end_waits(self, gone: Mapping[int, Exception]) -> None:
        """End waits that still need one of these members, with the reason: one that has ended after its last
        step is no loss."""
        with self._lock:
            self._gone |= gone
            for sums in self._sums.values():
                self._fail_if_awaited(sums)

    def _fail_if_awaited(self, sums: _Sum) -> None:
        for peer, reason in self._gone.items():
            if peer in sums.awaited and sums.failure is None:
                sums.failure = reason
                sums.done.set()

    def _sum(self, step: int, bucket: int) -> _Sum:
        with self._lock:
            if (step, bucket) not in self._sums:
                sums = _Sum(awaited={*self.members})
                self._fail_if_awaited(sums)
                self._sums[step, bucket] = sums
            return self._sums[step, bucket]

    def _slice(self, shape: BucketShape, member: int) -> slice:
        """The part of a bucket for which a member is responsible."""
        return shape.slice_of(self.members.index(member), len(self.members))

    def _shape(self, bucket: int) -> BucketShape:
        if bucket >= len(self._shapes):
            raise ValueError(f"it sent a message about bucket {bucket} of {len(self._shapes)}")
        return self._shapes[bucket]

    def _add(self, step: int, bucket: int, nodes: Mapping[Node, torch.Tensor], result: torch.Tensor) -> None:
        sums, shape = self._sum(step, bucket), self._shapes[bucket]
        sums.result, sums.unsent = result, len(self._peers)
        for node, values in nodes.items():
            for peer in self._peers:
                part = as_bytes(values[self._slice(shape, peer)])
                self._links.send(peer, Header(NODE, self.world, bucket, *node, step), part)
        mine = self._slice(shape, self._replica)
        for node, values in nodes.items():
            copied = self._new_slice(mine.stop - mine.start, shape.dtype).copy_(values[mine])
            self._join(step, bucket, sums, node, copied)

    def _join(self, step: int, bucket: int, sums: _Sum, node: Node, part: torch.Tensor) -> None:
        """Add a slice of a node to its sibling, and so on upwards. The root goes to all."""
        while node != self._root:
            parent, sibling = parent_and_sibling(node, self._leaves)
            if sibling not in sums.parts:
                break
            other = sums.parts.pop(sibling)
            part.add_(other)
            self._release(other)
            node = parent
        sums.parts[node] = part
        if node == self._root:
            self._finish(step, bucket, sums)

    def _finish(self, step: int, bucket: int, sums: _Sum) -> None:
        shape, whole = self._shapes[bucket], sums.parts.pop(self._root)
        assert sums.result is not None
        mine = sums.result[self._slice(shape, self._replica)]
        mine.copy_(whole)
        self._release(whole)
        for peer in self._peers:
            header = Header(SUM, self.world, bucket, *self._root, step)
            self._links.send(peer, header, as_bytes(mine), lambda: self._note_sent(sums))
        sums.awaited.discard(self._replica)
        self._note_progress(sums)

    def _note_sent(self, sums: _Sum) -> None:
        sums.unsent -= 1
        self._note_progress(sums)

    def _note_progress(self, sums: _Sum) -> None:
        if not sums.awaited and not sums.unsent:
            sums.done.set()

    def _new_slice(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        spare = self._spare.get((numel, dtype))
        return spare.pop() if spare else torch.empty(numel, dtype=dtype, device="cpu")

    def _release(self, part: torch.Tensor) -> None:
        self._spare.setdefault((part.numel(), part.dtype), []).append(part)


def as_bytes(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    array: Any = values.view(torch.uint8).numpy()
    return memoryview(array)
