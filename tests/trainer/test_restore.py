"""Choice of the checkpoint that a world resumes from."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder, ref_text
from ropeteam_trainer.checkpoint.decisions.restore import (
    RIGHT_HASH,
    CheckpointNotFound,
    CheckpointUnavailable,
    Inspection,
    candidates,
    choose,
    files_by_rank,
)
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume, Trust
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

STEPS = range(10, 60, 10)


def manifest(step: int, parent: CheckpointRef | None = None) -> Manifest:
    return Manifest(step, WorldId(1, 0, 1), 3, "job", "", (), parent)


def lineage(steps: range = STEPS) -> list[Manifest]:
    """Oldest first, each the parent of the next."""
    chain: list[Manifest] = []
    for step in steps:
        chain.append(manifest(step, chain[-1].ref if chain else None))
    return chain


CHAIN = lineage()


def plan(
    *restore: CheckpointRef, known: bool = True, resume: Resume = Resume.LATEST, step: int | None = None
) -> RankPlan:
    texts = tuple(ref_text(ref) for ref in restore)
    return RankPlan("1.0.2", texts, known, CheckpointConfig("/checkpoints"), resume, step, "job", "uid")


class Disk:
    """Inspection of each checkpoint of CHAIN, and a list of the inspected ones."""

    def __init__(self, bad: set[int], unreadable: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.bad, self.unreadable, self.looked = bad, unreadable, []  # type: ignore[var-annotated]

    def inspect(self, ref: CheckpointRef) -> Inspection:
        self.looked.append(ref.step)
        if ref.step in self.unreadable:
            return Inspection(None, "it has no manifest")
        found = next(m for m in CHAIN if folder(m.ref) == folder(ref))
        return Inspection(found, "state.pt was altered" if ref.step in self.bad else "")


def test_the_first_candidate_that_verifies_wins() -> None:
    disk = Disk(bad={50})
    choice = choose(plan(CHAIN[4].ref, CHAIN[3].ref), (), disk.inspect)
    assert choice.manifest == CHAIN[3]
    assert choice.skipped == ("checkpoint step-50/1.0.1 is not used: state.pt was altered",)
    assert disk.looked == [50, 40]


def test_parents_come_after_all_candidates() -> None:
    disk = Disk(bad={50, 40, 30})
    choice = choose(plan(CHAIN[4].ref, CHAIN[3].ref), (), disk.inspect)
    assert choice.manifest == CHAIN[1]
    assert disk.looked == [50, 40, 30, 20]


def test_a_granted_checkpoint_that_was_never_written_is_passed_over() -> None:
    granted = CheckpointRef(50, WorldId(1, 0, 1))
    choice = choose(plan(granted, CHAIN[3].ref), (), Disk(bad=set(), unreadable={50}).inspect)
    assert choice.manifest == CHAIN[3]


def test_only_a_granted_checkpoint_and_it_was_never_written_means_a_start_from_nothing() -> None:
    granted = CheckpointRef(10, WorldId(1, 0, 1))
    choice = choose(plan(granted), (), Disk(bad=set(), unreadable={10}).inspect)
    assert choice.manifest is None
    assert len(choice.skipped) == 1


def test_a_committed_checkpoint_is_never_silently_replaced_by_nothing() -> None:
    with pytest.raises(CheckpointNotFound, match=r"step-50.*step-10.*policy Latest resumes"):
        choose(plan(CHAIN[4].ref), (), Disk(bad=set(STEPS)).inspect)


def test_nor_is_one_that_only_the_journal_names() -> None:
    """An entry without a signature has no hash. An agent with keys names committed checkpoints alone."""
    unsigned = replace(plan(replace(CHAIN[4].ref, digest="")), keys="/keys")
    with pytest.raises(CheckpointNotFound, match=r"step-50/1\.0\.1 is not used: state\.pt was altered"):
        choose(unsigned, (), Disk(bad=set(STEPS)).inspect)


def test_a_checkpoint_that_cannot_be_validated_is_not_skipped_for_an_older_one() -> None:
    def inspect(ref: CheckpointRef) -> Inspection:
        return Inspection(None, "stale", unsure=True) if ref.step == 40 else Disk(bad={50}).inspect(ref)

    with pytest.raises(CheckpointUnavailable, match=r"step-40/1\.0\.1 cannot be validated: stale"):
        choose(plan(CHAIN[4].ref, CHAIN[3].ref, CHAIN[2].ref), (), inspect)


def test_latest_takes_the_newest_in_the_folder_and_skips_what_is_torn() -> None:
    found = [m.ref for m in (CHAIN[1], CHAIN[4], CHAIN[2])]
    assert [ref.step for ref in candidates(plan(known=False), found)] == [50, 30, 20]
    assert choose(plan(known=False), found, Disk(bad={50, 40}).inspect).manifest == CHAIN[2]


def test_a_malformed_checkpoint_is_passed_over_for_another_but_not_for_nothing() -> None:
    looks = {50: Inspection(CHAIN[4], f"state.pt {RIGHT_HASH}: it is a list"), 40: Inspection(CHAIN[3])}
    newest = CheckpointRef(50, WorldId(1, 0, 1))
    older = CheckpointRef(40, WorldId(1, 0, 1))

    def inspect(ref: CheckpointRef) -> Inspection:
        return replace(looks[ref.step], manifest=replace(manifest(ref.step)))

    assert choose(plan(known=False), (newest, older), inspect).manifest == manifest(40)
    with pytest.raises(CheckpointNotFound, match=r"no state of ours: it is a list.*delete its folder"):
        choose(plan(known=False), (newest,), inspect)


def of_job(name: str, step: int) -> Inspection:
    return Inspection(replace(manifest(step), job=name), ref=CheckpointRef(step, WorldId(1, 0, 1)))


def test_latest_takes_no_checkpoint_of_another_job_and_names_the_way_to_get_it() -> None:
    looks = {50: of_job("theirs", 50), 40: of_job("job", 40)}
    found = tuple(CheckpointRef(step, WorldId(1, 0, 1)) for step in looks)
    choice = choose(plan(known=False), found, lambda ref: looks[ref.step])
    assert choice.manifest == looks[40].manifest
    assert "is of job 'theirs', and this is job; spec.resume {policy: Step, step: 50}" in choice.skipped[0]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (plan(known=False, resume=Resume.STEP, step=50), "theirs"),
        (plan(CheckpointRef(50, WorldId(1, 0, 1))), "theirs"),
        (plan(known=False), ""),
        (replace(plan(known=False), job=""), "theirs"),
    ],
    ids=["asked for", "named by status", "of no job", "by no job"],
)
def test_another_jobs_checkpoint_is_used_on_explicit_request(wanted: RankPlan, name: str) -> None:
    found = of_job(name, 50)
    assert choose(wanted, (CheckpointRef(50, WorldId(1, 0, 1)),), lambda _: found).manifest == found.manifest


def test_latest_in_an_empty_folder_starts_from_nothing() -> None:
    assert choose(plan(known=False), (), Disk(set()).inspect).manifest is None


def test_never_ignores_what_is_there_but_not_what_this_job_has_committed() -> None:
    found = [m.ref for m in CHAIN]
    assert choose(plan(known=False, resume=Resume.NEVER), found, Disk(set()).inspect).manifest is None
    own = plan(CHAIN[2].ref, resume=Resume.NEVER)
    assert choose(own, found, Disk(set()).inspect).manifest == CHAIN[2]


def test_a_step_is_taken_by_number() -> None:
    found = [m.ref for m in CHAIN]
    chosen = choose(plan(known=False, resume=Resume.STEP, step=30), found, Disk(set()).inspect)
    assert chosen.manifest == CHAIN[2]


@pytest.mark.parametrize(
    ("wanted", "fix"), [(35, r"nearest earlier one \(30\)"), (5, "Choose another"), (None, "Choose another")]
)
def test_a_step_that_is_not_there_is_an_error_with_the_fix(wanted: int | None, fix: str) -> None:
    found = [m.ref for m in CHAIN]
    with pytest.raises(
        CheckpointNotFound,
        match=rf"step {wanted or 0}: the checkpoints in /checkpoints.* are those of steps .*{fix}",
    ):
        candidates(plan(known=False, resume=Resume.STEP, step=wanted), found)


def test_a_step_that_is_damaged_is_an_error_never_another_step() -> None:
    found = [m.ref for m in CHAIN]
    with pytest.raises(CheckpointNotFound, match="no checkpoint can be used"):
        choose(plan(known=False, resume=Resume.STEP, step=30), found, Disk(bad={30}).inspect)


def test_the_message_names_the_folder_only_if_there_is_one() -> None:
    nowhere = RankPlan("1.0.2", (), False, None, Resume.STEP, 7, "job", "uid")
    with pytest.raises(CheckpointNotFound, match="in the checkpoint folder"):
        candidates(nowhere, ())


def test_what_nobody_vouches_for_leads_to_no_parent() -> None:
    """The writer of the unsigned one would vouch for that one, by its hash."""
    keys = replace(plan(known=False), keys="file")
    found = (CheckpointRef(30, WorldId(1, 0, 1)),)
    for bad in (set(), {30}):
        disk = Disk(bad=bad)
        with suppress(CheckpointNotFound):
            choose(keys, found, disk.inspect)
        assert disk.looked == [30]
    anybody = Disk(bad={30})
    assert choose(replace(keys, trust=Trust.ANY), found, anybody.inspect).manifest == CHAIN[1]


@given(bad=st.sets(st.sampled_from(STEPS)), restore=st.lists(st.sampled_from(CHAIN), min_size=1, max_size=4))
def test_the_choice_verifies_and_nothing_is_looked_at_twice(bad: set[int], restore: list[Manifest]) -> None:
    disk, distinct = Disk(bad), list(dict.fromkeys(restore))
    try:
        choice = choose(plan(*(m.ref for m in distinct)), (), disk.inspect)
    except CheckpointNotFound:
        assert set(disk.looked) <= bad
    else:
        assert choice.manifest is not None
        assert choice.manifest.step not in bad
        assert len(choice.skipped) == len(disk.looked) - 1
    assert len(disk.looked) == len(set(disk.looked))


def test_latest_is_the_newest_run_not_the_highest_step() -> None:
    """A run was left at step 1000; the user began again, and is at step 500."""
    left = tuple(CheckpointRef(step, WorldId(1, 0, 1), run="left") for step in (1000, 900))
    newer = tuple(CheckpointRef(step, WorldId(1, 0, 1), run="newer") for step in (400, 500))
    old_layout = CheckpointRef(2000, WorldId(1, 0, 1))
    wanted = candidates(plan(known=False), (*newer, *left, old_layout))
    assert [(ref.run, ref.step) for ref in wanted[:3]] == [("newer", 500), ("newer", 400), ("left", 1000)]
    assert wanted[-1] == old_layout


def test_latest_within_a_run_is_the_newest_world() -> None:
    """An older world had come further, but its checkpoint did not verify then."""
    found = (CheckpointRef(60, WorldId(1, 0, 1), run="r"), CheckpointRef(55, WorldId(1, 0, 2), run="r"))
    assert [ref.step for ref in candidates(plan(known=False), found)] == [55, 60]


def test_a_world_takes_checkpoints_of_its_own_run_from_the_journal() -> None:
    """Without an operator there is no journal: all that is in the folder counts."""
    found = (CheckpointRef(60, WorldId(1, 0, 1), run="uid"), CheckpointRef(50, WorldId(1, 0, 1), run="other"))
    assert [ref.step for ref in candidates(plan(known=False), found)] == [50]
    alone = replace(plan(known=False), job_uid="")
    assert [ref.step for ref in candidates(alone, found)] == [60, 50]


def test_every_file_is_verified_by_one_rank_its_own_if_as_many_have_saved():
    names = ("state.pt", "rank-1.pt", "__1_0.distcp", "__0_0.distcp")
    files = tuple(ShardFile(name, size, "") for size, name in enumerate(names, start=1))
    saved = Manifest(1, WorldId(1, 0, 1), 2, "job", "uid", files, None)
    assert [[file.name for file in part] for part in files_by_rank(saved, 2)] == [
        ["state.pt", "__0_0.distcp"],
        ["rank-1.pt", "__1_0.distcp"],
    ]
    assert [sum(file.size for file in part) for part in files_by_rank(saved, 3)] == [4, 3, 3]
