"""Invariants after every step, whatever happened (docs/architecture.md: fencing, promises).

The checks know the truth that no part of the system knows as a whole: which ranks made which step, what
each manifest descends from, which ranks reached the end. Each raises Broken with a sentence; the history that
led there is the bug.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.sim.lines import KeepingChecks, LineChecks
from tests.sim.promise import require
from tests.sim.ranks import Gang, Rank
from tests.sim.reported import StatusChecks, wrong_event
from tests.sim.servers import ServerConnection

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.objects.actions import Action, CreatePod, DeleteJob, DeletePod, DeleteService
from ropeteam.core.seen.observation import Observation
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Plan, ProcessExit, WorldId
from ropeteam_trainer.data.decisions.plan import Position

if TYPE_CHECKING:
    from tests.sim.agent_process import Agent
    from tests.sim.ranks import Rank
    from tests.sim.world import World

CheckpointKey = tuple[int, WorldId]
"""A checkpoint's step and world."""
_SAMPLE = 7
_LOOKS = 5
_FENCE_MARGIN = 1.5
"""Two ticks of an agent, and a kill."""
_SETTLES_WITHIN = 5
_MANY_WRITES, _HOT_SECONDS = 40, 4.0


def place(ref: CheckpointRef | None) -> CheckpointKey | None:
    return (ref.step, ref.world_id) if ref else None


class Checks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.newest: Gang | None = None
        self._gangs: dict[WorldId, Gang] = {}
        self._parents: dict[CheckpointKey, CheckpointKey | None] = {}
        """Of every manifest ever written: what it truly descends from."""
        self._newest: dict[WorldId, CheckpointKey] = {}
        self._pods: dict[str, frozenset[str]] = {}
        """By the hash of a plan."""
        self._ends: dict[WorldId, dict[int, bool]] = {}
        """Ranks that ended, and whether their script was over; by the first world of their line."""
        self._sizes: dict[WorldId, int] = {}
        self._ended: dict[tuple[WorldId, int], WorldId] = {}
        """When in the line that process was started. One that was cut off may end after its successor."""
        self.lines = LineChecks(world)
        self.status, self.keeping = StatusChecks(world), KeepingChecks()
        self._decisions = 0
        self._writes: deque[float] = deque(maxlen=_MANY_WRITES)
        self.counts: Counter[str] = Counter()

    # ---- one world advances

    def began(self, gang: Gang, step: int) -> None:
        world_id = gang.plan.world_id
        require(world_id not in self._gangs, "a world forms once", world_id)
        self._gangs[world_id] = gang
        self.counts["worlds"] += 1
        if gang.restored is None and self._world.script.feature_level >= 2:
            require(step == 0, "without a restore a world begins at step 0", world_id, step)
        if gang.restored is not None:
            spoilt = self._world.disk.spoilt(gang.restored.step, gang.restored.world_id)
            require(not spoilt, "a world goes on from a checkpoint that verifies", gang.restored)

    def continues(self, gang: Gang, plan: Plan) -> None:
        """A later world that starts ranks beside others of these, or the number of a deputy."""
        self._gangs[plan.world_id] = gang

    def stepped(self, gang: Gang, step: int) -> None:
        highest = self.newest
        if highest is None or gang.plan.world_id > highest.plan.world_id:
            self.newest = gang
            if self._world.script.feature_level < 2:
                self._fenced(gang)
        elif gang is not highest:
            self._older_steps(gang, highest, step)
        self.status.stepped(gang.plan.world_id, step)
        self.counts["steps"] += 1

    def _fenced(self, gang: Gang) -> None:
        """No check of what a script writes by itself: when a world steps, no older one may run."""
        for rank in self._world.live_ranks():
            text = f"rank {rank.number} of {rank.plan.world_id} beside {gang.plan.world_id}"
            ended = rank.plan.world_id >= gang.plan.world_id or not self._is_awake(rank)
            require(ended, "ranks of an older world have ended", text)

    def _is_awake(self, rank: Rank) -> bool:
        """A process that is paused, or was until a moment ago, has not looked at its clock yet."""
        return any(agent is rank.parent and agent.is_awake for agent in self._world.live_agents())

    def _older_steps(self, gang: Gang, newer: Gang, step: int) -> None:
        """Allowed only where checkpoints are commits, and where the two share no process: one cut off as a
        whole.
        """
        text = (gang.plan.world_id, "made step", step, "after", newer.plan.world_id, "had stepped")
        require(self._world.script.feature_level >= 2, "one world advances", *text)
        require(not self.pods(gang.plan) & self.pods(newer.plan), "one world advances", *text)

    def ranks_start(self, agent: Agent, plan: Plan) -> None:
        """Only who made a plan may have it started: one that was half delivered is superseded, never
        completed.
        """
        orders = agent.state.orders
        mine = orders is not None and (orders.term, orders.boot) == (plan.world_id.term, plan.world_id.boot)
        require(mine, "a plan is started by its own coordinator's orders", plan.world_id, orders)
        steps = [ref.step for ref in plan.restore]
        ordered = steps == sorted(steps, reverse=True)
        require(ordered, "a plan names the newest checkpoint first", plan.restore)
        self._pods[plan.hash] = self.pods(plan)

    def pods(self, plan: Plan) -> frozenset[str]:
        """Of all members: each agent knows its part of a plan, with itself in it."""
        return self._pods.get(plan.hash, frozenset()) | {member.pod_uid for member in plan.members}

    def ranks_live(self, agent: Agent) -> None:
        """Called when ranks start: nothing of a former world may live in the pod."""
        world_ids = {rank.started_in for rank in agent.every_rank if rank.alive}
        require(
            len(world_ids) <= 1,
            "ranks that two worlds started never live together",
            agent.pod.name,
            world_ids,
        )

    def alone(self, agent: Agent, seconds: float) -> None:
        """No answer came for so long, and it was awake all the time."""
        fence = agent.config.timeouts.fence
        living = [rank.number for rank in agent.ranks.values() if rank.alive]
        late = seconds > fence + _FENCE_MARGIN and bool(living)
        require(not late, "an agent alone for fenceSeconds ends its ranks", agent.pod.name, seconds, living)

    def store_is_missed(self, agent: Agent, looks: int) -> None:
        """So often in a row its ranks were found to live on without the store that it held for them."""
        require(looks < _LOOKS, "a store's end is never a silent wait", agent.pod.name)

    def plan_is_one(self, gang: Gang, rank: Rank) -> None:
        one, other = (replace(plan, restore=()).hash for plan in (gang.plan, rank.plan))
        require(one == other, "a world has one plan", gang.plan, rank.plan)

    # ---- one lineage commits

    def _ancestors(self, youngest: CheckpointKey | None) -> set[CheckpointKey | None]:
        found = {youngest}
        while youngest is not None:
            youngest = self._parents.get(youngest)
            found.add(youngest)
        return found

    def manifest_written(self, agent: Agent, grant: Grant) -> None:
        """The grant names what the state truly descends from: the world's last commit, or what it continued
        from.
        """
        world_id, setup = grant.ref.world_id, self._world.setup
        began = self.lines.of.get(world_id) if setup.servers else self._gangs.get(world_id)
        require(began is not None, "only a formed world commits", world_id)
        assert began is not None
        self.counts["commits of deputies"] += self.keeping.commits(agent, world_id)
        size = began.plan.world_size if isinstance(began, Gang) else setup.world_size
        self._check_files(grant, size, isinstance(began, Gang) and began.lives_on)
        mine = (grant.ref.step, world_id)
        if mine in self._parents:
            return
        line = began.world_id if isinstance(began, ServerConnection) else began.line
        expected = self._newest.get(line) or place(began.restored)
        # A line continues from memory: the leading rank may die while its last manifest is being written, and
        # the next one is granted without it. Of several worlds, only the newest may be the parent.
        continues = isinstance(began, ServerConnection) or began.lives_on
        past = self._ancestors(expected) if continues else {expected}
        require(place(grant.parent) in past, "a manifest's parent is its past", mine, grant.parent, expected)
        self._parents[mine], self._newest[line] = expected, mine
        self.counts["commits"] += 1

    def _check_files(self, grant: Grant, size: int, exact: bool) -> None:
        """All ranks have saved, or under sync Exact one for all."""
        setup, names = self._world.setup, {file.name for file in grant.files}
        if exact and grant.world_size == setup.mates < size:
            require(names in setup.whole_files, "one replica has saved all", grant.ref, names)
            self.counts["commits by one for all"] += 1
            return
        require(grant.world_size == size, "a commit is of all ranks", grant.ref, grant.world_size)
        savers = [setup.lead_rank] if setup.servers else range(size)
        wanted = {"state.pt", *(f"rank-{rank}.pt" for rank in savers)}
        require(names == wanted, "a commit has the files of all who save", grant.ref, names ^ wanted)

    def _past(self, newest: CheckpointKey | None) -> list[CheckpointKey]:
        line: list[CheckpointKey] = []
        while newest is not None:
            line.append(newest)
            newest = self._parents.get(newest)
        return line

    def _lineage(self, old: JobStatus, new: JobStatus) -> None:
        before, after = _places(old), _places(new)
        if before == after or not after:
            require(bool(after) or not before, "the lineage never vanishes", before)
            return
        past = self._past(after[0])
        for each in after:
            require(each in self._parents, "the lineage names what was committed", each)
        steps = [each for each in past if each in after]
        require(list(after) == steps, "the lineage is one line of descent", after, past)
        if before and before[0] not in past and not self._world.disk.spoilt(*before[0]):
            head = before[0]
            require(False, "the lineage never forks", head, "is not in the past of", after[0])

    def left_in_peace(self) -> None:
        """Nothing was wrong when the newest world began to drain."""
        gang = self.newest
        assert gang is not None
        made = max(rank.step for rank in gang.ranks.values())
        saved, _ = self._newest.get(gang.line, (0, None))
        require(made == saved, "who leaves in peace loses no step", gang.plan.world_id, made, saved)
        self.counts["left in peace"] += 1

    # ---- the end

    def rank_ended(self, rank: Rank, exit: ProcessExit) -> None:
        self.status.ended(rank, exit)
        done = exit.clean or (exit.signal is not None and rank.finished)
        key = (rank.plan.server_generation, rank.number)
        if rank.plan.world_id >= self._ended.get(key, rank.plan.world_id):
            self._ended[key] = rank.plan.world_id
            self._ends.setdefault(rank.plan.server_generation, {})[rank.number] = done
            self._sizes[rank.plan.server_generation] = rank.plan.world_size

    def agent_exits(self, code: int, unaware: Sequence[str] = ()) -> None:
        """`unaware`: pods whose agents are in touch, and do not know that the job is complete."""
        if code == 0:
            require(bool(self._over), "exit 0 only if all ranks reached the end", self._ends)
            require(not unaware, "who is released leaves nobody behind who does not know", unaware)

    @property
    def _over(self) -> list[WorldId]:
        """Generations of which all ranks reached the end that the newest world has."""
        absent = {self.newest.line: self.newest.plan.absent} if self.newest else {}
        ranks = {line: {*range(size)} - {*absent.get(line, ())} for line, size in self._sizes.items()}
        return [line for line, ends in self._ends.items() if all(map(ends.get, ranks[line]))]

    # ---- the operator

    def decided(self, seen: Observation, decision: Decision) -> None:
        require(bool(decision.why.strip()), "every decision has a why", decision)
        lie = wrong_event(seen.status, decision)
        require(not lie, "an event announces what happened", lie, decision.why)
        writes = decision.status != seen.status
        if writes and not seen.status.finished:
            require(
                not decision.actions, "intent before effect: a new status carries no actions", decision.why
            )
        for action in decision.actions:
            if isinstance(action, DeletePod | DeleteService | DeleteJob):
                require(bool(action.uid), "deletes carry a UID", action)
        self._decisions += 1
        if self._decisions % _SAMPLE == 0:
            self._settles(seen, decision)

    def _settles(self, seen: Observation, decision: Decision) -> None:
        """Nothing changed but what it saved itself: soon it has nothing more to save."""
        status = decision.status
        for _ in range(_SETTLES_WITHIN):
            again = decide(seen.model_copy(update={"status": status})).status
            if again == status:
                return
            status = again
        require(False, "a settled job is left alone", decision.why)

    def acts(self, action: Action) -> None:
        """The status saved now must already want this."""
        status = self._world.kubernetes.job.status
        if not isinstance(action, CreatePod):
            return
        labels = action.manifest["metadata"]["labels"]
        require(not status.finished, "a finished job gets no pods", action)
        if labels["ropeteam.dev/role"] == "coordinator":
            wanted, named = status.coordinator.term, int(labels["ropeteam.dev/term"])
        else:
            slot = int(labels["ropeteam.dev/slot"])
            wanted = next((each.incarnation for each in status.slots if each.slot == slot), 0)
            named = int(labels["ropeteam.dev/incarnation"])
            begun = any(each.pod_uid for each in status.slots) or self._world.kubernetes.policies
            require(bool(begun), "no gang is started before its NetworkPolicy", action)
        require(named <= wanted, "intent before effect", action, "but status says", wanted)

    def saved(self, old: JobStatus, new: JobStatus) -> None:
        self.counts["writes"] += 1
        self._writes.append(self._world.clock.now)
        hot = len(self._writes) == _MANY_WRITES and self._writes[-1] - self._writes[0] < _HOT_SECONDS
        require(not hot, "no hot loop", f"{_MANY_WRITES} status writes in {_HOT_SECONDS} s")
        for kind in (ConditionType.COMPLETE, ConditionType.FAILED):
            require(not old.holds(kind) or new.holds(kind), "terminal is final", kind)
        both = new.holds(ConditionType.COMPLETE) and new.holds(ConditionType.FAILED)
        require(not both, "a job ends one way", new.conditions)
        if new.holds(ConditionType.COMPLETE) and not old.holds(ConditionType.COMPLETE):
            require(bool(self._over), "Complete only if all ranks reached the end", self._ends)
        for one, other, what in _growing(old, new):
            require(one <= other, "numbers never go back", what, one, other)
        self._budget(old, new)
        self._lineage(old, new)
        lie = self.status.lies(new)
        require(not lie, "what is told of a fault is true", lie)
        self._gone(old, new)

    def _gone(self, old: JobStatus, new: JobStatus) -> None:
        living = self.status.living(old, new)
        require(not living, "a pod that is told to be gone has no ranks", living)

    def job_time(self, status: JobStatus) -> datetime:  # noqa: ARG002 (not of this world's)
        """By the job's clock, when this status was written."""
        return self._world.kubernetes.time()

    def _budget(self, old: JobStatus, new: JobStatus) -> None:
        now, most = self.job_time(new), self._world.setup.max_failures
        spent = min(old.failures.charged, new.failures.charged) > most
        require(not spent or new.finished, "an overdrawn budget ends the job at once", new.failures)
        retained = {charge.id for charge in new.failures.charges}
        window = self._world.setup.window_seconds
        for charge in old.failures.charges:
            age = (now - charge.time).total_seconds()
            require(charge.id in retained or age >= window, "the budget never grows back", charge.id, age)
        for each in new.incidents:
            age = (now - each.time).total_seconds()
            free = not each.final or not each.charged or age >= window or each.id in retained
            require(free, "what is settled as charged is charged", each.id, each.cause)
        causes = {each.id: each.cause for each in new.incidents}
        for each in old.incidents:
            if each.final and each.id in causes:
                require(causes[each.id] == each.cause, "a settled cause is final", each.id, each.cause)

    def same(self, what: str, one: Any, other: Any) -> None:
        require(one == other, f"{what} is the same", one, other)

    # ---- after the quiet end

    def _position(self, ref: CheckpointRef | None) -> Position:
        return self._world.disk.saved_positions[ref.step, ref.world_id] if ref else Position()

    def final(self) -> None:
        """The budget was not overdrawn, and every sample was used once in the surviving lineage."""
        script, status = self._world.script, self._world.kubernetes.job.status
        spent = status.failures.charged > self._world.setup.max_failures
        require(not spent or status.finished, "an overdrawn budget ends the job", status.failures)
        if script.feature_level < 3 or not status.holds(ConditionType.COMPLETE):
            return
        if self._world.setup.servers:
            steps = {line.world_id: line for line in self.lines.of.values()}[max(self._over)].steps
            require(set(steps.values()) == {script.total_steps}, "every step is acknowledged", steps)
            return
        gang: Gang | None = self._gangs[max(self._over)]
        upper, used = script.total_steps, Counter[tuple[int, int]]()
        while gang is not None:
            base = gang.restored.step if gang.restored else 0
            at = self._position(gang.restored)
            for _ in range(base, upper):
                for rank in range(gang.plan.world_size):
                    used.update(
                        (at.epoch, sample) for sample in script.data.share(at, rank, gang.plan.world_size).ids
                    )
                at = script.data.after(at)
            upper = base
            gang = self._gangs[gang.restored.world_id] if gang.restored else None
        per_epoch = script.data.steps(1)
        full = {
            (epoch, n) for epoch in range(script.total_steps // per_epoch) for n in range(script.data.samples)
        }
        twice = [sample for sample, times in used.items() if times != 1]
        require(not twice and full <= set(used), "every sample is used once", twice, full - set(used))


def _places(status: JobStatus) -> tuple[CheckpointKey, ...]:
    lineage = status.checkpoint.lineage if status.checkpoint else ()
    return tuple((ref.step, WorldId.parse(ref.world)) for ref in lineage)


def _growing(old: JobStatus, new: JobStatus) -> list[tuple[int, int, str]]:
    numbers = [(old.attempt, new.attempt, "attempt"), (old.coordinator.term, new.coordinator.term, "term")]
    before, after = ({slot.slot: slot.incarnation for slot in each.slots} for each in (old, new))
    used, highest = max(before.values(), default=0), max(after.values(), default=0)
    numbers += [(before[slot], after.get(slot, highest), f"slot {slot}") for slot in before]
    return numbers + [(used + 1, after[slot], f"new slot {slot}") for slot in after.keys() - before.keys()]
