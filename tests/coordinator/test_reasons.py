"""The reason of a decision comes from the branch that decided, once per step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab.coordinator.reports import CLEAN, SIGKILL
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.config import ExitAction, ExitCodeRule
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import ProcessExit
from ropeteam_trainer.coordinator.membership import forming
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState


def _waiting() -> Timeline:
    film = Timeline(boot=1)
    film.desires()
    return film


def _forming() -> Timeline:
    film = Timeline()
    film.desires()
    return film


def _running() -> Timeline:
    return Timeline().up(step=3)


def _draining() -> Timeline:
    film = Timeline(feature_level=2).up(step=3)
    film.desires(drain=True)
    return film


def _stopping() -> Timeline:
    film = _running()
    film.exits(1, SIGKILL)
    return film


def _drained() -> Timeline:
    film = Timeline().up(step=3)
    film.desires(drain=True)
    for slot in (0, 1):
        film.exits(slot, ProcessExit(0, None, killed=True))
    film.applies_orders()
    return film


def _completing() -> Timeline:
    film = _running()
    for slot in (0, 1):
        film.exits(slot, CLEAN)
    return film


def _complete() -> Timeline:
    film = _completing()
    film.applies_orders()
    return film


def _failed() -> Timeline:
    film = Timeline(exit_codes=(ExitCodeRule((42,), ExitAction.FAIL),)).up(step=3)
    film.exits(1, ProcessExit(42, None))
    return film


REASONS = {
    WorldPhase.WAITING: (
        _waiting,
        "waiting for the agents to report what they run, so that a world can be adopted",
    ),
    WorldPhase.FORMING: (_forming, "waiting for the agent of slot 0 to register"),
    WorldPhase.RUNNING: (_running, "world 1.0.1 runs with 2 ranks"),
    WorldPhase.DRAINING: (_draining, "the job is to be drained; world 1.0.1 waits for its ranks to pause"),
    WorldPhase.STOPPING: (
        _stopping,
        "ending the ranks of world 1.0.1, because Signal: rank 1 was killed by SIGKILL",
    ),
    WorldPhase.DRAINED: (_drained, "drained: all ranks have ended, as requested"),
    WorldPhase.COMPLETING: (_completing, "all ranks are done; waiting for every agent to acknowledge it"),
    WorldPhase.COMPLETE: (_complete, "complete: all ranks are done, and every agent has acknowledged it"),
    WorldPhase.FAILED: (
        _failed,
        "failed: ExitCodeRule: rank 1 exited 42, which spec.recovery.exitCodes defines as final",
    ),
}


@pytest.mark.parametrize("phase", WorldPhase)
def test_each_phase_gives_its_reason(phase: WorldPhase):
    lead_to, reason = REASONS[phase]
    film = lead_to()
    assert (film.state.phase, film.state.why) == (phase, reason)


def test_the_reason_names_a_new_attempt_that_ends_the_ranks():
    film = _running()
    film.desires(attempt=2)
    film.exits(1, SIGKILL)
    assert film.state.why == "ending the ranks of world 1.0.1, because a new attempt replaces all pods"


def test_the_reason_names_a_drain_that_ended_the_ranks():
    film = _draining()
    film.later(film.config.timeouts.drain)
    assert film.state.why == "ending the ranks of world 1.0.1, because it was drained"


def test_an_obstacle_to_the_next_world_is_determined_once_per_step(monkeypatch: pytest.MonkeyPatch):
    film, found = _forming(), []
    determine: Callable[[CoordinatorState, float], str] = forming.obstacle

    def note(state: CoordinatorState, now: float) -> str:
        found.append(determine(state, now))
        return found[-1]

    monkeypatch.setattr(forming, "obstacle", note)
    film.reports(0)
    assert film.report.why == "waiting for the agent of slot 1 to register"
    assert film.report.why == f"waiting for {found[0]}"
    assert len(found) == 1


def test_a_report_after_the_step_has_the_reason_of_the_step():
    """The lease of slot 1 has expired since; the next step decides that, and says so."""
    film = _running()
    film.now += 2 * film.config.timeouts.lost
    assert film.report.why == "world 1.0.1 runs with 2 ranks"
