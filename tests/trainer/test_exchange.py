"""Messages of peers are values, and never run."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab.ranks.processes import RankGroup
from tests.trainer.planted import CANARY, Gadget

from ropeteam_trainer.checkpoint.agreement import CHOSEN, VERIFICATION, Verification
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank import exchange
from ropeteam_trainer.rank.exchange import BadMessage

_SHARD = b"\x80\x04cropeteam_trainer.contract.world\nShardFile\n"
PLAIN: list[Any] = [
    None,
    True,
    3,
    -0.5,
    "text",
    (1, "b"),
    [1, (2,)],
    {"a": {"b"}},
    {1, 2},
    set(),
    b"x",
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_are_sent_as_they_are(value: Any) -> None:
    assert exchange.unpack(exchange.pack(value)) == value


def test_an_instance_is_decoded_only_where_its_class_is_expected() -> None:
    ref = CheckpointRef(3, WorldId(1, 0, 2), "ab", "run")
    content = exchange.pack(("the choice", ref), CHOSEN)
    assert exchange.unpack(content, CHOSEN) == ("the choice", ref)
    with pytest.raises(BadMessage, match=r"the message names ropeteam_trainer\.contract\.world\.Epoch"):
        exchange.unpack(content, {"ropeteam_trainer.contract.world.CheckpointRef": CheckpointRef})
    state = Verification(True, 1, "", "")
    assert exchange.unpack(exchange.pack(state, VERIFICATION), VERIFICATION) == state


def test_what_has_no_name_is_not_sent() -> None:
    for value in (WorldId(1, 0, 2), [Gadget(Path("made"))], print):
        with pytest.raises(pickle.PicklingError, match="is not in the vocabulary of this exchange"):
            exchange.pack(value)


def test_a_field_is_sent_under_its_name_in_json() -> None:
    @dataclass(frozen=True)
    class Renamed:
        now: int = codec.stored_as("before")

    names = {"ropeteam_trainer.contract.world.Renamed": Renamed}
    content = exchange.pack(Renamed(3), names)
    assert b"before" in content
    assert exchange.unpack(content, names) == Renamed(3)


def test_fields_have_the_types_that_they_should_have() -> None:
    with pytest.raises(BadMessage, match=r"ShardFile\.size: expected int"):
        exchange.unpack(exchange.pack(ShardFile("state.pt", "many", ""), CHOSEN), CHOSEN)  # type: ignore[arg-type]


def test_a_gadget_is_not_run(tmp_path: Path) -> None:
    gadget = Gadget(tmp_path / "step-3" / "1.0.1")
    for content in (pickle.dumps(gadget, 0), pickle.dumps(gadget), pickle.dumps(("a", [gadget]))):
        with pytest.raises(BadMessage, match="system, which ranks do not send to each other"):
            exchange.unpack(content)
    for name in ("eval", "SystemExit", "open", "getattr", "__import__"):
        with pytest.raises(BadMessage, match=f"the message names builtins.{name}"):
            exchange.unpack(f"cbuiltins\n{name}\n(S'1'\ntR.".encode())
    assert not (tmp_path / CANARY).exists()


def test_what_is_written_into_a_class_is_gone_with_the_message() -> None:
    """A class itself, with (None, {"size": "many"}) as its state: pickle sets these as attributes."""
    fields = b"\x8c\x04size\x8c\x04manys"
    with pytest.raises(BadMessage):
        exchange.unpack(_SHARD + b"N}" + fields + b"\x86b.", CHOSEN)
    assert not hasattr(ShardFile, "size")
    with pytest.raises(BadMessage, match="missing name, size, sha256"):
        exchange.unpack(_SHARD + b")\x81.", CHOSEN)


def test_what_the_release_before_knows_keeps_its_name_and_fields() -> None:
    """As it was when all of it was sent as pickles. A dataclass may have more fields, with defaults."""
    known = {
        "checkpoint.together._Said": "done read proved unsure",
        "checkpoint.restore.Choice": "manifest ref skipped",
        "checkpoint.restore.CheckpointNotFound": "",
        "checkpoint.manifest.Manifest": "step epoch world_size job job_uid files parent format",
        "contract.world.CheckpointRef": "step epoch digest run",
        "contract.world.Epoch": "term boot n",
        "contract.world.ShardFile": "name size sha256",
    }
    kinds = {
        name.removeprefix("ropeteam_trainer."): kind for name, kind in {**CHOSEN, **VERIFICATION}.items()
    }
    assert kinds.keys() == known.keys()
    for name, kind in kinds.items():
        fields = getattr(kind, "_fields", None) or tuple(
            codec.json_name(field) for field in getattr(kind, "__dataclass_fields__", {}).values()
        )
        assert fields[: len(known[name].split())] == tuple(known[name].split())
    assert len(Verification._fields) == 4


@pytest.mark.parametrize("other", [0, 1, 2], ids=["rank 0", "rank 1", "none"])
def test_ranks_of_the_release_before_exchange_with_those_of_this_one(tmp_path: Path, other: int) -> None:
    ended = RankGroup(tmp_path, 2).run("exchanging.py", str(other))
    assert ended.codes == [0, 0], "\n".join(ended.output)


@pytest.mark.parametrize("hostile", [0, 1])
def test_a_gadget_from_a_peer_is_not_run(tmp_path: Path, hostile: int) -> None:
    made = tmp_path / "made"
    ended = RankGroup(tmp_path, 2).run("exchanging.py", str(hostile), str(made))
    assert ended.codes == [0, 0], "\n".join(ended.output)
    assert [made.with_suffix(f".{rank}").exists() for rank in range(2)] == [hostile == 0, hostile == 1]
    assert f"the message of rank {hostile} cannot be decoded" in ended.output[1 - hostile]
