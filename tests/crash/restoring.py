"""Checkpoints are written, committed and pruned by the real code; a power cut; then they are read by the real
code.

    granted(ref)    the agent was ordered to commit: the next world tries it first
    committed(ref)  the agent has reported: status may name it, and from now on it must be there
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from tests.agent.life import a_plan
from tests.crash.recording import Operation, Recording, recorded
from tests.crash.replaying import PowerLoss, power_losses, write
from tests.trainer.looking import seen

from ropeteam_trainer.agent.checkpoints import claim, prune, write_manifest
from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import folder, ref_text
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound, CheckpointUnavailable, choose
from ropeteam_trainer.checkpoint.objects.stateful import TrainingState
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.checkpoint.writer import ShardWriter
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume, WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.agentlink import NoAgent
from ropeteam_trainer.rank.world import World

WORLD_ID, KEEP, STEPS = WorldId(1, 0, 1), 2, (10, 20, 30)
ALONE = World(0, 1, torch.device("cpu"))
Files = dict[str, bytes]


class Story(NamedTuple):
    operations: list[Operation]
    before: int
    """So many of them describe the folder as it was, durable."""
    expected: dict[int, Files]
    """Contents of the checkpoint of each step."""
    claims: bool = False
    """An agent claims the folder, and finds what to continue from."""


def plan(directory: Path, *restore: CheckpointRef, known: bool) -> RankPlan:
    texts = tuple(ref_text(ref) for ref in restore)
    config = CheckpointConfig(str(directory), keep=KEEP)
    return RankPlan(str(WORLD_ID), texts, known, config, Resume.LATEST, None, "job", "")


def settings_in(directory: Path) -> WorkerConfig:
    config = CheckpointConfig(str(directory))
    return WorkerConfig("job", "namespace", "uid", 1, 1, 1, "host:1", checkpoint=config)


def under_an_agent(directory: Path) -> Story:
    """A rank writes, the agent commits what was granted and prunes what is not kept."""
    settings = settings_in(directory)
    lineage: tuple[CheckpointRef, ...] = ()
    expected: dict[int, Files] = {}
    with recorded(directory) as recording:
        held = claim(settings, "pod", a_plan(1)).held
        for step in STEPS:
            shards: dict[int, tuple[ShardFile, ...]] = {}
            writer = ShardWriter(directory, WORLD_ID, ALONE, shards.__setitem__, "uid")
            state = TrainingState({"model.w": torch.full((8,), float(step))})
            writer.start(step, state, {"state.pt": {"step": step}, "rank-0.pt": {}})
            writer.wait()
            ref = CheckpointRef(step, WORLD_ID, run="uid")
            grant = Grant(ref, 1, shards[step], lineage[0] if lineage else None)
            recording.note(grant.ref)
            ref = write_manifest(settings, held, grant)
            lineage = (ref, *lineage)[:KEEP]
            commit(recording, directory, expected, ref)
            prune(settings, held, lineage)
    return Story(recording.operations, recording.before, expected, claims=True)


def alone(directory: Path) -> Story:
    """Without an operator the library does it all by itself."""
    expected: dict[int, Files] = {}
    with recorded(directory) as recording:
        checkpoints = Checkpoints(plan(directory, known=False), ALONE, NoAgent())
        checkpoints.register({"model": torch.nn.Linear(2, 2)})
        for step in STEPS:
            checkpoints.save(step, None)
            (found,) = (each for each in reader.find_checkpoints(directory) if each.step == step)
            written = reader.inspect_manifest(directory, found).manifest
            assert written is not None
            commit(recording, directory, expected, written.ref)
    return Story(recording.operations, recording.before, expected)


def commit(recording: Recording, directory: Path, expected: dict[int, Files], ref: CheckpointRef) -> None:
    expected[ref.step] = files(directory, ref)
    recording.note(ref)


def files(directory: Path, ref: CheckpointRef) -> Files:
    return {path.name: path.read_bytes() for path in (directory / folder(ref)).iterdir()}


def faults(story: Story, scratch: Path, most: int) -> Iterator[str]:
    """Faults of the checkpoints after each power cut."""
    directory = scratch / "cut"
    for loss in power_losses(story.operations, story.before, most):
        directory.mkdir(parents=True)
        write(loss.tree, directory)
        yield from (
            f"after {loss.after} calls without {loss.lost}: {each}" for each in wrong(directory, story, loss)
        )
        shutil.rmtree(directory)


def wrong(directory: Path, story: Story, loss: PowerLoss) -> Iterator[str]:
    """With the lineage of a coordinator that lives on, with that of status, with that of the folder."""
    problems = tuple(reversed(loss.noted))
    committed = tuple(ref for ref in problems if ref.digest)[:KEEP]
    pending = problems[:1] if problems and not problems[0].digest else ()
    worlds = {
        "the coordinator": (*pending, *committed),
        "status": committed,
        "the folder": None,
    }
    newest = max((ref.step for ref in committed), default=0)
    looked: list[str] = []
    for who, lineage in worlds.items():
        if story.claims:  # the agent looks first
            later = a_plan(2 + len(looked), restore=lineage or ())
            looked.append(who)
            lineage = claim(settings_in(directory), "pod", later).restore or None
        wanted = plan(directory, *(lineage or ()), known=lineage is not None)
        try:
            found = choose(wanted, reader.find_checkpoints(directory), lambda ref: seen(directory, ref))
        except (CheckpointNotFound, CheckpointUnavailable) as error:
            yield f"{who} finds nothing: {error}"
            continue
        ref = found.ref
        if (ref.step if ref else 0) < newest:
            yield f"{who} goes on from {ref}, and step {newest} was committed"
        if ref and not story.expected[ref.step].items() <= files(directory, replace(ref, digest="")).items():
            yield f"{who} goes on from a torn checkpoint of step {ref.step}"
