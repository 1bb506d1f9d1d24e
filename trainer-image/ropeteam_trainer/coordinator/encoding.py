"""Orders as bytes. Most of them is the same for every agent, and is encoded once.

Pure, but for what it remembers. Promise: what `codec.decode` makes of the bytes are the orders (a test does).
"""

from __future__ import annotations

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.messages import Orders
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.coordinator.membership.orders import Reply


class Words:
    """Of one coordinator."""

    def __init__(self) -> None:
        self._alike: tuple[Orders | None, bytes] = (None, b"")
        self._whole: tuple[Plan | None, bytes] = (None, b"")
        self._parts: _Parts | None = None

    def encode(self, reply: Reply, number: int, answers: int | None) -> bytes:
        """These orders, with what belongs to one connection."""
        plan = self._plan(reply) if reply.plan else b"null"
        told = b"null" if answers is None else b"%d" % answers
        return b'{%b,"number":%d,"answers":%b,"plan":%b}' % (self._rest(reply.orders), number, told, plan)

    def _plan(self, reply: Reply) -> bytes:
        if reply.slot < 0:
            if self._whole[0] is not reply.plan:
                self._whole = (reply.plan, codec.encode(reply.plan))
            return self._whole[1]
        if self._parts is None or self._parts.plan is not reply.plan:
            self._parts = _Parts(reply)
        return self._parts.encode(reply.slot, reply.others)

    def _rest(self, orders: Orders) -> bytes:
        if self._alike[0] is not orders:
            plain = codec.to_plain(orders)
            for name in ("number", "answers", "plan"):
                del plain[name]
            self._alike = (orders, codec.encode(plain)[1:-1])
        return self._alike[1]


class _Parts:
    """All parts of one plan."""

    def __init__(self, sample: Reply) -> None:
        assert sample.plan is not None
        self.plan = sample.plan
        plain = codec.to_plain(sample.whole.plan)
        whole = plain.pop("whole")
        del plain["members"], whole["slot"], whole["first_rank"]
        self._rest, self._whole = codec.encode(plain)[1:-1], codec.encode(whole)[1:-1]
        self._members: dict[int, bytes] = {}

    def encode(self, slot: int, others: tuple[int, ...]) -> bytes:
        members = b",".join(map(self._member, sorted({slot, *others})))
        return b'{%b,"members":[%b],"whole":{%b,"slot":%d,"first_rank":%d}}' % (
            *(self._rest, members, self._whole),
            *(slot, self.plan.first_rank(slot)),
        )

    def _member(self, slot: int) -> bytes:
        if slot not in self._members:
            self._members[slot] = codec.encode(self.plan.member(slot))
        return self._members[slot]
