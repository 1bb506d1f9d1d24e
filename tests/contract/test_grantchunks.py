"""A grant in parts: nothing is lost, and every frame has room."""

from __future__ import annotations

import pytest

from ropeteam_trainer.contract import codec, grantchunks, wire
from ropeteam_trainer.contract.messages import Grant, Orders
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

REF = CheckpointRef(4000, WorldId(3, 0, 17))


def grant(ranks: int, each: int = 1, ref: CheckpointRef = REF) -> Grant:
    files = (
        ShardFile(f"__{rank}_{n}.distcp", 10**12, "f" * 64) for rank in range(ranks) for n in range(each)
    )
    return Grant(ref, ranks, tuple(files), None)


def test_the_largest_checkpoint_that_a_job_may_have_goes_through():
    whole = grant(8192, each=16)
    orders, came = Orders(3, 0, 1, grant=whole), None
    for body in grantchunks.encoded_parts(whole):
        assert len(body) < wire.MAX_BODY
        part = grantchunks.parse_part(body)
        assert part is not None
        came = grantchunks.with_part(came, part)
    last = codec.encode(grantchunks.without_files(orders))
    assert len(last) < 2000
    assert grantchunks.with_files(codec.decode(Orders, last), came) == orders


def test_orders_without_a_grant_stay_as_they_are():
    orders = Orders(3, 0, 1)
    assert grantchunks.without_files(orders) is orders
    assert grantchunks.with_files(orders, None) is orders
    assert grantchunks.parse_part(codec.encode(orders)) is None


def test_files_of_an_older_grant_are_forgotten_and_missing_ones_refused():
    old, new = (
        grantchunks.GrantFiles(ref, grant(1).files) for ref in (REF, CheckpointRef(5000, REF.world_id))
    )
    assert grantchunks.with_part(grantchunks.with_part(None, old), old).files == grant(1).files * 2
    assert grantchunks.with_part(old, new) == new
    orders = grantchunks.without_files(Orders(3, 0, 1, grant=grant(2)))
    for came in (None, old, new):
        with pytest.raises(codec.DecodeError, match=r"step 4000 came with . of its 2 files"):
            grantchunks.with_files(orders, came)
