"""Whenever the power goes: what was committed is there whole, and nothing torn is taken for a checkpoint.

Exhaustive: every prefix of three checkpoints and two prunings, without any three of what was not synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.recording import Named, Synced
from tests.crash.restoring import STEPS, Story, alone, faults, under_an_agent

STORIES = {"under an agent": under_an_agent, "alone": alone}
OTHER_MACHINES = {"folders.sync for dcp.write_data", "folders.sync for dcp.finish"}
"""Needed where a rank writes on another machine than the one that writes the manifest, and syncs again."""
OTHER_WORLDS = {f"folders.sync for checkpoints.{each}" for each in ("_do", "_rename_if_exists")}
"""A claim, and the mark on what is pruned, are for worlds that do not know of each other; here is one."""


@pytest.fixture(scope="module", params=list(STORIES.values()), ids=list(STORIES))
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    note: Callable[[Path], Story] = request.param
    return note(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuts are played, so nothing here has to wait for the disk of this machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_power_loss_loses_nothing_that_was_committed(story: Story, tmp_path: Path) -> None:
    assert list(story.expected) == list(STEPS)
    assert any(isinstance(each, Named) and None in dict(each.changes).values() for each in story.operations)
    assert next(faults(story, tmp_path, most=3), "") == ""


def needless(story: Story, scratch: Path) -> set[str]:
    """Syncs that could all be left out, as far as a power cut of one machine can show."""
    found = set()
    for caller in {each.caller for each in story.operations if isinstance(each, Synced)}:
        retained = [
            each for each in story.operations if not (isinstance(each, Synced) and each.caller == caller)
        ]
        if not next(faults(story._replace(operations=retained), scratch / caller, most=1), ""):
            found.add(caller)
    return found


def test_this_sees_when_a_sync_is_left_out(story: Story, tmp_path: Path) -> None:
    assert needless(story, tmp_path) <= OTHER_MACHINES | OTHER_WORLDS
