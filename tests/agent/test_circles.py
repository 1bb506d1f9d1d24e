"""Entries of a journal that somebody has written: those that lead round in circles end, and those that say
that they are another are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.life import a_plan

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.checkpoint.decisions.journal import JournalEntry, key_of
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, Timeouts, WorkerConfig
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

AT = WorldId(0, 0, 1)
THREE, FIVE, NAMED = (CheckpointRef(step, AT, letter * 64) for step, letter in ((3, "3"), (5, "5"), (9, "9")))

pytestmark = pytest.mark.timeout(120)  # they would continue for ever


def found(
    directory: Path, entries: dict[CheckpointRef, JournalEntry], *named: CheckpointRef
) -> checkpoints.Claimed:
    """Checkpoint that a world continues from when its job's status names these."""
    config = WorkerConfig(
        "j", "n", "u", 1, 2, 2, "c:1", Timeouts(), checkpoint=CheckpointConfig(str(directory))
    )
    journal = directory / "run-u" / "journal"
    journal.mkdir(parents=True)
    for place, entry in entries.items():
        (journal / f"{key_of(place)}.commit").write_bytes(codec.encode(entry))
    return checkpoints.claim(config, "pod", a_plan(restore=named))


def test_an_entry_that_is_its_own_parent_leads_nowhere(tmp_path: Path):
    claimed = found(tmp_path, {FIVE: JournalEntry(FIVE, FIVE)}, NAMED)
    assert claimed.restore == (NAMED,)


def test_two_entries_that_are_each_others_parents_lead_nowhere(tmp_path: Path):
    claimed = found(tmp_path, {FIVE: JournalEntry(FIVE, THREE), THREE: JournalEntry(THREE, FIVE)}, NAMED)
    assert claimed.restore == (NAMED,)


def test_an_entry_that_names_another_is_ignored(tmp_path: Path):
    later = CheckpointRef(9, AT, "5" * 64)
    claimed = found(tmp_path, {FIVE: JournalEntry(later, FIVE), THREE: JournalEntry(THREE, None)})
    assert claimed.restore == (THREE,)
    assert claimed.ancestors == ((),)
