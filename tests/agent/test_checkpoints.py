"""Claims, manifests and pruning on a real disk."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from tests.agent.life import a_plan, a_ref

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.agent.checkpoints import Claimed, claim, prune, write_manifest
from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import (
    CheckpointKey,
    Claim,
    Held,
    JournalEntry,
    Superseded,
    key_of,
)
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest, folder, ref_text
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

FILES = (ShardFile("state.pt", 1, "s"),)


def settings_in(path, job_uid: str = "uid") -> WorkerConfig:
    return WorkerConfig("j", "n", job_uid, 1, 2, 2, "h:1", checkpoint=CheckpointConfig(str(path)))


def run_ref(step: int, n: int = 1, digest: str = "", run: str = "uid") -> CheckpointRef:
    return replace(a_ref(step, n, digest), run=run)


def claimed(path, n: int = 1, *restore: CheckpointRef, job_uid: str = "uid") -> Claimed:
    return claim(settings_in(path, job_uid), f"pod-{n}", a_plan(n, restore=restore))


def saved(path, *places: tuple[int, int], run: str = "uid") -> None:
    for step, n in places:
        where = path / folder(run_ref(step, n, run=run))
        where.mkdir(parents=True)
        (where / "state.pt").write_bytes(b"x")


def committed(path, *steps: int, n: int = 1, parent: CheckpointRef | None = None) -> list[CheckpointRef]:
    """A world that commits these; newest first."""
    settings, held = settings_in(path), claimed(path, n).held
    line = [parent] if parent else []
    for step in steps:
        saved(path, (step, n))
        grant = Grant(run_ref(step, n), 4, FILES, line[0] if line else None)
        line.insert(0, write_manifest(settings, held, grant))
    return line


def left(path) -> list[str]:
    return sorted(str(place.relative_to(path / "run-uid")) for place in path.glob("run-uid/step-*/*"))


def test_a_granted_manifest_is_written_and_named_by_its_digest(tmp_path):
    held = claimed(tmp_path).held
    saved(tmp_path, (10, 1))
    grant = Grant(run_ref(10), 4, FILES, a_ref(5))
    ref = write_manifest(settings_in(tmp_path), held, grant)
    data = (tmp_path / "run-uid/step-10/1.0.1" / MANIFEST).read_bytes()
    assert ref.digest == hashlib.sha256(data).hexdigest()
    assert codec.decode(Manifest, data).ref == ref
    assert write_manifest(settings_in(tmp_path), held, grant) == ref, "twice is the same as once"
    names = {path.name for path in (tmp_path / "run-uid/step-10/1.0.1").iterdir()}
    assert names == {"state.pt", MANIFEST}


def test_a_manifest_without_its_folder_is_an_error_to_try_again(tmp_path):
    with pytest.raises(OSError, match="step-10"):
        write_manifest(settings_in(tmp_path), claimed(tmp_path).held, Grant(run_ref(10), 4, (), None))


def saved_by_an_old_library(path, *steps: int, n: int = 1) -> None:
    for step in steps:
        saved(path, (step, n), run="")


def test_what_a_library_older_than_folders_of_runs_saves_is_committed_and_found_where_it_lies(tmp_path):
    """The library in the image of a job that is older than its operator."""
    saved_by_an_old_library(tmp_path, 10, 20)
    first = write_manifest(settings_in(tmp_path), claimed(tmp_path).held, Grant(run_ref(10), 4, FILES, None))
    assert (first.run, ref_text(first)) == ("", f"step-10/1.0.1#{first.digest}")
    assert codec.decode(Manifest, (tmp_path / "step-10/1.0.1" / MANIFEST).read_bytes()).job_uid == "uid"
    again = claimed(tmp_path, 2)
    assert [ref_text(ref) for ref in again.restore] == [ref_text(first)], "as such a library reads it"


def test_of_the_directory_itself_only_entries_of_the_journal_are_pruned(tmp_path):
    saved_by_an_old_library(tmp_path, 5, 10, 20, 30)
    held, settings = claimed(tmp_path).held, settings_in(tmp_path)
    refs = [write_manifest(settings, held, Grant(run_ref(step), 4, FILES, None)) for step in (10, 20, 30)]
    entries = tmp_path / "run-uid/journal"
    (entries / "step-6.1.0.1.commit").write_bytes(
        codec.encode(JournalEntry(run_ref(6), None))
    )  # gone by hand
    (entries / "step-7.1.0.1.commit").write_bytes(b"torn")
    assert prune(settings, held, (refs[2], refs[1])) == (key_of(refs[0]),)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-20", "step-30", "step-5"]
    assert prune(settings, held, (refs[2], refs[1])) == ()
    assert {path.name for path in entries.glob("*.pruned")} == {"step-10.1.0.1.pruned"}


def in_directory(path, step: int, job_uid: str = "other") -> bytes:
    """A checkpoint of another run, which a library older than folders of runs has saved."""
    (path / f"step-{step}/1.0.1").mkdir(parents=True, exist_ok=True)
    text = Manifest(step, WorldId(1, 0, 1), 4, "j", job_uid, FILES, None).to_bytes()
    (path / f"step-{step}/1.0.1" / MANIFEST).write_bytes(text)
    return text


def test_a_checkpoint_of_another_run_is_not_committed_over(tmp_path):
    held = claimed(tmp_path).held
    saved_by_an_old_library(tmp_path, 10)
    text = in_directory(tmp_path, 10)
    with pytest.raises(OSError, match="step-10"):
        write_manifest(settings_in(tmp_path), held, Grant(run_ref(10), 4, FILES, None))
    assert (tmp_path / "step-10/1.0.1" / MANIFEST).read_bytes() == text


@pytest.mark.parametrize(
    "files", [(ShardFile("state.pt", 2, "s"),), (*FILES, ShardFile("rank-0.pt", 1, "s"))]
)
def test_what_is_not_whole_in_the_directory_is_not_committed_there(tmp_path, files):
    held = claimed(tmp_path).held
    saved_by_an_old_library(tmp_path, 10)
    with pytest.raises(OSError, match="step-10"):
        write_manifest(settings_in(tmp_path), held, Grant(run_ref(10), 4, files, None))


def test_what_another_run_has_saved_in_the_same_place_since_is_not_pruned(tmp_path):
    saved_by_an_old_library(tmp_path, 10, 20)
    held, settings = claimed(tmp_path).held, settings_in(tmp_path)
    refs = [write_manifest(settings, held, Grant(run_ref(step), 4, FILES, None)) for step in (10, 20)]
    in_directory(tmp_path, 10)
    prune(settings, held, (refs[1],))
    assert (tmp_path / "step-10/1.0.1" / MANIFEST).exists()


def test_a_crash_while_what_lies_apart_is_deleted_leaves_nothing_behind(tmp_path, monkeypatch):
    saved_by_an_old_library(tmp_path, 10, 20)
    held, settings = claimed(tmp_path).held, settings_in(tmp_path)
    refs = [write_manifest(settings, held, Grant(run_ref(step), 4, FILES, None)) for step in (10, 20)]

    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "delete_checkpoint", crash)
        with pytest.raises(Crash):
            prune(settings, held, (refs[1],))
    prune(settings, held, (refs[1],))
    assert not (tmp_path / "step-10").exists()


def test_files_that_somebody_put_there_stop_no_pruning(tmp_path):
    line = committed(tmp_path, 5, 10)
    run = tmp_path / "run-uid"
    (run / "step-5" / "1.0.7").write_text("not a folder")
    (run / "step-5" / ".nfs0001").write_text("deleted while it was open")
    (run / "step-4").write_text("not a folder either")
    held = Held(Claim(a_plan(1).world_id, "pod-1"), frozenset(map(key_of, line)))
    assert prune(settings_in(tmp_path), held, (line[0],)) == (key_of(line[1]),)
    assert prune(settings_in(tmp_path), held, (line[0],)) == ()


def test_pruning_keeps_the_lineage_and_what_is_newer(tmp_path):
    first = committed(tmp_path, 5, 10)
    second = committed(tmp_path, 20, 30, n=2, parent=first[0])
    saved(tmp_path, (15, 1), (7, 2))
    (tmp_path / "notes").mkdir()
    held = Held(Claim(a_plan(2).world_id, "pod-2"), frozenset(map(key_of, first)))
    deleted = prune(settings_in(tmp_path), held, (second[1], first[0]))
    assert sorted(map(str, deleted)) == ["step-15.1.0.1", "step-5.1.0.1", "step-7.1.0.2"]
    assert left(tmp_path) == ["step-10/1.0.1", "step-20/1.0.2", "step-30/1.0.2"]
    assert (tmp_path / "notes").exists()
    assert prune(settings_in(tmp_path), held, (second[1], first[0])) == ()


def test_what_descends_from_a_named_checkpoint_is_restored_newest_first_also_when_those_between_are_pruned(
    tmp_path,
):
    line = committed(tmp_path, 10, 20, 30, 40, 50)
    held = claimed(tmp_path).held
    prune(settings_in(tmp_path), held, (line[0], line[1], line[4]))
    assert left(tmp_path) == ["step-10/1.0.1", "step-40/1.0.1", "step-50/1.0.1"]
    named = replace(line[4], run="")
    again = claimed(tmp_path, 2, named)
    assert [ref.step for ref in again.restore] == [50, 40, 10]
    assert again.restore[0].run == "uid"


def test_a_claim_has_the_ancestors_of_each(tmp_path):
    """Status names two: 20 was left for 10, from which all since descends. 99 is in no journal."""
    line = committed(tmp_path, 10, 20)
    later = committed(tmp_path, 15, 30, 40, parent=line[1], n=2)
    away = a_ref(99, 7, "another-job")
    found = claimed(tmp_path, 3, *line, away)
    ancestors = zip(found.restore, found.ancestors, strict=True)
    steps = {ref.step: [each.step for each in past] for ref, past in ancestors}
    assert steps == {40: [30, 15, 10], 30: [15, 10], 15: [10], 20: [10], 10: [], 99: []}
    assert later[0] == found.restore[0]


def test_what_does_not_descend_from_a_named_checkpoint_is_not_restored(tmp_path):
    committed(tmp_path, 10, 20)
    foreign = a_ref(100, 7, "another-job")
    assert claimed(tmp_path, 2, foreign).restore == (foreign,)


def test_a_run_whose_status_names_nothing_yet_goes_on_from_what_it_has_committed(tmp_path):
    """The operator was away before it could save the first."""
    committed(tmp_path, 10, 20)
    assert [ref.step for ref in claimed(tmp_path, 2).restore] == [20, 10]


@pytest.mark.parametrize("status_names_it", [True, False])
def test_a_run_that_began_from_another_one_goes_on_from_what_it_has_committed_since(
    tmp_path, status_names_it
):
    """`resume: Latest`, or a folder of the release before; and the operator is away from then on."""
    began = run_ref(50, 7, "digest", run="another")
    committed(tmp_path, 60, 70, parent=began)
    named = (replace(began, run=""),) if status_names_it else ()
    restored = claimed(tmp_path, 2, *named).restore
    assert [ref.step for ref in restored] == [70, 60, *(ref.step for ref in named)]


def test_after_a_restore_of_etcd_pruned_ancestors_prove_the_descent(tmp_path):
    line = committed(tmp_path, 10, 20, 30, 40)
    prune(settings_in(tmp_path), claimed(tmp_path).held, (line[0],))
    assert [ref.step for ref in claimed(tmp_path, 2, replace(line[3], run="")).restore] == [40, 10]


def test_a_world_that_was_superseded_neither_claims_nor_commits_nor_prunes(tmp_path):
    line = committed(tmp_path, 10, 20)
    old = claimed(tmp_path).held
    new = claim(settings_in(tmp_path), "new", a_plan(world_id=WorldId(2, 0, 1), restore=tuple(line)))
    saved(tmp_path, (30, 1))
    for attempt in (
        lambda: claimed(tmp_path, 2),
        lambda: write_manifest(settings_in(tmp_path), old, Grant(run_ref(30), 4, FILES, line[0])),
        lambda: prune(settings_in(tmp_path), old, (line[0],)),
    ):
        with pytest.raises(Superseded, match="superseded by term 2"):
            attempt()
    assert left(tmp_path) == ["step-10/1.0.1", "step-20/1.0.1", "step-30/1.0.1"]
    assert prune(settings_in(tmp_path), new.held, (line[0],))[0] == CheckpointKey(WorldId(1, 0, 1), 10)


def test_the_next_world_continues_from_what_a_deputy_has_committed_beside_it(tmp_path):
    """World 1 has committed step 10 when its leading agent is cut off; its deputy claims by number 2."""
    settings, leading = settings_in(tmp_path), claimed(tmp_path).held
    saved(tmp_path, (10, 1), (20, 1), (30, 2))
    first = write_manifest(settings, leading, Grant(run_ref(10), 4, FILES, None))
    deputy = claimed(tmp_path, 2, first).held
    with pytest.raises(Superseded):
        write_manifest(settings, leading, Grant(run_ref(20), 4, FILES, first))
    second = write_manifest(settings, deputy, Grant(run_ref(30, 2), 4, FILES, first))
    assert claimed(tmp_path, 3, first).restore == (second, first), "status does not name it yet"
    with pytest.raises(Superseded):
        write_manifest(settings, deputy, Grant(run_ref(40, 2), 4, FILES, second))


def test_a_world_id_that_a_coordinator_counted_twice_is_claimed_once(tmp_path):
    claimed(tmp_path)
    with pytest.raises(Superseded):
        claim(settings_in(tmp_path), "another-pod", a_plan(1))


def test_two_jobs_in_one_folder_neither_overwrite_nor_prune_each_other(tmp_path):
    committed(tmp_path, 10, 20)
    other = claimed(tmp_path, job_uid="other")
    saved(tmp_path, (10, 1), (20, 1), (30, 1), run="other")
    grant = Grant(run_ref(30, run="other"), 4, FILES, None)
    ref = write_manifest(settings_in(tmp_path, "other"), other.held, grant)
    prune(settings_in(tmp_path, "other"), other.held, (ref,))
    assert left(tmp_path) == ["step-10/1.0.1", "step-20/1.0.1"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["000001.uid", "000002.other"]
    assert reader.find_checkpoints(tmp_path)[0].run == "other", "the newest run"


def test_an_entry_that_cannot_be_read_or_names_another_digest_proves_nothing(tmp_path):
    line = committed(tmp_path, 10, 20, 30)
    journal_folder = tmp_path / "run-uid/journal"
    (journal_folder / "notes.txt").touch()
    (journal_folder / "step-20.1.0.1.commit").write_bytes(b"torn")
    assert [ref.step for ref in claimed(tmp_path, 2, line[2]).restore] == [10]
    another = codec.encode(JournalEntry(replace(line[1], digest="another"), line[2]))
    (journal_folder / "step-20.1.0.1.commit").write_bytes(another)
    assert [ref.step for ref in claimed(tmp_path, 3, line[2]).restore] == [20, 10]


def test_so_many_pruned_checkpoints_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_PRUNED", 2)
    line = committed(tmp_path, 10, 20, 30, 40, 50)
    held = claimed(tmp_path).held
    for _ in range(2):
        prune(settings_in(tmp_path), held, (line[0],))
    pruned = sorted(path.name for path in (tmp_path / "run-uid/journal").glob("*.pruned"))
    assert pruned == ["step-30.1.0.1.pruned", "step-40.1.0.1.pruned"]
