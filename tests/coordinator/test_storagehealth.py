"""The kubelet's liveness probe: the loop turns, and the state folder answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.coordinator.reports import SIGKILL
from lab.waiting import wait_until_async
from tests.coordinator.conftest import ServedCoordinator
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.coordinator.http import Http
from ropeteam_trainer.coordinator.storagehealth import StorageHealth
from ropeteam_trainer.system.http import HttpError, Request

HEALTH = Request("GET", "/healthz", {})


def test_a_folder_that_does_not_answer_for_half_a_minute_is_reported(tmp_path: Path):
    now, folder = [0.0], tmp_path / "state"
    health = StorageHealth(folder, lambda: now[0])
    assert health.problem() == ""
    now[0] = 31.0
    hangs = f"the state folder {folder} has not been writable for 31 s (no error: a write hangs)"
    assert health.problem() == hangs
    health.touch()
    assert health.problem().endswith(f"No such file or directory: '{folder}/alive'")
    folder.mkdir()
    health.touch()
    assert health.problem() == ""


async def test_the_folder_is_touched_by_a_thread(tmp_path: Path):
    StorageHealth(tmp_path).start()
    await wait_until_async("the file is touched", lambda: (tmp_path / "alive").exists())


async def test_the_probe_fails_while_storage_does(served: ServedCoordinator):
    assert Http(served.coordinator)._health_answer().status == 200
    with pytest.raises(HttpError, match="it hangs") as refused:
        Http(served.coordinator, lambda: "it hangs")._health_answer()
    assert refused.value.response.status == 503


def test_ranks_that_do_not_end_are_reported_and_get_another_pod():
    film = Timeline().up(step=3)
    film.exits(1, SIGKILL)
    film.applies_orders(1)
    assert film.phase == "Stopping"
    film.ranks(0, RankPhase.RUNNING, 3)
    film.later(59)
    assert not film.report.replacement_requests
    film.later(1)
    assert film.phase == "Stopping"
    assert film.report.why.endswith("those of slots 0 have not ended for 60 s: other pods are requested")
    (request,) = film.report.replacement_requests
    assert (request.slot, request.incarnation) == (0, 1)
    assert request.message == (
        "the ranks of slot 0 were ordered to end, and have not for 60 s: they, or their agent, hang"
    )
    film.replaces(0)
    assert film.phase == "Forming"
