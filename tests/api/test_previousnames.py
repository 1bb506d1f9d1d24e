"""A status that an earlier release has stored: read with every value, kept whole by the API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeteam.api import crd
from ropeteam.api.model import PREVIOUS_NAMES, api_name
from ropeteam.api.schema.sentences import problems
from ropeteam.api.status import JobStatus
from ropeteam.local.api.schema import prune

STORED = json.loads((Path(__file__).parent / "recorded/status-before-renames.json").read_text())
"""Written by the release before, with a value in every field."""
NEW = {previous: api_name(field) for field, previous in PREVIOUS_NAMES.items()}


def renamed(value: Any) -> Any:
    """`value` with the present names of all fields."""
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if isinstance(value, dict):
        return {NEW.get(name, name): renamed(each) for name, each in value.items()}
    return value


def test_every_value_of_a_stored_status_is_read_and_written_under_its_new_name() -> None:
    assert JobStatus.model_validate(STORED).to_json() == renamed(STORED)


def test_the_stored_status_has_every_field_and_every_previous_name() -> None:
    """Else the test before would not see one that is lost."""

    def names(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(names, value))
        return {*value}.union(*map(names, value.values())) if isinstance(value, dict) else set()

    assert names(STORED) >= {*PREVIOUS_NAMES.values()}
    assert {*JobStatus.model_fields} == {*JobStatus.model_validate(STORED).model_fields_set}


def test_a_name_of_now_wins_over_a_previous_one() -> None:
    assert JobStatus.model_validate({"rung": 3, "featureLevel": 2}).feature_level == 2


def test_a_server_keeps_what_the_release_before_writes() -> None:
    """An older operator may lead when the definition of the next release is installed already."""
    schema = crd.job_schema()["properties"]["status"]
    retained = json.loads(json.dumps(STORED))
    assert (prune(retained, schema), retained) == ([], STORED)
    assert list(problems(schema, STORED, "status")) == []


def test_what_no_model_has_is_not_silently_left_out_of_a_copy() -> None:
    with pytest.raises(TypeError, match="JobStatus has no field rung"):
        JobStatus().model_copy(update={"rung": 3})
