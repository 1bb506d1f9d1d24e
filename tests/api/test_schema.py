"""Structural schemas: what a model becomes, what is refused, and that they judge values as pydantic does."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, WithJsonSchema

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.model import ApiModel
from ropeteam.api.quantity import parse_quantity
from ropeteam.api.rules.validate import spec_schema, validate
from ropeteam.api.schema.sentences import problems
from ropeteam.api.schema.structural import structural_schema, with_defaults
from ropeteam.local.api.schema import field_errors

Short = Annotated[str, Field(max_length=9)]


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


class Inner(ApiModel):
    """Something inside."""

    how_many: int = Field(default=1, ge=1, le=5)
    """A number."""
    note: Short | None = None
    """May be left out."""


class Outer(ApiModel):
    """Something
    outside."""

    name: Short
    """A name."""
    inner: Inner = Inner()
    """Something in it."""
    colour: Colour = Colour.RED
    """One of two."""
    parts: tuple[Inner, ...] = Field(default=(), max_length=3)
    """Some more."""
    labels: dict[str, Short] | None = Field(default=None, max_length=2)
    """Free names."""
    since: datetime | None = None
    """A time."""


def test_a_model_becomes_one_schema_without_references() -> None:
    number = {"description": "A number.", "type": "integer", "default": 1, "maximum": 5, "minimum": 1}
    note = {"description": "May be left out.", "type": "string", "maxLength": 9}
    inner = {"type": "object", "properties": {"howMany": number, "note": note}}
    assert structural_schema(Outer) == {
        "description": "Something outside.",
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"description": "A name.", "type": "string", "maxLength": 9},
            "inner": {"description": "Something in it.", **inner, "default": {"howMany": 1}},
            "colour": {
                "description": "One of two.",
                "type": "string",
                "enum": ["Red", "Blue"],
                "default": "Red",
            },
            "parts": {
                "description": "Some more.",
                "type": "array",
                "default": [],
                "maxItems": 3,
                "items": {"description": "Something inside.", **inner},
            },
            "labels": {
                "description": "Free names.",
                "type": "object",
                "maxProperties": 2,
                "additionalProperties": {"type": "string", "maxLength": 9},
            },
            "since": {"description": "A time.", "type": "string", "format": "date-time"},
        },
    }


def test_status_has_no_defaults() -> None:
    assert "default" not in str(structural_schema(Outer, defaults=False))
    assert structural_schema(Outer, defaults=False)["properties"]["parts"]["maxItems"] == 3


class Silent(ApiModel):
    number: int = 1


class Vague(ApiModel):
    text: str = ""
    """A text."""


class Endless(ApiModel):
    texts: tuple[Short, ...] = ()
    """A list."""


class Wide(ApiModel):
    texts: dict[str, Short] = Field(default={})
    """A map."""


class Float(ApiModel):
    number: float = 1.0
    """A float."""


class Union(ApiModel):
    either: int | Short = 1
    """A union."""


class Exclusive(ApiModel):
    number: int = Field(default=1, gt=0)
    """A number."""


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Silent, "Silent: no description for number; write a docstring below the field"),
        (Vague, "Vague.text: no maximum; give it a maxLength"),
        (Endless, "Endless.texts: no maximum; give it a maxItems"),
        (Wide, "Wide.texts: no maximum; give it a maxProperties"),
        (Float, "Float.number: type number is not allowed"),
        (Union, "Union.either: a structural schema cannot have a union"),
        (Exclusive, "Exclusive.number: exclusiveMinimum cannot be expressed in a structural schema"),
    ],
)
def test_what_a_server_would_refuse_is_refused_here(model: type[ApiModel], expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        structural_schema(model)
    assert str(caught.value).startswith(expected)


QUANTITY = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "maxProperties": 1, "additionalProperties": {}})
]


class Untyped(ApiModel):
    anything: QUANTITY
    """A map of anything."""


def test_a_value_without_a_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Untyped.anything\[\]: type None is not allowed"):
        structural_schema(Untyped)


def test_defaults_are_filled_in_to_the_bottom_and_nothing_else_is_touched() -> None:
    schema = structural_schema(Outer)
    given_value = {"name": "a", "parts": [{}, {"howMany": 2}, 7], "extra": {"x": 1}}
    filled = {"inner": {"howMany": 1}, "colour": "Red", "parts": [{"howMany": 1}, {"howMany": 2}, 7]}
    assert with_defaults(schema, given_value) == {**given_value, **filled}
    assert with_defaults(schema, "not a map") == "not a map"
    assert with_defaults(schema, [1]) == [1]


def test_too_many_entries_of_a_map_are_reported() -> None:
    labels = {str(number): "x" for number in range(3)}
    (message,) = problems(structural_schema(Outer), {"name": "a", "labels": labels}, "it")
    assert message == "it.labels: has 3 entries; use 2 or fewer"


PLAIN: list[Any] = [
    0,
    -1,
    1,
    3,
    10**9,
    "",
    "a",
    "8Gi",
    "8Gi\n",
    "Auto",
    "Latest",
    [],
    {},
    [1],
    ["a"],
    True,
    0.5,
]
MALFORMED = st.sampled_from([*PLAIN, None])
INNER = st.sampled_from(["policy", "step", "lostSeconds", "start", "path", "volume"])
LEAVES = MALFORMED | st.dictionaries(INNER, MALFORMED)
NAMES = [*(str(field.alias) for field in TrainingJobSpec.model_fields.values()), "unknown"]
FIELDS = st.sampled_from(NAMES)
POD_PARTS = ("env", "resources", "template", "checkpoint")
"""Pydantic passes them through; the dry run of a pod checks them."""
OURS = st.dictionaries(
    st.sampled_from([name for name in NAMES if name not in POD_PARTS]),
    st.sampled_from(PLAIN)
    | st.dictionaries(INNER, st.sampled_from(PLAIN)),  # null: pydantic takes it as absent
    max_size=2,
)


def _pydantic_takes(spec: Any) -> bool:
    try:
        TrainingJobSpec.model_validate_json(json.dumps(spec), strict=True, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


@given(more=OURS)
def test_schema_and_pydantic_validate_a_shape_alike(more: dict[str, Any]) -> None:
    spec = {"workers": 2, **more}
    assert (not list(problems(spec_schema(), spec, "spec"))) == _pydantic_takes(spec)


@given(
    spec=st.recursive(MALFORMED, lambda inner: st.dictionaries(FIELDS, inner) | st.lists(inner), max_leaves=9)
)
def test_validation_raises_for_no_value(spec: Any) -> None:
    assert all(isinstance(message, str) for message in validate(spec))


@example(spec={"workers": 2, "command": ["a"], "suspend": True})
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(
    spec=st.dictionaries(FIELDS, LEAVES, max_size=4).map(
        lambda more: {"workers": 2, "command": ["a"], **more}
    )
)
def test_what_is_valid_is_parsed_as_the_server_would_default_it(spec: dict[str, Any]) -> None:
    assume(not validate(spec))
    assert TrainingJobSpec.model_validate(spec).to_json() == with_defaults(spec_schema(), spec)


def test_of_a_value_only_the_beginning_is_written_however_large_it_is() -> None:
    endless: list[Any] = ["x"]
    endless.append(endless)
    for value in (endless, ["x"] * 1_000_000, {"a": "x" * 100}, {(1, 2): 3, "a": ["x"] * 99}):
        (message,) = problems({"type": "string", "maxLength": 9}, value, "spec.x")
        assert message.startswith("spec.x: ")
        assert "... is a " in message
        assert len(message) < 120
    (message, _) = problems({"type": "string", "maxLength": 9, "enum": ["a"]}, "x" * 100, "spec.x")
    assert message == f"spec.x: '{'x' * 57}...' is unknown; use a"


def test_a_quantity_of_any_size_is_read() -> None:
    assert parse_quantity("1e999999999") is None
    assert parse_quantity("1e-999999999") == 0
    assert parse_quantity("8Gi") == 8 << 30
    assert (parse_quantity("1.5e3"), parse_quantity("2E"), parse_quantity("500u")) == (
        1500,
        2 * 10**18,
        Decimal("0.0005"),
    )
    assert [parse_quantity(text) for text in ("1.2.3", "1e3Ki", "5foo", "")] == [None] * 4


def test_keys_that_are_no_text_are_not_compared() -> None:
    named = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}
    rows = {"type": "array", "maxItems": 9, "items": named, "x-kubernetes-list-type": "map"}
    rows["x-kubernetes-list-map-keys"] = ["name"]
    messages = list(problems(rows, [{"name": []}, {"name": []}, {}, {"name": "a"}, {"name": "a"}], "spec.x"))
    assert [each.split(": ")[0] for each in messages] == ["spec.x[0].name", "spec.x[1].name", "spec.x[4]"]


@given(
    spec=st.recursive(MALFORMED, lambda inner: st.dictionaries(FIELDS, inner) | st.lists(inner), max_leaves=9)
)
def test_users_and_the_local_server_read_of_the_same_fields(spec: Any) -> None:
    """But for unknown fields, which a server prunes, and whole floats, which it takes."""
    for_users = {
        text.split(": ")[0] for text in problems(spec_schema(), spec, "spec") if "unknown f" not in text
    }
    of_server = {error.field for error in field_errors(spec, spec_schema(), "spec")}
    assert of_server == for_users


def test_a_field_whose_name_has_a_dot_is_shown_whole() -> None:
    messages = list(problems(structural_schema(Outer), {"name": "a", "in.ner": 1, 7: 2}, "it"))
    assert messages[0] == "it.in.ner: unknown field, did you mean inner?"
    assert messages[1].startswith("it.7: unknown field; the fields of it are name, inner, ")
