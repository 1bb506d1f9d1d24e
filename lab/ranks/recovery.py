"""One job under sync Exact that recovers in the step: its ranks, and what its coordinator and its agents send
them when some are lost.

Order, as in preserving.py and keepingrules.py: lose() names ranks without which the others continue ->
replace() starts the next world, in which these are started again, and sends it to the others. Steps are
permitted by the test, so that it knows in which step a fault is.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lab.ranks.processes import Ended, FakeAgent, RankGroup
from ropeteam_trainer.checkpoint.decisions.manifest import Manifest
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, LiveWorld, ToRank
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

STEP_SECONDS = 0.1
"""Of each step, so that a new rank needs some dozen of them to come."""


class Step(NamedTuple):
    """A step that a rank has printed."""

    step: int
    digest: str
    loss: str


def lines_of(output: str) -> list[Step]:
    """Steps in the output of one rank. A rank that was started again prints behind the one before it."""
    found = (line.split() for line in output.splitlines() if line.startswith("STEP "))
    return [Step(int(step), digest, loss) for _, step, digest, loss in found]


def fields(
    micro_batches: int, inner: Mapping[str, int] | None = None, catch_up: str = "Pause"
) -> dict[str, Any]:
    """Fields of spec.strategy. inner: parallelism within each replica."""
    more = {"parallelism": dict(inner)} if inner else {}
    sync = {"type": "Exact", "catch_up": catch_up}
    return {"sync": sync, "batch": {"micro_batches": micro_batches}, **more}


class RecoveringJob:
    """Use as a context manager: what still lives at the end is killed."""

    def __init__(
        self,
        path: Path,
        ranks: int,
        micro_batches: int = 6,
        every_steps: int | None = None,
        number: int = 1,
        inner: Mapping[str, int] | None = None,
        catch_up: str = "Pause",
    ) -> None:
        """number: of the first world. inner: parallelism within each replica."""
        self.ranks, self.lost = ranks, frozenset[int]()
        self.replicas = ranks // math.prod((inner or {}).values())
        self._first = WorldId(1, 0, number)
        saved = CheckpointConfig(str(path / "saved"), every_steps)
        path = path / f"world{number}"
        self.group = RankGroup(path, ranks)
        self.agent = FakeAgent(path, ranks, saved, self._first)
        self._fields = fields(micro_batches, inner, catch_up)
        self._stores: list[TCPStore] = []
        self.live: LiveWorld | None = None
        """The world of now. None: the first."""
        self._committed: tuple[int, WorldId] | None = None
        self._deputy: WorldId | None = None
        self._started_in = dict.fromkeys(range(ranks), self._first)
        self._reports = dict.fromkeys(range(ranks), 0)
        """Of each rank, how many times those before it have reported that they can continue."""
        self.permitted, self._file = 0, path / "permitted"
        self.permit(0)

    def __enter__(self) -> RecoveringJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.group.kill()
        self.agent.close()

    def start(
        self,
        *order: str,
        faults: Mapping[int, str] | None = None,
        restore: Sequence[CheckpointRef] = (),
        model: str = "everything",
    ) -> RecoveringJob:
        """Start all ranks, and return once each of them can continue without the others. faults: by rank,
        as in recovered.py. model: as in exact.py."""
        self.group.environment = {"PERMITTED": str(self._file), "STEP_SECONDS": str(STEP_SECONDS)}
        arguments = ("recovered.py", json.dumps(self._fields), model, "0", *order)
        strategy = codec.from_plain(Strategy, self._fields)
        more: dict[str, Any] = {"replica_ranks": strategy.replica_ranks, "restore": restore}
        more["strategy"] = strategy
        self.group.environment |= {f"FAULT_{rank}": text for rank, text in (faults or {}).items()}
        self.group.start(*arguments, agent=self.agent, **more)
        self.agent.wait(lambda: all(map(self.can_continue, range(self.ranks))))
        return self

    @property
    def started(self) -> tuple[int, ...]:
        """Ranks that the world of now has started."""
        return self.live.started if self.live else (*range(self.ranks),)

    # ---- steps

    def permit(self, step: int, last: int = 0) -> None:
        self.permitted = step
        new = self._file.with_suffix(".new")
        new.write_text(f"{step} {last}")
        new.replace(self._file)

    def release(self) -> None:
        """Let calls continue that a fault holds."""
        self._file.with_suffix(".released").touch()

    def steps_done(self, rank: int) -> int:
        heartbeat = self.agent.heartbeat(rank)
        assert isinstance(heartbeat, Beat)
        return heartbeat.step

    def make_steps(self, count: int) -> None:
        """Return once all ranks that are not lost have made so many steps."""
        self.permit(self.permitted + count)
        living = [*self.living()]
        self.agent.wait(lambda: all(self.steps_done(rank) >= self.permitted for rank in living))

    def step_until(self, condition: Callable[[], Any]) -> None:
        """Permit one step after the other until this holds."""

        def is_next_due() -> bool:
            able = [rank for rank in self.living() if self.can_continue(rank)]
            return condition() or all(self.steps_done(rank) >= self.permitted for rank in able)

        while not condition():
            self.agent.wait(is_next_due)
            self.permit(self.permitted + 1)

    def finish(self, steps: int = 2) -> Ended:
        """Let the training end after so many more steps, and wait for that."""
        self.permit(self.permitted + steps, self.permitted + steps)
        return self.group.wait()

    # ---- ranks

    def living(self) -> Iterable[int]:
        return (rank for rank in range(self.ranks) if rank not in self.lost)

    def can_continue(self, rank: int) -> bool:
        """Whether the rank has reported that it can continue without others; a new one: that it has
        joined."""
        return len(self.agent.received(rank, "regroups")) > self._reports[rank]

    def dead(self) -> set[int]:
        """Ranks that have died and do not count as lost yet. By themselves end only new ones that have not
        joined: with the rank that sends them the state."""
        found = {rank for rank in self.living() if self.group.exit_code(rank) is not None}
        killed = {rank for rank in found if self.group.exit_code(rank) == -signal.SIGKILL}
        for rank in filter(self.can_continue, found):
            assert rank in self._with_mates(killed), f"rank {rank} has ended by itself"
        return found

    def _with_mates(self, ranks: Iterable[int]) -> frozenset[int]:
        """The ranks, and all others of their replicas."""
        size = self.ranks // self.replicas
        replicas = {rank // size for rank in ranks}
        return frozenset(rank for rank in range(self.ranks) if rank // size in replicas)

    def await_faults(self, *ranks: int) -> None:
        """Return once these ranks have killed themselves."""
        self.agent.wait(lambda: self.dead() >= {*ranks})

    def lose(self, *ranks: int, killed: bool = True, deputy: WorldId | None = None) -> None:
        """Count these ranks as lost with their mates, and new ones that have not joined yet, and send that to
        the others. killed: False: they may live on, as on a node that is not reached any more. deputy: number
        under which the others save from then on."""
        new = (rank for rank in self.started if not self.can_continue(rank))
        self.lost |= self._with_mates({*ranks, *new})
        for rank in self.lost if killed else ():
            self.group.kill_one(rank)
        if deputy:
            self._deputy = self.agent.world_id = deputy
        self._send()

    def replace(self, faults: Mapping[int, str] | None = None) -> None:
        """Start the next world, with new ranks in place of the lost ones."""
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores.append(store)
        world_id = WorldId(1, 0, self._first.n + len(self._stores))
        started, self.lost, self._deputy = (*sorted(self.lost),), frozenset(), None
        self._started_in |= dict.fromkeys(started, world_id)
        saves_as = self.agent.world_id = self._started_in[0]
        count = len(self._stores)
        self.live = LiveWorld(world_id, "127.0.0.1", store.port, started, saves_as, count)
        strategy = codec.from_plain(Strategy, self._fields)
        plan = self.agent.plan(
            strategy=strategy,
            world_id=str(world_id),
            started=started,
            saves_as=str(saves_as),
            replica_ranks=strategy.replica_ranks,
        )
        for rank in started:
            self.group.kill_one(rank)
            (self.agent.path / f"page.{rank}").write_bytes(bytes(PAGE_SIZE))
            self._reports[rank] = len(self.agent.received(rank, "regroups"))
            environment = {
                "MASTER_PORT": str(store.port),
                config.STORE_ADDRESS: f"127.0.0.1:{store.port}",
                "TORCHELASTIC_RESTART_COUNT": str(count),
                f"FAULT_{rank}": (faults or {}).get(rank, ""),
            }
            self.group.restart(rank, plan, environment)
        self._send()

    def join(self) -> None:
        """Step until all new ranks have joined."""
        self.step_until(lambda: all(map(self.can_continue, self.living())))

    def recover(self, steps: int = 2) -> None:
        """Make so many steps without the lost ranks, then replace them, and step until the new ones have
        joined."""
        self.make_steps(steps)
        self.replace()
        self.join()

    def commit_alone(self, step: int, *ranks: int) -> Manifest:
        """Commit the checkpoint that these ranks, a replica, have saved for all, and send that to all."""
        manifest = self.agent.commit(step, ranks, len(ranks))
        self._note_committed(step)
        return manifest

    def commit(self, step: int) -> None:
        """Commit the checkpoint that all have saved, and send that to all."""
        self.agent.commit(step)
        self._note_committed(step)

    def _note_committed(self, step: int) -> None:
        assert self.agent.world_id
        self._committed = step, self.agent.world_id
        self._send()

    def _send(self) -> None:
        """Send the agents' lines. New ranks have their world in their environment. A committed step is named
        if the name of saves is still that of its checkpoint."""
        step, name = self._committed or (None, None)
        committed = step if name in (self._started_in[0], self._deputy) else None
        for rank in self.living():
            if self.can_continue(rank):
                is_new = self.live is None or self._started_in[rank] == self.live.world_id
                live = None if is_new else self.live
                lost, deputy = (*sorted(self.lost),), self._deputy
                line = ToRank(committed_step=committed, live_world=live, lost=lost, saves_as=deputy)
                with suppress(OSError):  # it has just ended
                    self.agent.send(line, [rank])
