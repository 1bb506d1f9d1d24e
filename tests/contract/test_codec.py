"""Messages to JSON and back: nothing is lost, and what is not a message is refused with the field's name."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CoordinatorConfig, RankPlan, WorkerConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import (
    AgentReport,
    Orders,
    RankPhase,
    RankReport,
    lease_answer,
    parse_lease_answer,
)
from ropeteam_trainer.contract.world import Plan, WorldId

MESSAGES: list[type] = [
    AgentReport,
    Orders,
    Desired,
    JobReport,
    FromRank,
    ToRank,
    WorkerConfig,
    CoordinatorConfig,
    RankPlan,
    Plan,
]
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


@given(message=st.sampled_from(MESSAGES).flatmap(st.from_type))
def test_every_message_comes_back_as_it_was(message: Any) -> None:
    assert codec.decode(type(message), codec.encode(message)) == message


@given(kind=st.sampled_from(MESSAGES), text=st.text() | st.binary())
def test_noise_is_refused_and_never_raises_another_error(kind: type, text: str | bytes) -> None:
    try:
        codec.decode(kind, text)
    except codec.DecodeError:
        return
    assert isinstance(json.loads(text), dict), "only an object may be a message, of nothing but defaults"


LARGE = st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, -(10**400)])
LONE = st.text(st.characters(categories=["Cs"]) | st.characters(), max_size=5)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | LARGE | st.floats() | LONE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LONE, inner, max_size=3),
    max_leaves=5,
)


@given(message=st.sampled_from(MESSAGES).flatmap(st.from_type), put=PLAIN, data=st.data())
def test_a_field_with_a_foreign_value_is_taken_or_refused_never_raises(
    message: Any, put: Any, data: Any
) -> None:
    plain = codec.to_plain(message)
    field = data.draw(st.sampled_from(sorted(plain)))
    with suppress(codec.DecodeError):
        decoded = codec.decode(type(message), json.dumps({**plain, field: put}))
        assert codec.decode(type(message), codec.encode(decoded)) == decoded


class Colour(str, Enum):
    RED = "Red"
    BLUE = "Blue"


@dataclass(frozen=True)
class Inner:
    number: int
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number is negative")


@dataclass(frozen=True)
class Outer:
    name: str
    colour: Colour = Colour.RED
    parts: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] | None = None
    flag: bool = False


def inner(fields: str) -> str:
    return f'{{"name": "a", "parts": [{{{fields}}}]}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ('{"name": "a", "ratio": NaN}', "not JSON: NaN is not a JSON number"),
        ("[]", "Outer: expected an object, got []"),
        ("{}", "Outer: missing name"),
        ('{"name": 1}', "Outer.name: expected str, got 1"),
        ('{"name": "a", "colour": "Green"}', 'Outer.colour: expected one of Red, Blue, got "Green"'),
        ('{"name": "a", "colour": []}', "Outer.colour: expected one of Red, Blue, got []"),
        ('{"name": "a", "parts": {}}', "Outer.parts: expected a list, got {}"),
        ('{"name": "a", "parts": [{"number": 1}, 2]}', "Outer.parts[1]: expected an object, got 2"),
        ('{"name": "a", "parts": [{"number": -1}]}', "Outer.parts[0]: number is negative"),
        ('{"name": "a", "parts": [{"number": 1.5}]}', "Outer.parts[0].number: expected int, got 1.5"),
        ('{"name": "a", "parts": [{"number": true}]}', "Outer.parts[0].number: expected int, got true"),
        ('{"name": "a", "by_name": []}', "Outer.by_name: expected an object, got []"),
        ('{"name": "a", "by_name": {"x": {}}}', "Outer.by_name.x: missing number"),
        ('{"name": "a", "flag": 1}', "Outer.flag: expected bool, got 1"),
        (inner(f'"number": {2**63}'), "Outer.parts[0].number: expected a number of 64 bits"),
        (inner(f'"number": 1, "ratio": {10**400}'), "Outer.parts[0].ratio: expected a number of 64 bits"),
        (inner('"number": 1, "ratio": 1e999'), "Outer.parts[0].ratio: expected a number of 64 bits"),
        (inner('"number": 1, "ratio": "1"'), 'Outer.parts[0].ratio: expected float, got "1"'),
    ],
)
def test_the_refusal_names_the_field(text: str, expected: str) -> None:
    with pytest.raises(codec.DecodeError) as caught:
        codec.decode(Outer, text)
    assert str(caught.value).startswith(expected)


def test_unknown_fields_are_ignored_missing_ones_take_their_default_and_an_int_is_a_float() -> None:
    text = '{"name": "a", "invented": [1], "by_name": {"x": {"number": 1, "ratio": 2}}}'
    assert codec.decode(Outer, text) == Outer("a", by_name={"x": Inner(1, 2.0)})
    assert codec.decode(Outer, '{"name": "a", "by_name": null}') == Outer("a")


def test_however_deep_what_is_not_expected_lies_it_is_refused() -> None:
    """At some depth it can be read, and not be written into the refusal."""
    for depth in range(400, sys.getrecursionlimit() + 100):
        with pytest.raises(codec.DecodeError):
            codec.decode(Outer, '{"name": ' + "[" * depth + "]" * depth + "}")


NOT_UTF_8 = os.fsdecode(b"caf\xe9.txt")


def test_half_a_character_is_replaced_when_it_is_sent() -> None:
    lone = Outer(NOT_UTF_8, by_name={NOT_UTF_8: Inner(1)})
    sent = codec.encode(lone)
    assert json.loads(sent)["name"] == "caf?.txt"
    assert codec.decode(Outer, sent) == Outer("caf?.txt", by_name={"caf?.txt": Inner(1)})
    assert codec.decode(Outer, codec.encode(Outer("\U0001f600 \\ud83d"))).name == "\U0001f600 \\ud83d"


@pytest.mark.parametrize(
    "text", [r'{"name": "caf\udce9.txt"}', r'{"name": "caf\uDCE9.txt"}', f'{{"name": "{NOT_UTF_8}"}}']
)
def test_half_a_character_from_a_peer_that_sends_it_is_replaced(text: str) -> None:
    """A coordinator of the release before sends it, and a rank whose script made the line itself."""
    assert codec.decode(Outer, text).name == "caf?.txt"


def test_values_that_json_has_no_text_for_are_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        codec.encode(Inner(1, float("nan")))


def test_the_same_message_has_the_same_bytes() -> None:
    assert codec.encode(WorldId(1, 0, 2)) == b'{"term":1,"boot":0,"n":2}'
    assert json.loads(codec.encode(Outer("ä", Colour.BLUE)))["colour"] == "Blue"


@dataclass(frozen=True)
class OneField:
    number: int


def test_a_message_of_one_field_comes_back():
    assert codec.decode(OneField, codec.encode(OneField(3))) == OneField(3)


def test_a_short_answer_comes_back_and_nothing_else_is_taken_for_one():
    orders = Orders(2, 1, 0, answers=7, same=True)
    assert parse_lease_answer(lease_answer(orders)) == orders
    assert parse_lease_answer(codec.encode(orders)) is None


def test_a_reader_gives_what_decode_gives_and_keeps_what_is_repeated():
    ranks = (RankReport(0, RankPhase.RUNNING, 3),)
    report = AgentReport(0, 1, "uid", "10.0.0.1", "job", 1, ranks=ranks, node="n")
    reader = codec.Reader(AgentReport)
    first = reader.decode(codec.encode(report))
    changes: list[dict[str, Any]] = [{"number": 2}, {"ranks": ()}, {"node": "m", "terminating": True}, {}]
    for change in changes:
        report = replace(report, **change)
        repeated = reader.decode(codec.encode(report))
        assert repeated == report
    assert repeated.progress is first.progress


def test_a_reader_forgets_what_a_message_leaves_out_and_refuses_what_decode_refuses():
    reader = codec.Reader(RankReport)
    assert reader.decode(b'{"rank": 1, "phase": "Running", "step": 4}').step == 4
    assert reader.decode(b'{"rank": 1, "phase": "Running"}').step == 0
    for wrong in (b"[]", b'{"rank": 1, "phase": "Running", "step": "x"}', b'{"phase": "Running"}', b"{"):
        with pytest.raises(codec.DecodeError):
            reader.decode(wrong)
    assert reader.decode(b'{"rank": 1, "phase": "Running"}').step == 0


@dataclass(frozen=True)
class Renamed:
    feature_level: int = codec.stored_as("rung")
    is_final: bool = codec.stored_as("settled", False)


def test_a_feature_level_is_written_as_its_number():
    assert codec.encode(FromRank(feature_level=FeatureLevel.DATA)) == codec.encode(FromRank(feature_level=3))


def test_a_field_is_written_and_read_under_the_name_that_it_is_stored_as():
    assert codec.encode(Renamed(3, True)) == b'{"rung":3,"settled":true}'
    assert codec.decode(Renamed, b'{"rung":3}') == Renamed(3)
    reader = codec.Reader(Renamed)
    assert reader.decode(b'{"rung":3,"settled":true}') == Renamed(3, True)
    assert reader.decode(b'{"rung":3}') == Renamed(3)
    for wrong in (b'{"feature_level":3}', b'{"rung":"x"}'):
        with pytest.raises(codec.DecodeError, match="rung"):
            codec.decode(Renamed, wrong)
