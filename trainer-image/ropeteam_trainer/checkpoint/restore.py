"""Which checkpoint to go on from. Pure: looking at a checkpoint is the caller's `look`.

    candidates()   where to look, best first: the lineage that the plan names, or, in a job's first world,
                   what is in the folder and `resume` allows
    choose()       the first that verifies; after the candidates come their parents (a step that was asked for
                   by number has no substitute)

Promise: a checkpoint that was once committed is never silently replaced by a start from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropeteam_trainer.checkpoint.manifest import Manifest, folder, parse_ref
from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.contract.world import CheckpointRef


@dataclass(frozen=True)
class Look:
    """What is found where a checkpoint should be."""

    manifest: Manifest | None
    """None: not there, or not to be trusted."""
    fault: str = ""
    """Why it cannot be used, for a person. Empty: every file is there and unaltered."""


@dataclass(frozen=True)
class Choice:
    manifest: Manifest | None
    """None: start from nothing."""
    skipped: tuple[str, ...] = ()
    """One sentence for each checkpoint that was passed over."""


class CheckpointNotFound(ValueError):  # FailReason's name
    """`resume.policy: Step` names a step that is not there, or not one committed checkpoint verifies."""


def candidates(plan: RankPlan, found: Sequence[CheckpointRef]) -> tuple[CheckpointRef, ...]:
    """Where to look. `found`: what is in the folder. Raises CheckpointNotFound for a missing step."""
    if plan.lineage_known:
        return tuple(parse_ref(text) for text in plan.restore)
    newest_first = tuple(sorted(found, key=lambda ref: (ref.step, ref.epoch), reverse=True))
    if plan.resume is Resume.LATEST:
        return newest_first
    if plan.resume is Resume.NEVER:
        return ()
    wanted = tuple(ref for ref in newest_first if ref.step == plan.resume_step)
    if not wanted:
        raise CheckpointNotFound(_no_such_step(plan, [ref.step for ref in found]))
    return wanted


def choose(plan: RankPlan, found: Sequence[CheckpointRef], look: Callable[[CheckpointRef], Look]) -> Choice:
    """What to go on from. Raises CheckpointNotFound where a start from nothing would hide a loss."""
    queue = list(candidates(plan, found))
    exactly = not plan.lineage_known and plan.resume is Resume.STEP
    must_exist = exactly or any(ref.digest for ref in queue)
    skipped: list[str] = []
    for ref in queue:  # grows at its end while parents are found
        seen = look(ref)
        if seen.manifest is not None and not seen.fault:
            return Choice(seen.manifest, tuple(skipped))
        skipped.append(f"checkpoint {folder(ref)} is not used: {seen.fault}")
        parent = seen.manifest.parent if seen.manifest else None
        if parent is not None and not exactly and all(folder(parent) != folder(known) for known in queue):
            queue.append(parent)
    if must_exist:
        raise CheckpointNotFound(
            f"no checkpoint can be used. {'. '.join(skipped)}. "
            "Bring the files back, or start a new job with spec.resume.policy Never to begin at step 0."
        )
    return Choice(None, tuple(skipped))


def _no_such_step(plan: RankPlan, saved: Sequence[int]) -> str:
    directory = plan.checkpoint.directory if plan.checkpoint else "the checkpoint folder"
    wanted = plan.resume_step or 0
    earlier = max((step for step in saved if step < wanted), default=None)
    fix = (
        f"Set spec.resume.step to the nearest earlier one ({earlier})"
        if earlier
        else "Choose another spec.resume"
    )
    count = len(set(saved))
    return f"cannot resume from step {wanted}: not among {count} checkpoints in {directory}. {fix} to go on."
