"""Checkpoints in a folder that others can write to, too: a job resumes from a signed one.

Files are written by the agent's own code, or changed as an attacker without a key could.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.agent.life import a_plan
from torch.distributed.checkpoint.metadata import Metadata

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.agent.checkpoints import Claimed
from ropeteam_trainer.checkpoint.agreement import Agreement
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import JournalEntry, key_of
from ropeteam_trainer.checkpoint.decisions.manifest import (
    JOURNAL,
    MANIFEST,
    METADATA,
    RUNS,
    STATE,
    Manifest,
    folder,
    ref_text,
)
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound, CheckpointUnavailable, Choice
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume, Trust, WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.seals import Keys
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.world import World

OURS: Keys = (seals.folder_key(b"operator", "ours"),)
THEIRS: Keys = (seals.folder_key(b"operator", "theirs"),)
AT = WorldId(1, 0, 1)
LAST = (1 << 63) - 1
"""Of all steps, and of all worlds."""


def settings(directory: Path, run: str) -> WorkerConfig:
    return WorkerConfig("job", "n", run, 1, 2, 2, "h:1", checkpoint=CheckpointConfig(str(directory)))


def files(place: Path, content: str) -> tuple[ShardFile, ...]:
    """Of a model without tensors."""
    place.mkdir(parents=True, exist_ok=True)
    (place / METADATA).write_bytes(pickle.dumps(Metadata({}, None, {})))
    state = {"data": None, "others": {"said": content}, "models": {}, "optimizers": {}}
    torch.save(state, place / STATE)
    return tuple(
        ShardFile(name, len(made := (place / name).read_bytes()), hashlib.sha256(made).hexdigest())
        for name in (METADATA, STATE)
    )


def saved(directory: Path, *steps: int, keys: Keys = OURS, run: str = "former") -> list[CheckpointRef]:
    """By a world of that run; newest first."""
    held = checkpoints.claim(settings(directory, run), "pod", a_plan(1), keys).held
    line: list[CheckpointRef] = []
    for step in steps:
        ref = CheckpointRef(step, AT, run=run)
        grant = Grant(ref, 4, files(directory / folder(ref), f"step {step}"), line[0] if line else None)
        line.insert(0, checkpoints.write_manifest(settings(directory, run), held, grant, keys))
    return line


def forged(
    directory: Path, step: int, keys: Keys = (), run: str = "former", at: WorldId = AT, **changes: Any
) -> CheckpointRef:
    """Right hashes, the job's name."""
    ref = CheckpointRef(step, at, run=run)
    made = Manifest(step, at, 4, "job", run, files(directory / folder(ref), "forged"), None)
    text = replace(made, **changes).to_bytes(keys)
    (directory / folder(ref) / MANIFEST).write_bytes(text)
    return made.ref_as(text)


def choose(directory: Path, *restore: CheckpointRef, keys: Keys = OURS, **changes: Any) -> Choice:
    """Checkpoint that rank 0 of a new job, of the same name, resumes from."""
    file = directory / "keys"
    file.write_text(seals.keys_text(keys))
    config, texts = CheckpointConfig(str(directory)), tuple(map(ref_text, restore))
    plan = RankPlan(
        "1.0.2", texts, bool(texts), config, Resume.LATEST, None, "job", "new", keys=str(file) if keys else ""
    )
    plan = replace(plan, **changes)
    return Agreement(plan, World(0, 1, torch.device("cpu")), directory, lambda: None).choose()


def claimed(directory: Path, *named: CheckpointRef, keys: Keys = OURS) -> Claimed:
    """By the next world of the run, whose job's status names these."""
    return checkpoints.claim(settings(directory, "former"), "another", a_plan(2, restore=named), keys)


@pytest.mark.parametrize("keys", [(), THEIRS], ids=["unsigned", "of another folder"])
def test_a_new_job_resumes_from_the_signed_one_and_names_the_fault_of_the_newer_one(
    tmp_path: Path, keys: Keys
):
    (signed_ref,) = saved(tmp_path, 10)
    forged(tmp_path, 1000, keys)
    choice = choose(tmp_path)
    assert choice.ref == signed_ref
    assert "checkpoint run-former/step-1000/1.0.1 is not used: not signed" in choice.skipped[0]
    assert "spec.resume.trust Any would accept it" in choice.skipped[0]


def test_a_signed_manifest_that_was_altered_is_not_used(tmp_path: Path):
    older, _ = reversed(saved(tmp_path, 10, 20))
    path = tmp_path / "run-former/step-20/1.0.1" / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"world_size":4', b'"world_size":5'))
    assert choose(tmp_path).ref == older


def test_a_signed_one_elsewhere_is_not_used(tmp_path: Path):
    """A manifest names its step and its world."""
    (signed_ref,) = saved(tmp_path, 10)
    shutil.copytree(tmp_path / folder(signed_ref), tmp_path / "run-former/step-1000/1.0.1")
    assert choose(tmp_path).ref == signed_ref


def test_an_older_one_in_the_folder_of_another_run_is_not_used(tmp_path: Path):
    """A manifest names its run, too. The order of runs is not signed."""
    newest, older = saved(tmp_path, 10, 20)
    shutil.copytree(tmp_path / folder(older), tmp_path / folder(replace(older, run="planted")))
    (tmp_path / RUNS / "999999999.planted").touch()
    choice = choose(tmp_path)
    assert choice.ref == newest
    assert "its manifest belongs to the job with UID 'former'" in choice.skipped[0]


def test_what_status_names_by_its_hash_may_lie_in_the_folder_of_another_run(tmp_path: Path):
    """Status of an earlier release names no run: the first copy is as good."""
    (signed_ref,) = saved(tmp_path, 10)
    shutil.copytree(tmp_path / folder(signed_ref), tmp_path / folder(replace(signed_ref, run="a-copy")))
    choice = choose(tmp_path, replace(signed_ref, run=""))
    assert choice.ref is not None
    assert (choice.ref, choice.ref.run) == (signed_ref, "a-copy")


def test_another_jobs_of_that_volume_and_path_is_not_used(tmp_path: Path):
    (signed_ref,) = saved(tmp_path, 10)
    forged(tmp_path, 1000, OURS, job="another")
    assert choose(tmp_path).ref == signed_ref


_SIGNATURE = b',"signature":"'
FORGERIES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "none": lambda plain, _: plain,
    "empty": lambda plain, _: plain[:-1] + _SIGNATURE + b'"}',
    "of another manifest": lambda plain, signed: plain[:-1] + signed[signed.rindex(_SIGNATURE) :],
    "of an entry of the journal": lambda plain, _: seals.signed(JOURNAL, plain, OURS),
    "of the journal's key": lambda plain, _: seals.signed(MANIFEST, plain, seals.run_keys(OURS, "former")),
    "before other words": lambda plain, signed: signed[:-1] + b"," + plain[1:],
    "in a field": lambda plain, signed: plain[:-1] + b',"x":' + signed + b"}",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_no_signature_but_its_own_makes_one_the_newest(
    forge: Callable[[bytes, bytes], bytes], tmp_path: Path
):
    (signed_ref,) = saved(tmp_path, 10)
    path = tmp_path / folder(forged(tmp_path, LAST, at=WorldId(LAST, LAST, LAST))) / MANIFEST
    path.write_bytes(forge(path.read_bytes(), (tmp_path / folder(signed_ref) / MANIFEST).read_bytes()))
    assert codec.decode(Manifest, path.read_bytes()).step == LAST
    choice = choose(tmp_path)
    assert choice.ref == signed_ref
    assert "not signed with a key" in choice.skipped[0]


def test_unsigned_ones_of_an_earlier_release_are_never_silently_left_for_step_0(tmp_path: Path):
    newest = saved(tmp_path, 10, 20, keys=())[0]
    with pytest.raises(CheckpointNotFound) as error:
        choose(tmp_path)
    begin = str(error.value)[:250]  # what a person sees in the job's condition is cut
    assert "run-former/step-20/1.0.1 is not signed" in begin
    assert "spec.resume.trust Any" in begin
    assert "spec.resume.policy Never" in begin
    assert choose(tmp_path, trust=Trust.ANY).ref == newest
    assert choose(tmp_path, resume=Resume.NEVER).ref is None


def test_a_requested_step_has_to_be_signed_too(tmp_path: Path):
    saved(tmp_path, 10, keys=())
    with pytest.raises(CheckpointNotFound, match=r"spec\.resume\.trust Any"):
        choose(tmp_path, resume=Resume.STEP, resume_step=10)
    assert choose(tmp_path, resume=Resume.STEP, resume_step=10, trust=Trust.ANY).ref


def test_what_status_names_by_its_hash_needs_no_signature(tmp_path: Path):
    """A job that was saved by pods of an earlier release, and resumes under this one."""
    (named,) = saved(tmp_path, 10, keys=())
    assert claimed(tmp_path, named).restore == (named,)
    assert choose(tmp_path, named).ref == named


def test_a_job_without_keys_takes_what_it_took_before(tmp_path: Path):
    """A job whose Secret is of an earlier release, or without an operator."""
    first, second = reversed(saved(tmp_path, 10, 20))
    assert choose(tmp_path, keys=()).ref == second
    assert choose(tmp_path, keys=(), resume=Resume.STEP, resume_step=10).ref == first


def test_either_of_two_keys_of_an_operator_is_accepted(tmp_path: Path):
    (old,) = saved(tmp_path, 10, keys=THEIRS)
    assert choose(tmp_path, keys=OURS + THEIRS).ref == old
    (new,) = saved(tmp_path, 20, keys=OURS + THEIRS, run="later")
    assert choose(tmp_path, keys=OURS).ref == new


def named(folder: Path, *keys: str) -> tuple[str, Keys]:
    """A Secret that jobs name: its file, and what is in it."""
    folder.mkdir(exist_ok=True)
    (folder / seals.FILE).write_text("\n".join(keys))
    return str(folder / seals.FILE), seals.read_secret_keys(str(folder / seals.FILE))


def test_what_a_named_key_has_signed_is_known_whatever_the_folders_own_keys_are(tmp_path: Path):
    """The claim has another name now, or it is another namespace, cluster or operator."""
    file, keys = named(tmp_path / "secret", "aa" * 32)
    (signed_ref,) = saved(tmp_path, 10, keys=keys + THEIRS)
    config = CheckpointConfig(str(tmp_path), signing=file)
    assert choose(tmp_path, checkpoint=config).ref == signed_ref
    assert choose(tmp_path, checkpoint=config, keys=()).ref == signed_ref
    other, _ = named(tmp_path / "other", "bb" * 32)
    for config in (CheckpointConfig(str(tmp_path), signing=other), CheckpointConfig(str(tmp_path))):
        with pytest.raises(CheckpointNotFound, match=r"spec\.checkpoint\.signing"):
            choose(tmp_path, checkpoint=config)


def test_a_named_key_can_be_changed(tmp_path: Path):
    _, old = named(tmp_path / "secret", "aa" * 32)
    (signed_ref,) = saved(tmp_path, 10, keys=old)
    file, both = named(tmp_path / "secret", "bb" * 32, "aa" * 32)
    assert choose(tmp_path, checkpoint=CheckpointConfig(str(tmp_path), signing=file)).ref == signed_ref
    (newer,) = saved(tmp_path, 20, keys=both, run="later")
    file, _ = named(tmp_path / "secret", "bb" * 32)
    assert choose(tmp_path, checkpoint=CheckpointConfig(str(tmp_path), signing=file)).ref == newer


def test_a_job_that_names_a_secret_without_keys_of_a_folder_takes_nothing_unsigned(tmp_path: Path):
    """An earlier release made its own Secret, or there is no operator."""
    file, _ = named(tmp_path / "secret", "aa" * 32)
    saved(tmp_path, 10, keys=())
    with pytest.raises(CheckpointNotFound, match=r"spec\.resume\.trust Any"):
        choose(tmp_path, checkpoint=CheckpointConfig(str(tmp_path), signing=file), keys=())


def test_a_job_that_begins_to_name_a_secret_goes_on_from_what_it_saved_before(tmp_path: Path):
    file, keys = named(tmp_path / "secret", "aa" * 32)
    (signed_ref,) = saved(tmp_path, 10)
    assert choose(tmp_path, checkpoint=CheckpointConfig(str(tmp_path), signing=file)).ref == signed_ref
    assert claimed(tmp_path, keys=keys + OURS).restore == (signed_ref,)


@pytest.mark.parametrize("entry", ["secret", "", None])
def test_a_secret_that_is_spoilt_while_a_job_runs_ends_none_that_status_vouches_for(
    tmp_path: Path, entry: str | None
):
    file, keys = named(tmp_path / "secret", "aa" * 32)
    (signed_ref,) = saved(tmp_path, 10, keys=keys + OURS)
    Path(file).unlink() if entry is None else Path(file).write_text(entry)
    config = CheckpointConfig(str(tmp_path), signing=file)
    assert choose(tmp_path, signed_ref, checkpoint=config).ref == signed_ref
    with pytest.raises(CheckpointUnavailable, match="entry checkpoint-keys"):
        choose(tmp_path, checkpoint=config)


def write_entry(directory: Path, entry: JournalEntry, keys: Keys = ()) -> None:
    text = entry.to_text(seals.run_keys(keys, "former"))
    (directory / f"run-former/journal/{key_of(entry.ref)}.commit").write_text(text)


def test_the_next_world_goes_on_from_what_descends_by_signed_entries(tmp_path: Path):
    newest, named = saved(tmp_path, 10, 20)
    assert claimed(tmp_path, named).restore == (newest, named)


def test_an_entry_that_somebody_wrote_leads_nowhere(tmp_path: Path):
    newest, named = saved(tmp_path, 10, 20)
    write_entry(tmp_path, JournalEntry(forged(tmp_path, 1000), newest))
    assert claimed(tmp_path, named).restore == (newest, named)


def test_a_rewritten_entry_has_no_ancestors(tmp_path: Path):
    """Else what it names would come into status, by its hash."""
    newest, named = saved(tmp_path, 10, 20)
    planted = forged(tmp_path, 15)
    write_entry(tmp_path, JournalEntry(planted, named))
    write_entry(tmp_path, JournalEntry(newest, planted))
    found = claimed(tmp_path, newest, named)
    assert found.restore == (newest, named)
    assert found.ancestors == ((), ())


@pytest.mark.parametrize("left", [0, 40, -1])
def test_a_truncated_entry_is_none(tmp_path: Path, left: int):
    newest, named, _ = saved(tmp_path, 5, 10, 20)
    path = tmp_path / "run-former/journal" / f"{key_of(newest)}.commit"
    path.write_bytes(path.read_bytes()[:left])
    assert claimed(tmp_path, named).restore == (named,)


def test_a_copied_entry_makes_no_other_place_committed(tmp_path: Path):
    newest, named = saved(tmp_path, 10, 20)
    path = tmp_path / "run-former/journal" / f"{key_of(newest)}.commit"
    shutil.copy(path, path.with_name(f"{key_of(forged(tmp_path, 1000))}.commit"))
    assert claimed(tmp_path, named).restore == (newest, named)


def test_an_entry_that_is_its_own_parent_leads_nowhere(tmp_path: Path):
    """Where nothing is signed it would be trusted."""
    (named,) = saved(tmp_path, 10, keys=())
    planted = forged(tmp_path, 1000)
    write_entry(tmp_path, JournalEntry(planted, planted))
    assert claimed(tmp_path, named, keys=()).restore == (named,)


def test_an_entry_of_another_run_is_none_of_ours(tmp_path: Path):
    saved(tmp_path, 10)
    (other,) = saved(tmp_path, 500, run="other")
    name = f"{key_of(other)}.commit"
    shutil.copy(tmp_path / "run-other/journal" / name, tmp_path / "run-former/journal" / name)
    found = claimed(tmp_path).restore
    assert [(ref.step, bool(ref.digest)) for ref in found] == [(500, False), (10, True)]


def test_a_run_with_unsigned_entries_alone_does_not_begin_anew(tmp_path: Path):
    """A status that names nothing: a person has to confirm that they are valid."""
    (lost,) = saved(tmp_path, 10, keys=())
    found = claimed(tmp_path).restore
    assert found == (replace(lost, digest=""),)
    with pytest.raises(CheckpointNotFound, match=r"spec\.resume\.trust Any"):
        choose(tmp_path, *found)


def test_entries_are_read_by_who_knows_of_no_signatures(tmp_path: Path):
    """An agent of an earlier release, after a rollback."""
    newest, named = saved(tmp_path, 10, 20)
    assert claimed(tmp_path, named, keys=()).restore == (newest, named)
    text = (tmp_path / "run-former/journal" / f"{key_of(newest)}.commit").read_text()
    assert codec.decode(JournalEntry, text) == JournalEntry(newest, named)
    assert journal.JournalEntry.parse(text, ()) == JournalEntry(newest, named)


def test_what_status_names_comes_first_whoever_wrote_its_entry(tmp_path: Path):
    """Pods of an earlier release resumed the run, after a rollback."""
    (older,) = saved(tmp_path, 10)
    newer = forged(tmp_path, 20, job="job", parent=older)
    write_entry(tmp_path, JournalEntry(newer, older))
    assert claimed(tmp_path, newer, older).restore == (newer, older)
