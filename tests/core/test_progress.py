"""Progress is projected: with whatever else changes, by itself every 30 seconds; checkpoints at once. Counts
and words about a start every 5 seconds.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.builders import (
    Change,
    Scene,
    a_running_job,
    evicted,
    reporting,
    saved,
    seconds,
    silent,
    unreachable,
    written,
)

from ropeteam.core.decide import decide
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import Progress
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

CHECKPOINT = {"volume": {"nfs": {"server": "s", "path": "/"}}, "path": "run/1"}


def at(step: int, total: int | None = 1000, **fields: object) -> Change:
    return reporting(progress=Progress(step=step, total_steps=total, **fields))  # type: ignore[arg-type]


def test_the_first_step_is_shown_at_once() -> None:
    assert a_running_job().status.progress is None
    progress = decide(a_running_job().after(at(1, loss="4.51", samples_per_second=31.25))).status.progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.percent) == (1, 1000, 0)
    assert (progress.loss, progress.samples_per_second) == ("4.51", "31.2")


def test_later_steps_are_written_every_30_seconds() -> None:
    seen = a_running_job().after(at(1), written, seconds(29), at(500))
    assert decide(seen).status == seen.status
    later = decide(seen.after(seconds(1))).status.progress
    assert later is not None
    assert (later.step, later.percent, later.summary) == (500, 50, "50%")


def test_progress_goes_along_with_any_other_change() -> None:
    progress = decide(a_running_job().after(at(1), written, seconds(9), at(10), evicted(0))).status.progress
    assert progress is not None
    assert progress.step == 10


def test_an_end_that_is_too_far_away_for_a_number_is_not_shown() -> None:
    seen = a_running_job().after(at(1, total=2**63 - 1), written, seconds(3600), at(2, total=2**63 - 1))
    progress = decide(seen).status.progress
    assert progress is not None
    assert (progress.total_steps, progress.eta_seconds, progress.eta) == (2**63 - 1, None, "")


def test_progress_that_has_stopped_is_not_written_again() -> None:
    seen = a_running_job().after(at(1), written, seconds(30), at(31), written, seconds(300))
    assert decide(seen).status == seen.status


def test_a_clock_that_is_set_back_does_not_hold_progress_up() -> None:
    seen = a_running_job().after(at(1), written, seconds(-3600), at(500))
    progress = decide(seen).status.progress
    assert progress is not None
    assert progress.step == 500


def test_the_time_left_follows_the_rate() -> None:
    seen = a_running_job().after(at(100), written, seconds(30), at(400), written)
    assert seen.status.progress is not None
    assert (seen.status.progress.eta_seconds, seen.status.progress.eta) == (60, "1m")
    soon = decide(seen.after(seconds(2), at(401), evicted(0))).status.progress
    assert soon is not None
    assert soon.eta_seconds == 60, "two seconds say nothing about the pace"


def test_without_a_total_nothing_is_promised() -> None:
    seen = a_running_job().after(at(100, None), written, seconds(30), at(400, None), written)
    assert seen.status.progress is not None
    assert (seen.status.progress.percent, seen.status.progress.eta_seconds) == (None, None)


def test_a_coordinator_that_knows_no_step_yet_erases_none() -> None:
    seen = a_running_job().after(at(7), written, seconds(60), at(0), evicted(0))
    progress = decide(seen).status.progress
    assert progress is not None
    assert progress.step == 7


def wrote(ago: float) -> Change:
    return lambda scene: scene.but(written_at=scene.now - timedelta(seconds=ago))


def starting() -> Scene:
    """All but the agent of slot 3 have come."""
    forming = reporting(phase=WorldPhase.FORMING, why="waits for two agents")
    return a_running_job().after(forming, silent(3), silent(2), written)


def test_counts_and_messages_about_a_start_are_written_every_5_seconds() -> None:
    seen = starting().after(reporting(why="waits for one agent, of slot 3"))
    assert decide(seen).status != seen.status, "nobody knows when the last write was"
    held = decide(seen.after(wrote(4.5)))
    assert (held.status, held.requeue_after_seconds) == (seen.status, 0.5)
    assert decide(seen.after(wrote(5))).status != seen.status
    assert decide(seen.after(wrote(-3600))).status != seen.status, "the clock was set back"


@pytest.mark.parametrize(
    "change", [reporting(phase=WorldPhase.RUNNING), evicted(0), reporting(feature_level=2), unreachable]
)
def test_whatever_else_changes_is_written_at_once(change: Change) -> None:
    seen = starting().after(wrote(0), change)
    assert decide(seen).status != seen.status


def lineage(*steps: int, run: str = "uid-1") -> Change:
    refs = tuple(CheckpointRef(step, WorldId(1, 0, 1), f"sha-{step}", run) for step in steps)
    return reporting(lineage=refs)


def test_a_checkpoint_is_saved_at_once_and_sent_to_every_coordinator() -> None:
    seen = a_running_job(checkpoint=CHECKPOINT).after(lineage(20, 10), reporting(checkpoint_unix_ms=1))
    decision = decide(seen)
    checkpoint = decision.status.checkpoint
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.location) == (20, "/checkpoints/run/1/run-uid-1/step-20/1.0.1")
    desired = decide(seen.after(saved(decision))).desired
    assert desired is not None
    assert [ref.step for ref in desired.lineage] == [20, 10]


def test_a_checkpoint_that_an_earlier_release_has_filed_is_shown_where_it_lies() -> None:
    checkpoint = decide(a_running_job(checkpoint=CHECKPOINT).after(lineage(20, run=""))).status.checkpoint
    assert checkpoint is not None
    assert checkpoint.location == "/checkpoints/run/1/step-20/1.0.1"


def test_the_same_checkpoints_are_not_written_again() -> None:
    seen = a_running_job(checkpoint=CHECKPOINT).after(lineage(20, 10), written, seconds(20))
    assert decide(seen).status == seen.status


def test_a_lineage_is_never_forgotten_because_a_coordinator_has_just_booted() -> None:
    seen = a_running_job().after(lineage(20, 10), written)
    for young in (lineage(), seen_waiting):
        checkpoint = decide(seen.after(young)).status.checkpoint
        assert checkpoint is not None
        assert checkpoint.step == 20


seen_waiting = reporting(phase=WorldPhase.WAITING, lineage=(CheckpointRef(10, WorldId(1, 0, 1)),))


def test_a_saved_checkpoint_that_cannot_be_read_is_not_sent() -> None:
    seen = a_running_job().after(lineage(20, 10), written)
    assert seen.status.checkpoint is not None
    first, second = seen.status.checkpoint.lineage
    torn = (first.model_copy(update={"world": "?"}), second)
    checkpoint = seen.status.checkpoint.model_copy(update={"lineage": torn})
    seen = seen.but(status=seen.status.model_copy(update={"checkpoint": checkpoint})).after(
        reporting(lineage=())
    )
    desired = decide(seen).desired
    assert desired is not None
    assert [ref.step for ref in desired.lineage] == [10]
