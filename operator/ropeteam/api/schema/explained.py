"""Descriptions as `kubectl explain` needs them. It prints neither defaults nor limits, so both become
sentences.

Limits: patterns, limits of a list's items, and minimums of texts, lists and maps (all are 1) have no
sentence; a docstring describes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropeteam.api.schema.structural import Schema


def with_limits_explained(schema: Schema) -> Schema:
    """A copy of `schema` in which the description of each field ends with its default and its limits."""
    inner: Schema = {}
    if "properties" in schema:
        inner["properties"] = {name: _explained_field(each) for name, each in schema["properties"].items()}
    if "items" in schema:
        inner["items"] = with_limits_explained(schema["items"])
    return {**schema, **inner}


def _explained_field(field: Schema) -> Schema:
    """A copy of the schema of a field, explained itself and below."""
    return {
        **with_limits_explained(field),
        "description": " ".join((field["description"], *_default_sentence(field), *_limit_sentences(field))),
    }


def _default_sentence(field: Schema) -> Iterator[str]:
    """Sentence on the default of a field. None for a list or an object: its fields have their own."""
    default = field.get("default")
    if isinstance(default, bool):
        yield f"Defaults to {str(default).lower()}."
    elif isinstance(default, int | str):
        yield f"Defaults to {default}."


def _limit_sentences(field: Schema) -> Iterator[str]:
    """Sentences on the limits of a number, a text or a list."""
    if "minimum" in field:
        lowest, highest = field["minimum"], field.get("maximum")
        yield f"Must be {lowest} or more." if highest is None else f"Must be between {lowest} and {highest}."
    for keyword, parts in (("maxLength", "characters"), ("maxItems", "items")):
        if keyword in field:
            yield f"At most {field[keyword]} {parts} are allowed."
