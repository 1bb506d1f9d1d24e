"""Orders as bytes. Most fields are the same for every agent, and are encoded once.

No I/O, and no state except its caches. Promise: `codec.decode` of the bytes gives the orders
(test_encoding.py).
"""

from __future__ import annotations

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.messages import Orders
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.coordinator.membership.orders import Reply


class OrdersEncoder:
    """Encoder of one coordinator's orders. It caches the last common fields, whole plan and parts. They are
    compared by identity: `Replies` gives agents in the same case the same object."""

    def __init__(self) -> None:
        self._common: tuple[Orders | None, bytes] = (None, b"")
        self._whole: tuple[Plan | None, bytes] = (None, b"")
        self._parts: _Parts | None = None

    def encode(self, reply: Reply, number: int, answers: int | None) -> bytes:
        """The reply's orders as JSON. `number` and `answers` are fields of Orders that count per connection;
        None: the agent does not number its reports."""
        plan = self._plan(reply) if reply.plan else b"null"
        answered = b"null" if answers is None else b"%d" % answers
        return b'{%b,"number":%d,"answers":%b,"plan":%b}' % (
            self._common_fields(reply.orders),
            number,
            answered,
            plan,
        )

    def _plan(self, reply: Reply) -> bytes:
        """The reply's plan as JSON, whole or as the part for its slot. Only for a reply with a plan."""
        if reply.slot < 0:
            if self._whole[0] is not reply.plan:
                self._whole = (reply.plan, codec.encode(reply.plan))
            return self._whole[1]
        if self._parts is None or self._parts.plan is not reply.plan:
            self._parts = _Parts(reply)
        return self._parts.encode(reply.slot, reply.others)

    def _common_fields(self, orders: Orders) -> bytes:
        """The members of the JSON object, without braces, but number, answers and plan."""
        if self._common[0] is not orders:
            plain = codec.to_plain(orders)
            for name in ("number", "answers", "plan"):
                del plain[name]
            self._common = (orders, codec.encode(plain)[1:-1])
        return self._common[1]


class _Parts:
    """Encoder of all parts of one plan, with a cache of members. `sample`: any reply with a part of it."""

    def __init__(self, sample: Reply) -> None:
        assert sample.plan is not None
        self.plan = sample.plan
        plain = codec.to_plain(sample.orders_with_plan.plan)
        whole = plain.pop("whole")
        del plain["members"], whole["slot"], whole["first_rank"]
        self._rest, self._whole = codec.encode(plain)[1:-1], codec.encode(whole)[1:-1]
        self._members: dict[int, bytes] = {}

    def encode(self, slot: int, others: tuple[int, ...]) -> bytes:
        """`Plan.part(slot, others)` as JSON: its members, and a summary of the whole plan."""
        members = b",".join(map(self._member, sorted({slot, *others})))
        return b'{%b,"members":[%b],"whole":{%b,"slot":%d,"first_rank":%d}}' % (
            *(self._rest, members, self._whole),
            *(slot, self.plan.first_rank(slot)),
        )

    def _member(self, slot: int) -> bytes:
        if slot not in self._members:
            self._members[slot] = codec.encode(self.plan.member(slot))
        return self._members[slot]
