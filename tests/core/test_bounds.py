"""For any report of a coordinator `decide` has an answer that can be written; what it cannot mean is refused
by the name of its field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders import UID, Scene, a_job, a_report, a_running_job, an_incident
from tests.core.observations import plausible_scenes, reports
from tests.core.test_promises import (
    deciding_again_about_what_was_saved_comes_to_rest,
    every_observation_has_an_answer_and_a_reason,
    what_is_written_can_be_written_and_is_read_back_the_same,
)

from ropeteam.core.decide import decide
from ropeteam.core.seen.bounds import HIGHEST_COUNT, LONGEST_TEXT, OutOfBounds, bounded
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.desired import JobReport, RecoveryTimes, ReplacementRequest, SlotReport
from ropeteam_trainer.contract.messages import Problem, ProcessGroup, Progress
from ropeteam_trainer.contract.world import Cause, CheckpointRef, FailReason, ProcessExit, WorldId

REPORT = a_report(a_job(), lineage=(CheckpointRef(1, WorldId(1, 0, 1)),), incidents=(an_incident(),))
HUGE = 2**63 - 1
FULL = replace(
    REPORT,
    slots={"0": SlotReport(1, "uid")},
    replacement_requests=(ReplacementRequest(0, 1, Cause.ERROR, "why"),),
    progress=Progress(1, 2, "0.5", 3.0, "train"),
    failure=Problem(FailReason.EXIT_CODE, "it said 42"),
    stalled=Problem(FailReason.CHECKPOINT_UNAVAILABLE, "no answer"),
    notice=Problem(FailReason.SPLIT_WORLD, "2 process groups of 4 ranks"),
    process_groups=(ProcessGroup(4, 4, (0,), "train.py"), ProcessGroup(4, 3, (1,), "train.py")),
    incidents=(
        replace(
            an_incident(),
            steps_lost=1,
            recovery_milliseconds=RecoveryTimes(1, 2, 3, 4),
            exit=ProcessExit(1, 9, last_lines=("a", "b")),
        ),
    ),
)


def test_what_a_coordinator_of_ours_reports_is_taken_as_it_is() -> None:
    assert bounded(FULL, slots=1) == FULL


def test_texts_are_truncated_to_what_the_definition_allows() -> None:
    long = replace(FULL, why="w" * 10_000, launcher="l" * 10_000)
    taken = bounded(long, slots=1)
    assert (len(taken.why), len(taken.launcher)) == (LONGEST_TEXT, LONGEST_TEXT)


def test_numbers_that_are_only_shown_are_no_reason_to_refuse_a_report() -> None:
    """`job.report(total_steps=-1)` means in many scripts that they never end."""
    report = replace(
        with_incident(steps_lost=-5, recovery_milliseconds=RecoveryTimes(first_step=-1)),
        progress=Progress(3, -1, "", 0.0, ""),
    )
    taken = bounded(report, slots=1)
    assert (taken.progress.total_steps, taken.incidents[1].steps_lost) == (-1, 0)
    assert taken.incidents[1].recovery_milliseconds.first_step == 0


def with_incident(**fields: Any) -> JobReport:
    return replace(REPORT, incidents=(an_incident(), an_incident(n=2, **fields)))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            replace(REPORT, slots={str(n): SlotReport(1, "u") for n in range(3)}),
            "slots has 3 entries, at most 2",
        ),
        (
            replace(REPORT, replacement_requests=(ReplacementRequest(0, 1, Cause.ERROR, ""),) * 3),
            "replacement_requests has 3 entries, at most 2",
        ),
        (replace(REPORT, incidents=(an_incident(),) * 11), "incidents has 11 entries, at most 10"),
        (replace(REPORT, lineage=REPORT.lineage * 11), "lineage has 11 entries, at most 10"),
        (replace(FULL, process_groups=FULL.process_groups * 6), "process_groups has 12 entries, at most 10"),
        (
            replace(REPORT, process_groups=(ProcessGroup(1, 1, tuple(range(17)), "train.py"),)),
            r"process_groups\[0\].slots has 17 entries, at most 16",
        ),
        (
            with_incident(exit=ProcessExit(1, None, last_lines=("",) * 21)),
            r"incidents\[1\].exit.last_lines has 21",
        ),
        (
            replace(REPORT, incidents=(replace(an_incident(), id="1" * 65),)),
            r"incidents\[0\].id has 65 characters",
        ),
        (replace(REPORT, slots={"0": SlotReport(HUGE, "u")}), f"slots.0.incarnation is {HUGE}, 0 to"),
        (replace(REPORT, slots={"0": SlotReport(1, "u" * 65)}), "slots.0.pod_uid has 65 characters"),
        (replace(REPORT, newer_term=HIGHEST_COUNT + 1), "newer_term is 2147483648, 0 to 2147483647"),
        (replace(REPORT, world_id=WorldId(1, 0, HUGE)), "world_id.n is"),
        (replace(REPORT, term=-1), "term is -1, 0 to"),
    ],
)
def test_what_it_cannot_mean_is_refused_by_the_name_of_the_field(report: JobReport, expected: str) -> None:
    with pytest.raises(OutOfBounds, match=expected):
        bounded(report, slots=2)


MALFORMED: dict[type, list[Any]] = {
    int: [-1, 0, 3, HIGHEST_COUNT, HIGHEST_COUNT + 1, HUGE, -HUGE - 1],
    str: ["", "1.0.9", "9.9.9", f"{'9' * 60}.0.0", "x" * 64, "\0", "\udce9", "\U0001f600" * 5_000],
    float: [-1.0, 1e-300, 1.5e308, -1.5e308],
}


def places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in a message: its holder, and its name there."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for name, value in tuple(items):
        yield plain, name
        yield from places(value)


@st.composite
def hostile(draw: st.DrawFn, honest: JobReport) -> bytes:
    """As it may come over the network: an honest one, in which some things are others of their kind."""
    plain = codec.to_plain(honest)
    for holder, name in draw(st.lists(st.sampled_from(list(places(plain))), min_size=1, max_size=8)):
        value = holder[name]
        if isinstance(value, list):
            holder[name] = value * draw(st.sampled_from([2, 5, 50]))
        elif type(value) in MALFORMED:
            holder[name] = draw(st.sampled_from(MALFORMED[type(value)]))
    return json.dumps(plain).encode()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.just(a_running_job()) | plausible_scenes(), st.just(FULL) | reports, st.data())
def test_whatever_is_reported_there_is_an_answer_that_can_be_written(
    seen: Scene, honest: JobReport, data: st.DataObject
) -> None:
    honest = replace(honest, job_uid=UID, term=seen.status.coordinator.term)
    try:
        report = bounded(codec.decode(JobReport, data.draw(hostile(honest))), slots=3)
    except (codec.DecodeError, OutOfBounds):
        return
    seen = seen.but(report=report)
    every_observation_has_an_answer_and_a_reason(seen)
    what_is_written_can_be_written_and_is_read_back_the_same(seen)
    deciding_again_about_what_was_saved_comes_to_rest(seen)
    assert len(orjson.dumps(decide(seen).status.to_json())) < 300_000
