"""Outcomes of runs: every kind of green and of red, from what was seen of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.programs.outcome import Joined, Seen, groups, imported, joined, outcome_of, whole
from tests.programs.rows import Project, Row

PROJECT = Project("p", "a/b", "0" * 40)
SURVIVED: dict[str, Any] = {"whole": 1, "killed": 7, "again": True, "end": "Complete"}


def outcome(row: dict[str, Any], expected: int = 2, **seen: Any) -> str:
    found = outcome_of(Row("one", PROJECT, "python x.py", ("2x1",), **row), Seen(expected, **seen))
    return f"{'green' if found.green else 'red'}: {found.name}"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SURVIVED, "green: survived"),
        (SURVIVED | {"end": ""}, "green: survived"),
        (SURVIVED | {"end": "", "again": False}, "red: silent hang"),
        (SURVIVED | {"end": "Failed"}, "red: failed"),
        (SURVIVED | {"killed": 0}, "red: no kill"),
        (SURVIVED | {"whole": 2}, "red: silent split"),
        (SURVIVED | {"whole": 0, "other": 2}, "red: silent split"),
        ({"end": "Complete"}, "red: silent split"),
        ({}, "red: silent hang"),
        ({"refusal": "spec.command: no"}, "red: refused"),
    ],
)
def test_a_program_that_should_train(seen: dict[str, Any], expected: str):
    assert outcome({}, **seen) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"end": "Complete", "whole": 1}, "green: one world"),
        ({"end": "", "whole": 1}, "red: silent hang"),
        ({"end": "Complete"}, "red: silent split"),
    ],
)
def test_a_program_that_is_not_killed(seen: dict[str, Any], expected: str):
    assert outcome({"kill": False}, **seen) == expected


def test_one_process_needs_no_group_but_two_groups_of_it_are_wrong():
    assert outcome({}, 1, **SURVIVED | {"whole": 0}) == "green: survived"
    assert outcome({}, 1, **SURVIVED | {"whole": 2}) == "red: silent split"
    assert outcome({}, 1, **SURVIVED | {"whole": 0, "other": 1}) == "red: silent split"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"refusal": "leave mpirun out: use torchrun"}, "green: refused"),
        ({"refusal": "mpirun is not in the image"}, "red: refused otherwise"),
        (SURVIVED, "red: not refused"),
    ],
)
def test_a_program_that_should_be_refused(seen: dict[str, Any], expected: str):
    assert outcome({"refused": "torchrun"}, **seen) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"reasons": {"Accepted", "SplitWorld"}}, "green: reported"),
        ({"reasons": {"Accepted"}, "end": "Complete"}, "red: silent split"),
        ({"reasons": {"Accepted"}, "end": "Failed"}, "red: not reported"),
        ({}, "red: not reported"),
    ],
)
def test_a_program_whose_failure_should_be_reported(seen: dict[str, Any], expected: str):
    assert outcome({"reason": "SplitWorld"}, **seen) == expected


LINES = """{"pid": 1, "group": "", "rank": 0, "size": 0, "time": 1}
{"pid": 1, "group": "a", "rank": 0, "size": 2, "time": 2}
{"pid": 2, "group": "a", "rank": 1, "size": 2, "time": 3}
{"pid": 3, "group": "b", "rank": 0, "size": 1, "time": 4}
{"pid": 4, "gro"""


def test_the_witness_is_read_up_to_the_line_that_is_being_written():
    assert imported(LINES) == [1]
    assert [line.pid for line in joined(LINES)] == [1, 2, 3]


def test_a_group_is_whole_while_all_its_ranks_live():
    lines = joined(LINES)
    assert whole(groups(lines, [1, 2, 3]), 2) == ["a"]
    assert whole(groups(lines, [1, 2, 3]), 1) == ["b"]
    assert whole(groups(lines, [1, 3]), 2) == []


def test_a_process_is_in_the_group_that_it_joined_last():
    lines = [Joined(1, "a", 0, 2), Joined(2, "a", 1, 2), Joined(1, "c", 0, 1)]
    found = groups(lines, [1, 2])
    assert whole(found, 2) == []
    assert whole(found, 1) == ["c"]


def test_two_that_claim_one_rank_are_no_whole_group():
    found = groups([Joined(1, "a", 0, 2), Joined(2, "a", 0, 2)], [1, 2])
    assert whole(found, 2) == []


SPLIT: dict[str, Any] = {
    "end": "Failed",
    "message": "SplitWorld: of 1",
    "reported": {"Smaller": (109.0, "a group of 1")},
    "degraded": "Smaller",
    "smaller": 100.0,
}
SPLIT_ROW = {"end": "SplitWorld", "reason": "Smaller", "message": "group of 1", "within": 10.0}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SPLIT, "green: as it has to"),
        (SPLIT | {"message": "NoProgress: of 1"}, "red: another end"),
        (SPLIT | {"end": "", "message": ""}, "red: another end"),
        (SPLIT | {"reported": {}}, "red: not reported"),
        (SPLIT | {"reported": {"Smaller": (109.0, "a group of 2")}}, "red: reported otherwise"),
        (SPLIT | {"smaller": 98.0}, "red: reported late"),
    ],
)
def test_a_wrong_world_is_reported_in_time_and_ends_the_job(seen: dict[str, Any], expected: str):
    assert outcome(SPLIT_ROW, **seen) == expected


RIGHT: dict[str, Any] = {"end": "Complete", "message": "Succeeded: all", "reported": {"Smaller": (1.0, "1")}}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (RIGHT, "green: as it has to"),
        (RIGHT | {"degraded": "Smaller"}, "red: falsely reported"),
        (RIGHT | {"message": "NoProcessGroup: all"}, "red: another end"),
    ],
)
def test_a_right_world_may_be_doubted_but_not_to_its_end(seen: dict[str, Any], expected: str):
    assert outcome({"end": "Succeeded"}, **seen) == expected


FAILED: dict[str, Any] = {
    "end": "Failed",
    "message": "Spent: it",
    "incident": {"message": "a lie", "rank": 1},
}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"cause": "lie$", "rank": 1}, "green: as it has to"),
        ({"cause": "lie$"}, "green: as it has to"),
        ({"cause": "truth"}, "red: another cause"),
        ({"cause": "lie$", "rank": 0}, "red: another cause"),
    ],
)
def test_a_failure_names_its_cause_and_its_rank(row: dict[str, Any], expected: str):
    assert outcome(row | {"end": "Spent"}, **FAILED) == expected
