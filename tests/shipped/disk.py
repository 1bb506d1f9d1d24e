"""The shared checkpoint volume: a real folder, written by the shipped checkpoints.py, with faults in between.

Agents' disk work (`run_in_executor`) takes simulated time, one job at a time per process, and then runs for
real. A broken volume raises (EIO, ESTALE, ENOSPC), a hung one answers when it is mended. Ranks are simulated
(ranks.py of tests/sim): their shards are small real files that hold which step and sample came next.
Limits: a job of the disk happens at one instant; its system calls are tests/ of crash consistency's.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.shipped.loop import OWNER, Loop, Process

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.checkpoint.decisions.journal import Superseded
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest, folder
from ropeteam_trainer.checkpoint.decisions.restore import Inspection
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.data.decisions.plan import Position

ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC)
KEYS: seals.Keys = (b"of the folder",)


class Disk:
    """`wrote(process, grant)` is called for each manifest, `claimed(process, plan)` for each claim."""

    def __init__(self, loop: Loop, root: Path, lead_rank: int = 0) -> None:
        self._loop, self.root, self._lead_rank = loop, root, lead_rank
        self.reader = ""
        """The node of the process that looks now."""
        self.run = ""
        """UID of the job."""
        self.slowness = 1.0
        self.error: int | None = None
        """errno of everything, meanwhile."""
        self.stale: dict[str, int] = {}
        """By node: errno of everything there."""
        self.hung = False
        self.saved_positions: dict[tuple[int, WorldId], Position] = {}
        self.wrote: Callable[[Process, Any], None] = lambda *_: None
        self.claimed: Callable[[Process, Any], None] = lambda *_: None
        self.pruned: Callable[[Any], None] = lambda _: None
        self.counts: Counter[str] = Counter()
        self._spoilt: set[tuple[int, WorldId]] = set()
        self._savers: dict[tuple[int, WorldId], set[int]] = {}
        self._busy: dict[int, float] = {}
        loop.work = self._work

    # ---- agents' work

    def write_seconds(self) -> float:
        return (0.05 + 0.3 * self._loop.random.random()) * self.slowness

    def _work(self, future: Any, executor: Any, function: Callable[..., Any], arguments: Any) -> None:
        owner = OWNER.get()
        assert owner is not None
        begins = max(self._loop.now, self._busy.get(id(executor), 0.0))
        ends = self._busy[id(executor)] = begins + self.write_seconds()
        self._loop.after(ends - self._loop.now, self._do, owner, future, function, arguments)

    def _do(self, owner: Process, future: Any, function: Callable[..., Any], arguments: Any) -> None:
        if not owner.alive:
            return
        if self.hung:
            self._loop.after(0.5, self._do, owner, future, function, arguments)
            return
        answer: Any
        try:
            self.check(owner.node)
            answer = function(*arguments)
        except (OSError, Superseded) as error:
            answer = error
        else:
            self._loop.note(owner.name, getattr(function, "__name__", ""), answer)
            if function is checkpoints.write_manifest:
                self.counts["manifests"] += 1
                self.wrote(owner, arguments[2])
            elif function is checkpoints.claim:
                self.claimed(owner, arguments[2])
            elif function is checkpoints.prune:
                self.counts["prunes"] += 1
                self.pruned(answer)

        def settle() -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        owner.call(settle)

    def check(self, node: str) -> None:
        """Raises what the volume raises there now."""
        error = self.error or self.stale.get(node)
        if error is not None:
            self.counts[errno.errorcode[error]] += 1
            raise OSError(error, os.strerror(error))

    # ---- ranks' work, as tests/sim/disk.py

    def write_shard(
        self, step: int, world_id: WorldId, rank: int, position: Position, whole: bool = False
    ) -> tuple[ShardFile, ...]:
        self.saved_positions[step, world_id] = position
        names = ["state.pt"] if whole or rank == self._lead_rank else []
        names.append(f"rank-{rank}.pt")
        place = self.root / folder(CheckpointRef(step, world_id, run=self.run))
        place.mkdir(parents=True, exist_ok=True)
        content = json.dumps([position.epoch, position.offset, step, str(world_id)]).encode()
        for name in names:
            (place / name).write_bytes(content)
        self._savers.setdefault((step, world_id), set()).add(rank)
        digest = hashlib.sha256(content).hexdigest()
        return tuple(ShardFile(name, len(content), digest) for name in names)

    def look(self, ref: CheckpointRef) -> Inspection:
        """As checkpoint/reader.py finds it, which imports torch; on the node `reader`."""
        ref = replace(ref, run=ref.run or self.run)
        place = self.root / folder(ref)
        try:
            self.check(self.reader)
            text = (place / MANIFEST).read_bytes()
        except FileNotFoundError:
            return Inspection(None, "it has no manifest, so it was never committed")
        except OSError as error:
            return Inspection(None, f"its manifest cannot be read: {error}", unsure=True)
        if ref.digest and hashlib.sha256(text).hexdigest() != ref.digest:
            return Inspection(None, "its manifest was altered")
        manifest = codec.decode(Manifest, text)
        for file in manifest.files:
            path = place / file.name
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
                return Inspection(manifest, f"{file.name} is missing or altered")
        return Inspection(manifest, ref=manifest.ref_as(text), signed=seals.is_valid(MANIFEST, text, KEYS))

    def found(self) -> tuple[CheckpointRef, ...]:
        """Of all runs, as the reader lists them."""
        places = [path.parts[-4:-1] for path in sorted(self.root.glob(f"run-*/step-*/*/{MANIFEST}"))]
        return tuple(
            CheckpointRef(int(step.removeprefix("step-")), WorldId.parse(e), run=run.removeprefix("run-"))
            for run, step, e in places
        )

    def whole(self) -> tuple[CheckpointRef, ...]:
        """All committed checkpoints of our run that verify."""
        (error, self.error), self.reader = (self.error, None), ""
        looks = [self.look(ref) for ref in self.found() if ref.run == self.run]
        self.error = error
        return tuple(look.ref for look in looks if look.ref and not look.fault)

    def saved_by_all(self, world_id: WorldId, ranks: int) -> int:
        """The newest step of which every rank of `world_id` has saved its part."""
        steps = [step for (step, of), who in self._savers.items() if of == world_id and len(who) == ranks]
        return max(steps, default=0)

    def position(self, ref: CheckpointRef) -> Position:
        return self.saved_positions[ref.step, ref.world_id]

    def damage_newest(self) -> bool:
        """Alter a file of the newest checkpoint, if there is an older one to fall back to."""
        whole = sorted((ref.world_id, ref.step) for ref in self.whole())
        if len(whole) < 2:
            return False
        world_id, step = whole[-1]
        (self.root / folder(CheckpointRef(step, world_id, run=self.run)) / "state.pt").write_bytes(b"damaged")
        self._spoilt.add((step, world_id))
        return True

    def spoilt(self, step: int, world_id: WorldId) -> bool:
        return (step, world_id) in self._spoilt
