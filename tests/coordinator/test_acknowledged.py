"""Checkpoints that the job's status names stay on disk: a new coordinator receives nothing else."""

from __future__ import annotations

from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.world import CheckpointRef, WorldId


def commit(film: Timeline, *steps: int) -> None:
    for step in steps:
        film.reaches(step)
        film.saves(step)
        film.applies_orders()


def retained(film: Timeline) -> list[int]:
    return [ref.step for ref in film.sent_orders(0).lineage]


def saves_status(film: Timeline) -> None:
    """The operator saves what was reported, and acknowledges it."""
    film.desires(lineage=film.report.lineage)


def test_what_the_operator_has_saved_is_retained_while_it_is_away():
    film = Timeline(feature_level=2).up()
    commit(film, 10, 20, 30)
    saves_status(film)
    commit(film, 40, 50, 60, 70, 80)
    assert retained(film) == [80, 70, 60, 30, 20, 10]


def test_checkpoints_that_the_operator_may_be_saving_are_retained():
    film = Timeline(feature_level=2).up()
    commit(film, 10, 20, 30)
    saves_status(film)
    commit(film, 40)
    film.desires()  # it receives 40; no message shows whether it could save that
    commit(film, 50, 60, 70, 80)
    assert retained(film) == [80, 70, 60, 30, 20, 10, 40]


def test_what_is_no_longer_named_may_be_pruned():
    film = Timeline(feature_level=2).up()
    commit(film, 10, 20, 30)
    saves_status(film)
    commit(film, 40, 50, 60, 70)
    for _ in range(3):
        saves_status(film)
    assert retained(film) == [70, 60, 50]


def test_one_checkpoint_is_retained_until_the_next_one_is_saved_in_status():
    film = Timeline(feature_level=2, keep=1).up()
    commit(film, 10)
    saves_status(film)
    commit(film, 20)
    assert retained(film) == [20, 10]


def test_a_restarted_coordinator_prunes_nothing_before_the_operator_has_spoken():
    film = Timeline(feature_level=2).up()
    commit(film, 10, 20, 30)
    saves_status(film)
    commit(film, 40, 50, 60, 70)
    film.reboots()
    for slot in (0, 1):
        film.reports(slot)
    assert film.orders(0) is None
    film.desires()
    assert film.phase == "Running"
    assert set(retained(film)) >= {70, 30, 20, 10}


def test_a_world_that_has_no_lineage_yet_prunes_nothing():
    film = Timeline(feature_level=2).up()
    film.desires(lineage=(CheckpointRef(40, film.world_id, "x"),))
    assert retained(film) == []


def test_a_coordinator_whose_folder_was_claimed_by_a_newer_world_falls_silent_and_reports_it():
    film = Timeline(feature_level=2).up(step=10)
    film.reports(0, superseded=WorldId(5, 0, 1))
    assert film.orders(1) is None
    assert film.report.why == (
        "sending no orders: a world of term 5 has claimed the checkpoint folder, and this coordinator is of "
        "term 1; the operator replaces it"
    )
    film.reports(0, superseded=None)
    assert film.report.newer_term == 5
