"""Two ranks exchange their messages, and rank OTHER sends those of the release before, pickles.

exchanging.py OTHER FILE     FILE: it sends a gadget too, which creates FILE.<rank> where it is unpickled
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ropeteam_trainer.checkpoint.agreement import CHOSEN, VERIFICATION, Verification
from ropeteam_trainer.checkpoint.decisions.manifest import Manifest
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound, Choice
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import ShardFile, WorldId
from ropeteam_trainer.rank.world import World


class Before(World):
    """The release before."""

    def gather(self, value: Any, *_: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_rank_0(self, answer: Callable[[], Any], *_: Any) -> Any:
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = answer()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]


class Gadget:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {sys.argv[2]}.$RANK",)


def failing(error: Exception) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


def result_or_error(action: Callable[[], Any]) -> Any:
    """Result, or the text of the error."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def become_the_release_before() -> None:
    """Give classes the places that their names on the wire have, so that pickles name them so."""
    for name, kind in {**CHOSEN, **VERIFICATION}.items():
        module, _, kind.__qualname__ = name.rpartition(".")
        setattr(sys.modules.setdefault(module, types.ModuleType(module)), kind.__qualname__, kind)
        kind.__module__ = module
        if dataclasses.is_dataclass(kind):
            name_fields_as_before(kind)


def name_fields_as_before(kind: Any) -> None:
    """Pickle a dataclass with the names that its fields had, which are those in JSON."""
    before = {field.name: codec.json_name(field) for field in dataclasses.fields(kind)}
    now = {json_name: name for name, json_name in before.items()}
    kind.__getstate__ = lambda self: {before[name]: value for name, value in vars(self).items()}
    kind.__setstate__ = lambda self, state: self.__dict__.update({now[name]: state[name] for name in state})


world = World.join("cpu", 60)
if world.rank == int(sys.argv[1]):
    become_the_release_before()
    world = Before(world.rank, world.size, world.device)
manifest = Manifest(3, WorldId(1, 0, 1), 2, "job", "uid", (ShardFile("state.pt", 7, "ab"),), None)
choice = Choice(manifest, manifest.ref, ("another is not used",)), ""
states = [Verification(rank == 1, 5 + rank, "", "away") for rank in range(2)]
fits = [({f"without {rank}"}, {"what nobody takes"}, ["a shape"]) for rank in range(2)]

assert world.from_rank_0(lambda: choice, CHOSEN) == choice
assert world.gather(states[world.rank], VERIFICATION) == states
assert world.gather(fits[world.rank]) == fits
for error in (CheckpointNotFound("no step 3"), OSError(5, "Input/output error", "/saved"), ValueError("no")):
    expected = f"{type(error).__name__}: {error}"
    assert result_or_error(lambda error=error: world.from_rank_0(failing(error), CHOSEN)) == expected  # type: ignore[misc]
if len(sys.argv) > 2:
    print(result_or_error(lambda: world.gather(Gadget() if isinstance(world, Before) else 0)))
    print(result_or_error(lambda: world.from_rank_0(Gadget)))
world.leave(10)
