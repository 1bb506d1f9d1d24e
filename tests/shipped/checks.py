"""Invariants after every step in a world of shipped code: the promises of tests/sim/checks.py, and more.

Stricter than there: two worlds that step are no exemption where they share a file or a completion; no job
fails while a whole checkpoint of its line is on disk and its budget is not spent; nothing that status names
is pruned; every wait ends, or is in status.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tests.shipped import neighbour
from tests.shipped.kubernetes import BEGAN
from tests.shipped.loop import Process
from tests.shipped.session import CONTROL
from tests.sim.checks import Checks
from tests.sim.promise import Broken, require
from tests.sim.ranks import Gang, Rank

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.status.progress import DETAILS_SECONDS
from ropeteam_trainer.agent.main import Agent
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, key_of
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Plan, WorldId
from ropeteam_trainer.coordinator.membership.commits import AWAITED_COMMIT_SECONDS

if TYPE_CHECKING:
    from tests.shipped.kubernetes import Object
    from tests.shipped.pod import SimPod
    from tests.shipped.site import Site

_CLOCK_MARGIN = timedelta(seconds=50)
"""A status may be written so much later than its operator looked at its clock: it was frozen meanwhile."""
_SOON = 1.0
"""A request is under way for so long."""
_LOOK_SECONDS, _REPORT_SECONDS = 10.0, 180.0
__all__ = ["ShippedChecks", "require"]


class Forgotten(Exception):
    """Status went back to before it knew the coordinator's pod, and nobody who knows it is reached: its
    worlds are numbered again (docs/architecture.md, 7). What follows is another job's history."""


class Written(NamedTuple):
    """The newest status that an operator wrote."""

    ahead: timedelta = timedelta()
    """By which its wall clock was."""
    at: datetime = BEGAN
    by: Process | None = None
    text: datetime | None = None
    """By the job's clock."""


def named_by(status: JobStatus) -> set[CheckpointKey]:
    lineage = status.checkpoint.lineage if status.checkpoint else ()
    return {CheckpointKey(WorldId.parse(ref.world), ref.step) for ref in lineage}


class ShippedChecks(Checks):
    def __init__(self, site: Site) -> None:
        super().__init__(cast(Any, site))
        self._site = site
        self.agents: dict[str, Agent] = {}
        self.came_back: set[CheckpointKey] = set()
        """Checkpoints that status had named no more, and names again: they may be gone."""
        self.past: list[Object] = []
        """The job before each write of an operator that had written before."""
        self.forgot = False
        """Status went back to before it knew the coordinator's pod."""
        self.left: set[str] = set()
        """Pods whose agent has ended by itself."""
        self.last_is_known = True
        """The operator had its time to learn of the last checkpoint."""
        self._lived_at = 0.0
        """When a world stepped last, or the operator could not know better."""
        self._written = Written()
        self._wrote_at: tuple[Process | None, float, float] = (None, 0.0, 0.0)
        """The last write: whose, by which clock, when."""
        self._idle_writes = 0
        """In a row."""
        self._was_over = False
        """Status has been Complete."""
        self._neighbour = neighbour.look(site.disk.root)
        site.loop.after(_LOOK_SECONDS, self._look)

    # ---- every wait is in status

    def _look(self) -> None:
        """Status says that ranks run only if one made a step not long ago, or the operator cannot know; that
        they are done, for as long as their last checkpoint may take."""
        site = self._site
        site.loop.after(_LOOK_SECONDS, self._look)
        reported = site.status.holds(ConditionType.RUNNING) and not site.status.finished
        if not reported or not site.operator_is_well() or any(rank.hung for rank in site.live_ranks()):
            self._lived_at = site.loop.now
        setup = site.setup
        limit = _REPORT_SECONDS + 3 * setup.lost + setup.fence + setup.start
        running = site.status.condition(ConditionType.RUNNING)
        if running is not None and running.reason == "WorldCompleting":
            limit += AWAITED_COMMIT_SECONDS
        silent = site.loop.now - self._lived_at
        require(silent < limit, "status says Running only of ranks that run", f"no step for {silent:.0f} s")

    def stepped(self, gang: Gang, step: int) -> None:
        self._lived_at = self._site.loop.now
        self._is_ours(gang.restored)
        super().stepped(gang, step)

    def _is_awake(self, rank: Rank) -> bool:
        return not rank.parent.frozen

    # ---- what was made

    def newest_step(self) -> int:
        return max((rank.step for rank in self.newest.ranks.values()), default=0) if self.newest else 0

    def worlds(self) -> frozenset[WorldId]:
        return frozenset(self._gangs)

    def base_after(self, formed: frozenset[WorldId]) -> int | None:
        """Where the first world continued that is not one of these. None: there is none."""
        later = [gang for world_id, gang in sorted(self._gangs.items()) if world_id not in formed]
        return (later[0].restored.step if later[0].restored else 0) if later else None

    # ---- two worlds

    def plan_is_one(self, gang: Gang, rank: Rank) -> None:
        """Or the first one was forgotten, and all of its pods have ended, or are cut off."""
        one, other = gang.plan, rank.plan
        try:
            if (one.whole is None) == (other.whole is None):
                super().plan_is_one(gang, rank)
            else:  # one of the agents is of the release before
                require(_sketch(one) == _sketch(other), "a world has one plan", one, other)
        except Broken:
            pods = [cast(Any, each.parent).process for each in gang.ranks.values()]
            received = [pod.alive and self._site.network.reaches(pod.node, CONTROL) for pod in pods]
            if self.forgot and not any(received):
                raise Forgotten from None
            raise

    def _older_steps(self, gang: Gang, newer: Gang, step: int) -> None:
        """Never at feature levels 0 and 1. Above, an island may live; what it writes must not count."""
        text = (gang.plan.world_id, "made step", step, "after", newer.plan.world_id, "had stepped")
        require(self._site.setup.feature_level >= 2, "one world advances", *text)
        require(not self.pods(gang.plan) & self.pods(newer.plan), "one world advances", *text)
        self.counts["steps of an island"] += 1

    def goes_back(self, past: JobStatus) -> None:
        """Status is to be as it was: what it names may be gone, and no operator knows its clock."""
        self.forgot |= not past.coordinator.pod_uid
        self.came_back |= named_by(past) - named_by(self._site.status)
        self._written = self._written._replace(text=None)

    # ---- the job's clock

    def job_time(self, status: JobStatus) -> datetime:
        return status.clock.job if status.clock else self._site.kubernetes.time()

    def _clock(self, new: JobStatus) -> None:
        """The operator's clock continues as time does, whatever wall clocks do. What a wall clock is further
        ahead than the one that wrote before counts, if that was another operator's (docs/critiques.md)."""
        now, writer = self._site.kubernetes.time(), self._site.writer
        ahead = new.clock.wall - now if new.clock else timedelta()
        old = self._written
        if new.clock and new.clock.job == old.text:
            return  # of a job that has ended it stands
        self._written = Written(ahead, now, writer, new.clock.job if new.clock else None)
        if old.text is None or new.clock is None:
            return
        unseen = max(ahead - old.ahead, timedelta()) if writer is not old.by else timedelta()
        passed, most = new.clock.job - old.text, now - old.at + unseen + _CLOCK_MARGIN
        require(timedelta() <= passed <= most, "the job's clock goes on as time does", passed, most)

    def _details(self, before: Object, after: Object) -> None:
        """Words and counts alone are written now and then, not each time that they change. Once is forgiven:
        an operator that fails after a write does not remember when it was."""
        writer, now = self._site.writer, self._site.loop.now
        last, self._wrote_at = self._wrote_at, (writer, writer.wall_ahead if writer else 0.0, now)
        soon = last[:2] == self._wrote_at[:2] and now - last[2] < DETAILS_SECONDS - _SOON
        old, new = before.get("status") or {}, after["status"]
        worth = not soon or old == new or _essence(old) != _essence(new)
        self._idle_writes = 0 if worth else self._idle_writes + 1
        require(self._idle_writes < 2, "words alone are not worth a write", new.get("reason"), now - last[2])

    def _gone(self, old: JobStatus, new: JobStatus) -> None:
        """Here the loop of an agent may are paused while its ranks continue: see _fenced."""

    # ---- hooks of this world

    def claimed(self, process: Process, plan: Plan) -> None:
        self.keeping.claims(cast(Any, self._pod_of(process)), plan.world_id)

    def _pod_of(self, process: Process) -> SimPod:
        return next(pod for pod in self._site.pods.values() if pod.process is process)

    def wrote(self, process: Process, grant: Grant) -> None:
        pod = self._pod_of(process)
        self._site.film.write(process.name, f"writes the manifest of {key_of(grant.ref)}")
        self._is_ours(grant.ref)
        self._is_ours(grant.parent)
        self.manifest_written(cast(Any, pod), grant)

    def pruned(self, places: tuple[CheckpointKey, ...]) -> None:
        """Nothing that status names, unless a backup has brought that back."""
        named = named_by(self._site.status) - self.came_back
        self.counts["folders pruned"] += len(places)
        self._neighbour_is_left_alone()
        lost = named & set(places)
        require(not lost or self._site.status.finished, "what status names is not pruned", sorted(lost))

    def _is_ours(self, ref: CheckpointRef | None) -> None:
        run = ref.run if ref else ""
        require(run in ("", self._site.disk.run), "another run is neither restored nor named", ref)

    def _neighbour_is_left_alone(self) -> None:
        require(neighbour.look(self._site.disk.root) == self._neighbour, "another run is left as it is")

    def pod_created(self, pod: Object) -> None:
        """The status saved now must already want this."""
        labels, status = pod["metadata"]["labels"], self._site.status
        require(not status.finished, "a finished job gets no pods", pod["metadata"]["name"])
        if labels["ropeteam.dev/role"] == "coordinator":
            wanted, named = status.coordinator.term, int(labels["ropeteam.dev/term"])
        else:
            slot = int(labels["ropeteam.dev/slot"])
            wanted = next((each.incarnation for each in status.slots if each.slot == slot), 0)
            named = int(labels["ropeteam.dev/incarnation"])
            begun = any(each.pod_uid for each in status.slots) or self._site.kubernetes.all("NetworkPolicy")
            previous = self._site.writer is not None and self._site.writer.previous
            require(bool(begun) or previous, "no gang is started before its NetworkPolicy", pod)
        require(named <= wanted, "intent before effect", pod["metadata"]["name"], "but status says", wanted)

    def saving(self, before: Object, after: Object) -> None:
        old = JobStatus.model_validate(before.get("status") or {})
        new = JobStatus.model_validate(after["status"])
        self._site.film.wrote_status(old, new, "")
        self.past += [before] if before.get("status") else []
        self._clock(new)
        self._details(before, after)
        self.saved(old, new)
        if new.holds(ConditionType.COMPLETE) and not old.holds(ConditionType.COMPLETE):
            self._completes()
        if new.holds(ConditionType.FAILED) and not old.holds(ConditionType.FAILED):
            self._fails(new)

    def _completes(self) -> None:
        """By the newest world that has stepped: what an island ends is not the job's end."""
        over = [world_id for world_id, ends in self._ends.items() if ends and all(ends.values())]
        newest = self.newest.plan.world_id if self.newest else None
        require(newest is None or newest in over, "the newest world completes", newest, over)
        if self._was_over:
            self.last_is_known = False  # status went back, and all that knew has ended: only the disk knows
        self._was_over = True

    def final(self) -> None:
        super().final()
        self._neighbour_is_left_alone()
        status, newest = self._site.status, self.newest
        if not status.holds(ConditionType.COMPLETE) or self._site.setup.feature_level < 2 or newest is None:
            return
        writer = self._site.pods[newest.plan.members[0].pod_uid]
        was_killed = not writer.process.alive and writer.site not in self.left
        saved = self._site.disk.saved_by_all(newest.plan.world_id, newest.plan.world_size)
        known = status.checkpoint.lineage[0].step if status.checkpoint and status.checkpoint.lineage else 0
        require(
            saved <= known or was_killed or not self.last_is_known,
            "the last checkpoint is committed and known",
            saved,
            known,
        )

    def _fails(self, status: JobStatus) -> None:
        """Not while a whole checkpoint of its line is on disk, and its budget is not spent."""
        failed = status.condition(ConditionType.FAILED)
        reason = failed.reason if failed else ""
        self.counts[f"failed: {reason}"] += 1
        if not reason.startswith("Checkpoint"):
            return
        lineage = status.checkpoint.lineage if status.checkpoint else ()
        whole = [ref for ref in self._site.disk.whole() if self._of_line(ref, lineage)]
        text = failed.message if failed else ""
        require(not whole, "no job fails beside a whole checkpoint of its line", reason, text, whole)

    def _of_line(self, ref: CheckpointRef, lineage: Any) -> bool:
        if not lineage:
            return True
        saved = {(each.step, WorldId.parse(each.world_id)) for each in lineage}
        return bool(saved & set(self._past((ref.step, ref.world_id)))) or (ref.step, ref.world_id) in saved


def _sketch(plan: Plan) -> tuple[object, ...]:
    """Fields of a plan that every agent knows, whether it was given all of it or its part."""
    whole = plan.whole or plan.part(plan.members[0].slot).whole
    assert whole is not None
    text = plan.world_id, plan.attempt, plan.store_host, plan.store_port, plan.restart_count, plan.origin
    return (*text, plan.members[0], whole.slots, whole.ranks, whole.incarnations)


def _essence(status: Object) -> Object:
    """All but counts, and words for people."""
    fields = ("clock", "conditions", "reason", "launcher", "workers", "state", "coordinator")
    text = [
        (each["type"], each["status"], each.get("observedGeneration"))
        for each in status.get("conditions", ())
    ]
    state = "Pending" if status.get("state") == "Starting" else status.get("state")
    coordinator = {key: value for key, value in status.get("coordinator", {}).items() if key != "boot"}
    rest = {key: value for key, value in status.items() if key not in fields}
    return {**rest, "said": text, "state": state, "coordinator": coordinator}
