"""Choice of the checkpoint to restore. Pure: the caller's `inspect` reads a checkpoint.

    candidates()   checkpoints to try, best first: the lineage that the plan names, or, in a job's first
                   world, those in the folder that `resume` allows
    choose()       the first valid one; after the candidates come their parents (a step that was requested by
                   number has no substitute)

Promises: a checkpoint that was once committed is never silently replaced by a start from nothing. Where
there are keys (seals.py), each one that is used is trusted: its hash is named by status or by a checkpoint
that is trusted itself, or its manifest is signed; unless `resume.trust` is Any.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder, parse_ref
from ropeteam_trainer.contract.config import RankPlan, Resume, Trust
from ropeteam_trainer.contract.errors import StorageError, UserError
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

RIGHT_HASH = "has the right hash, but is no state of ours"
"""Fault of a file that proves its checkpoint malformed. It is recognized by this text, because ranks of an
earlier release accept nothing but a sentence. So the text never changes."""


@dataclass(frozen=True)
class Inspection:
    """Result of reading a checkpoint."""

    manifest: Manifest | None
    """None: missing, or not to be trusted."""
    fault: str = ""
    """Reason why it cannot be used, for a person. Empty: no fault is known."""
    unsure: bool = False
    """The fault proves nothing: the volume may be unavailable, or this node's mount of it stale."""
    ref: CheckpointRef | None = None
    """Reference of the checkpoint, with its digest and its run."""
    signed: bool = False
    """The manifest is signed with a key of this folder."""


@dataclass(frozen=True)
class Choice:
    manifest: Manifest | None
    """None: start from nothing."""
    ref: CheckpointRef | None = None
    skipped: tuple[str, ...] = ()
    """One sentence for each checkpoint that was passed over."""


_STEPS_NAMED = 10
_UNSIGNED = (
    "not signed with a key of this namespace, volume and path, nor of a Secret that spec.checkpoint.signing "
    "names (it is of an earlier release, of another operator or Secret, or of another writer of the volume); "
    "spec.resume.trust Any would accept it"
)


class CheckpointNotFound(UserError, ValueError):  # FailReason's name
    """Error: `resume.policy: Step` names a missing step, not one committed checkpoint verifies, or those that
    were found are not signed."""


class CheckpointUnavailable(StorageError, OSError):
    """Error: checkpoints could not be read for minutes in this pod, while other pods could, or may. They may
    be valid: another node may read them."""


class UnavailableElsewhere(CheckpointUnavailable):
    """Error: other pods cannot read the checkpoints; this one can read them."""


class UnavailableEverywhere(CheckpointUnavailable):
    """Error: no pod can read the checkpoints: the volume is the cause."""


def candidates(plan: RankPlan, found: Sequence[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    """Checkpoints to try, best first. `found`: those in the directory, the newest run first; read only if the
    plan names no lineage. Raises CheckpointNotFound if `resume` names a step that is not among them."""
    if plan.lineage_known:
        return tuple(parse_ref(text) for text in plan.restore)
    if plan.job_uid:  # checkpoints that our own run has committed are in its journal
        found = tuple(ref for ref in found if ref.run != plan.job_uid)
    newest_first = _newest_first(found)
    if plan.resume is Resume.LATEST:
        return newest_first
    if plan.resume is Resume.NEVER:
        return ()
    wanted = tuple(ref for ref in newest_first if ref.step == plan.resume_step)
    if not wanted:
        raise CheckpointNotFound(_missing_step_text(plan, [ref.step for ref in found]))
    return wanted


def _newest_first(found: Sequence[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    """Sorted by newest run, then newest world, then step: an abandoned run may have reached a higher step.
    Checkpoints in no run are sorted by step first: they may be of several jobs, whose world numbers do not
    compare."""
    runs = {run: -number for number, run in enumerate(dict.fromkeys(ref.run for ref in found))}

    def newness(ref: CheckpointRef) -> tuple[int, WorldId, int, WorldId]:
        return runs[ref.run], ref.world_id if ref.run else WorldId(0, 0, 0), ref.step, ref.world_id

    return tuple(sorted(found, key=newness, reverse=True))


def choose(
    plan: RankPlan, found: Sequence[CheckpointRef], inspect: Callable[[CheckpointRef], Inspection]
) -> Choice:
    """Checkpoint to restore: the first candidate, then the first ancestor, without a fault. A Choice without
    manifest: start from nothing. `found`, and what else is raised: as for candidates(). `inspect` raises
    nothing.

    Raises CheckpointUnavailable for the first one that cannot be read: it may be whole, so no older one is
    used. Raises CheckpointNotFound if all have a fault, and a start from nothing would hide a loss: `resume`
    or status names a checkpoint, one is not signed, or one is malformed.
    """
    queue = list(candidates(plan, found))
    exactly = not plan.lineage_known and plan.resume is Resume.STEP
    committed = plan.lineage_known and plan.signs and queue  # an agent with keys names committed ones only
    must_exist = exactly or committed or any(ref.digest for ref in queue)
    skipped: list[str] = []
    unsigned: list[str] = []
    for ref in queue:  # grows at its end while parents are found
        seen = inspect(ref)
        if seen.unsure:
            raise CheckpointUnavailable(f"checkpoint {folder(ref)} cannot be validated: {seen.fault}")
        vouched = ref.digest or seen.signed or not plan.signs or plan.trust is Trust.ANY
        fault = seen.fault or _foreign_fault(plan, seen.manifest) or ("" if vouched else _UNSIGNED)
        if seen.manifest is not None and not fault:
            return Choice(seen.manifest, seen.ref, tuple(skipped))
        skipped.append(f"checkpoint {folder(ref)} is not used: {fault}")
        if fault is _UNSIGNED:
            unsigned.append(folder(ref))
        # The manifest of a checkpoint with a bad file still names its parent, if the manifest is trusted.
        parent = seen.manifest.parent if seen.manifest and vouched else None
        if parent is not None and not exactly and all(folder(parent) != folder(known) for known in queue):
            queue.append(parent)
    if unsigned:
        raise CheckpointNotFound(
            f"checkpoint {unsigned[0]} is not signed for this job. Recreate the job with "
            "spec.checkpoint.signing (the Secret it was signed with), spec.resume.trust Any (if you trust "
            "all writers of the volume) or spec.resume.policy Never (to begin at step 0). "
            f"{len(unsigned)} skipped: {_UNSIGNED}"
        )
    malformed = any(RIGHT_HASH in sentence for sentence in skipped)
    if must_exist or malformed:  # a start at step 0 would not resume from the last valid one
        raise CheckpointNotFound(
            f"no checkpoint can be used. {'. '.join(skipped)}. Restore the files, or recreate the job: "
            "spec.resume.policy Latest resumes from the newest complete checkpoint left in its folder, "
            f"Never begins at step 0.{' To skip a malformed one, delete its folder.' * malformed}"
        )
    return Choice(None, None, tuple(skipped))


def _foreign_fault(plan: RankPlan, manifest: Manifest | None) -> str:
    """Fault of another job's checkpoint, "" for all others. One is used on request by its step only, because
    several jobs may share a directory."""
    if manifest is None or plan.lineage_known or plan.resume is not Resume.LATEST:
        return ""
    if not plan.job or manifest.job in ("", plan.job):
        return ""
    return (
        f"it is of job {ascii(manifest.job)[:80]}, and this is {plan.job}; spec.resume {{policy: Step, step: "
        f"{manifest.step}}} would accept it"
    )


def files_by_rank(manifest: Manifest, ranks: int) -> list[list[ShardFile]]:
    """Files to verify by rank; each file is one rank's. With as many ranks as have saved, each verifies those
    that it wrote: it will load them. Else by size, the largest first, each to the rank with the fewest
    bytes."""
    parts: list[list[ShardFile]] = [[] for _ in range(ranks)]
    if ranks == manifest.world_size:
        for file in manifest.files:
            parts[_rank_that_wrote(file.name) % ranks].append(file)
        return parts
    loads = [(0, rank) for rank in range(ranks)]
    for file in sorted(manifest.files, key=lambda file: (-file.size, file.name)):
        load, rank = heapq.heappop(loads)
        parts[rank].append(file)
        heapq.heappush(loads, (load + file.size, rank))
    return parts


def _rank_that_wrote(name: str) -> int:
    """Rank that wrote a file: rank 3 wrote `rank-3.pt` and `__3_0.distcp`, rank 0 the files without a
    number."""
    found = re.match(r"(?:rank-|__)(\d+)", name)
    return int(found[1]) if found else 0


def _missing_step_text(plan: RankPlan, saved: Sequence[int]) -> str:
    """Text of the error for a requested step that is not among `saved`: the steps there are, and what to
    set."""
    directory = plan.checkpoint.directory if plan.checkpoint else "the checkpoint folder"
    wanted = plan.resume_step or 0
    earlier = max((step for step in saved if step < wanted), default=None)
    fix = (
        f"Set spec.resume.step to the nearest earlier one ({earlier})"
        if earlier
        else "Choose another spec.resume"
    )
    steps = sorted(set(saved), reverse=True)
    more = f" and {len(steps) - _STEPS_NAMED} earlier ones" if len(steps) > _STEPS_NAMED else ""
    there = f"those of steps {', '.join(map(str, steps[:_STEPS_NAMED]))}{more}" if steps else "none"
    return f"cannot resume from step {wanted}: the checkpoints in {directory} are {there}. {fix} to continue."
