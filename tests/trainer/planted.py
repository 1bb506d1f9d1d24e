"""A good checkpoint, and a newer one that somebody else has made of it: the cases of test_planted.py.

Each case does something to the files of a copy, which then gets a manifest with the right hashes; or to the
manifest, after that (`after`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.world import ShardFile, WorldId
from ropeteam_trainer.rank.agentlink import NoAgent
from ropeteam_trainer.rank.world import World

JOB, VALID, PLANTED = "job", Path("step-3/1.0.1"), Path("step-1000/9.0.1")
CANARY = "canary"
"""In the folder of checkpoints, if something of a planted one was executed."""
STATE, RANK, TENSORS = "state.pt", "rank-0.pt", "__0_0.distcp"


class Case(NamedTuple):
    name: str
    act: Callable[[Path], None]
    after: bool = False
    job: str = JOB


def a_plan(directory: Path) -> RankPlan:
    return RankPlan("1.0.1", (), False, CheckpointConfig(str(directory)), Resume.LATEST, None, JOB, "")


def checkpoints(directory: Path, model: torch.nn.Module | None = None) -> tuple[Checkpoints, torch.nn.Module]:
    """Of one rank, without an operator."""
    saver = Checkpoints(a_plan(directory), World(0, 1, torch.device("cpu")), NoAgent())
    model = model or torch.nn.Linear(3, 2)
    saver.register({"model": model})
    return saver, model


def plant(directory: Path, case: Case) -> None:
    """Beside the good one, which is there."""
    place = directory / PLANTED
    shutil.copytree(directory / VALID, place)
    (place / MANIFEST).unlink()
    if not case.after:
        case.act(place)
    files = tuple(
        ShardFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(place.iterdir())
    )
    manifest = Manifest(1000, WorldId(9, 0, 1), 1, case.job, "", files, None)
    (place / MANIFEST).write_bytes(manifest.to_bytes())
    if case.after:
        case.act(place)


class Gadget:
    def __init__(self, place: Path) -> None:
        self.command = f"touch {place.parent.parent / CANARY}"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def written(name: str, content: bytes | Callable[[Path], bytes]) -> Callable[[Path], None]:
    def act(place: Path) -> None:
        (place / name).write_bytes(content if isinstance(content, bytes) else content(place))

    return act


def saved(name: str, make: Callable[[Path], Any], **options: Any) -> Callable[[Path], None]:
    return lambda place: torch.save(make(place), place / name, **options)


def halved(name: str) -> Callable[[Path], None]:
    return lambda place: os.truncate(place / name, (place / name).stat().st_size // 2)


class OfAScript:
    """Of this class a script may have made its state, and known to torch."""
