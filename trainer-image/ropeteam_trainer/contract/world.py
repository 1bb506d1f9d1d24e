"""Types that messages share: numbers of worlds, plans, checkpoints, and how a process can exit."""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ropeteam_trainer.contract import codec


@dataclass(frozen=True, order=True)
class WorldId:
    """Number of one world. Ordered by coordinator pod (term), then its restart (boot), then its n-th
    world."""

    term: int
    boot: int
    n: int

    def __str__(self) -> str:
        return f"{self.term}.{self.boot}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> WorldId:
        """Inverse of str(). Raises ValueError."""
        term, boot, n = text.split(".")
        return cls(int(term), int(boot), int(n))


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: `<path>/run-<run>/step-<step>/<world>/manifest.json`, and the digest of that
    manifest."""

    step: int
    world_id: WorldId = field(metadata={codec.JSON_NAME: "epoch"})
    digest: str = ""
    """sha256 of the manifest's bytes, hex. Empty while the commit is granted but not yet confirmed as
    written."""
    run: str = field(default="", compare=False)
    """UID of the job that saved it, if known: the digest identifies it, too."""


@dataclass(frozen=True)
class ShardFile:
    """One file of a checkpoint. `name` is relative to the checkpoint's folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Member:
    """One slot of a world."""

    slot: int
    incarnation: int
    pod_uid: str
    address: str
    """IP of the pod, on which its ranks listen."""
    processes: int
    """Ranks on this slot. Ranks are dense in slot order: the first rank of a slot is the sum of those
    before."""
    started_in: WorldId | None = codec.stored_as("born", None)
    """The earlier world that started its ranks, if they live on: its agent adopts the new world, and starts
    only those in `Plan.started`. None: they are started now."""

    @property
    def is_absent(self) -> bool:
        """Whether the world does not have this slot: its ranks are in `Plan.absent`."""
        return self.incarnation < 0

    @classmethod
    def absent(cls, slot: int, processes: int) -> Member:
        return cls(slot, -1, "", "", processes)


@dataclass(frozen=True)
class PlanSummary:
    """Summary of a whole plan, in a part of it."""

    hash: str
    slot: int
    """Slot that the part is for; -1: it is no part, but was put together from parts."""
    first_rank: int
    """First rank of that slot."""
    slots: int
    ranks: int
    incarnations: tuple[int, ...]
    """Incarnations of all members, in slot order, run-length encoded: count, incarnation, count, incarnation
    ... So every agent can report the members to a coordinator that was restarted."""


@dataclass(frozen=True)
class Plan:
    """Members, ranks, store and checkpoint of one world. Immutable: agents compare hashes, never contents.

    An agent receives its part: without the members that it has nothing to do with.
    """

    world_id: WorldId = field(metadata={codec.JSON_NAME: "epoch"})
    attempt: int
    members: tuple[Member, ...]
    """In slot order."""
    store_host: str
    store_port: int
    restore: tuple[CheckpointRef, ...] = ()
    """Checkpoints to restore, best first. Empty: resume as `WorkerConfig.resume` says (first world of a
    job)."""
    restart_count: int = 0
    origin: WorldId | None = None
    """The first world of the generation that this world continues: ranks that have been in each of its worlds
    still have the state of the training in memory (parameter servers; any rank under sync Exact). None: a
    generation begins, all ranks resume from `restore`."""
    started: tuple[int, ...] = ()
    """Under sync Exact, if ranks live on: the others, which get the state of the training from them. If none
    does, but some are absent: all but the first replica, which begins alone. () if all begin together."""
    replica_ranks: int = 1
    """Under sync Exact, ranks of a replica, as the coordinator counts: they are lost, and save, together."""
    absent: tuple[int, ...] = ()
    """Under sync Exact, ranks that this world does not have: it trains without them, until a later one starts
    them."""
    whole: PlanSummary | None = None
    """Summary of the whole plan. None: `members` are all members."""

    def part(self, slot: int, others: Iterable[int] = ()) -> Plan:
        """Plan for the agent of `slot`: with its own member, those of `others`, and a summary of the whole.
        Raises KeyError for a slot that is no member."""
        members = tuple(self._by_slot[each] for each in sorted({slot, *others}))
        first = self.first_rank(slot)
        known = self.whole.incarnations if self.whole else self._incarnations
        whole = PlanSummary(self.hash, slot, first, self.slots, self.world_size, known)
        return replace(self, members=members, whole=whole)

    @functools.cached_property
    def _incarnations(self) -> tuple[int, ...]:
        """Incarnations of the members, as in PlanSummary. Valid for a whole plan."""
        runs = itertools.groupby(self.members, key=lambda member: member.incarnation)
        return tuple(number for incarnation, run in runs for number in (len(tuple(run)), incarnation))

    @property
    def slots(self) -> int:
        """Number of members of the whole plan."""
        return self.whole.slots if self.whole else len(self.members)

    @functools.cached_property
    def world_size(self) -> int:
        """Number of ranks of the whole plan."""
        return self.whole.ranks if self.whole else sum(member.processes for member in self.members)

    @property
    def server_generation(self) -> WorldId:
        """The world in which this server generation began: this one, if no state was preserved."""
        return self.origin or self.world_id

    @property
    def preserved(self) -> tuple[int, ...]:
        """Slots whose ranks live on from an earlier world."""
        return tuple(member.slot for member in self.members if member.started_in)

    def started_in(self, slot: int) -> WorldId:
        """The world that started the ranks of `slot`; their checkpoints are stored under its name."""
        member = self.member(slot)
        return (member and member.started_in) or self.world_id

    def first_rank(self, slot: int) -> int:
        """The lowest rank of `slot`. Raises KeyError if it is not a member, or this part is for another."""
        if self.whole and self.whole.slot >= 0:
            return {self.whole.slot: self.whole.first_rank}[slot]
        return self._first_ranks[slot]

    def ranks(self, slot: int) -> range:
        """Ranks of `slot`. Raises KeyError, as first_rank() does."""
        first = self.first_rank(slot)
        return range(first, first + self._by_slot[slot].processes)

    def member(self, slot: int) -> Member | None:
        """Member of `slot`. None: it is not in the plan, or not in this part."""
        return self._by_slot.get(slot)

    @functools.cached_property
    def _by_slot(self) -> dict[int, Member]:
        """Members by slot; of two for one slot (a malformed plan) the first."""
        return {member.slot: member for member in reversed(self.members)}

    @functools.cached_property
    def _first_ranks(self) -> dict[int, int]:
        """First rank by slot. Valid for a whole plan."""
        sums = itertools.accumulate((member.processes for member in self.members), initial=0)
        return dict(reversed([*zip((member.slot for member in self.members), sums, strict=False)]))

    @functools.cached_property
    def hash(self) -> str:
        """Identity of the whole plan, the same for each part: 16 hexadecimal digits."""
        return self.whole.hash if self.whole else hashlib.sha256(codec.encode(self)).hexdigest()[:16]


class Cause(str, enum.Enum):
    """Cause of an incident. A closed set: it is a metric label. Free causes are not charged."""

    ERROR = "Error"  # uncaught exception or exit code of the script
    SIGNAL = "Signal"  # killed by a signal we did not send: SIGKILL, SIGSEGV, SIGABRT ...
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"  # no progress for hangSeconds
    START_TIMEOUT = "StartTimeout"  # no first step within startSeconds
    POD_FAILED = "PodFailed"  # the trainer container ended although the agent had no orders to leave
    POD_DELETED = "PodDeleted"  # free
    EVICTED = "Evicted"  # free
    NODE_LOST = "NodeLost"  # free
    AGENT_LOST = "AgentLost"  # free; silent for lostSeconds and no better evidence
    STORAGE_UNAVAILABLE = "StorageUnavailable"  # free; a checkpoint could not be read, but may be good
    RETRIED_FREE = "RetriedFree"  # free; an exit code that recovery.exitCodes declares free
    UNKNOWN = "Unknown"

    @property
    def charged(self) -> bool:
        """Whether an incident of this cause counts against maxFailures."""
        return self not in _FREE


_FREE = {Cause.POD_DELETED, Cause.EVICTED, Cause.NODE_LOST, Cause.AGENT_LOST}
_FREE |= {Cause.STORAGE_UNAVAILABLE, Cause.RETRIED_FREE}


class FailReason(str, enum.Enum):
    """Reason why a job ended as Failed, cannot start, or runs unlike its spec. Condition reasons,
    CamelCase."""

    REPEATED_ERROR = "RepeatedError"
    BUDGET_SPENT = "FailureBudgetSpent"
    EXIT_CODE = "ExitCodeRule"
    COMMAND_NOT_FOUND = "CommandNotFound"
    LAUNCHER_REFUSED = "LauncherRefused"  # an unknown torchrun flag
    INTERPRETER_WITHOUT_TORCH = "InterpreterWithoutTorch"
    CHECKPOINT_NOT_WRITABLE = "CheckpointNotWritable"
    CHECKPOINT_NOT_FOUND = "CheckpointNotFound"  # resume.policy Step
    CHECKPOINT_UNAVAILABLE = "CheckpointUnavailable"  # never an end: why a job is stalled
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INVALID_SPEC = "InvalidSpec"
    SCRIPT_INVALID = "ScriptInvalid"  # no rank of it can start in any pod: a SyntaxError, for example
    # Reasons that a report may give for a world that runs (JobReport.notice):
    SPLIT_WORLD = "SplitWorld"  # several default process groups, where one of the job's size was requested
    SMALLER_PROCESS_GROUP = "SmallerProcessGroup"  # one, but of fewer ranks than the job has
    NO_PROCESS_GROUP = "NoProcessGroup"  # none, though there are ranks to form one
    RANK_ENDED = "RankEnded"  # some ranks have exited with 0 while others continue
    WORKERS_ABSENT = "WorkersAbsent"  # others train without some (sync Exact)


@dataclass(frozen=True)
class ProcessExit:
    """Exit of a rank, as observed by its agent, the only process that reaps it."""

    code: int | None
    signal: int | None
    """Number of the signal that killed it; None for a normal exit."""
    hung: bool = False
    """The agent killed it because it made no progress."""
    late_start: bool = False
    """The agent killed it because its first step did not come within startSeconds."""
    oom: bool = False
    killed: bool = False
    """The agent killed it on orders, when terminating or when fenced: a consequence, never the cause of an
    incident. Not set for hung, late_start and oom."""
    storage: str = ""
    """Set if the rank could not read checkpoints that may be good. Where reading failed: "here", in this pod
    only; "elsewhere", in other pods; "everywhere"."""
    reached_end: bool = False
    """The script had run to its end before the process died (finished gloo processes sometimes SIGABRT)."""
    early: bool = False
    """The rank exited with 0 although the parameter servers wait for it, or workers for this server: neither
    had its script run to its end, nor had it reported that it leaves."""
    fingerprint: str = ""
    """Same text = same fault: exception type and innermost frame, or signal, or exit code."""
    message: str = ""
    """One line for a person: `ValueError: bad lr (train.py:31)`. Empty: only exit code or signal is known."""
    error_class: str = ""
    """Class of the exception, with its module: `builtins.ImportError`."""
    rank: int | None = None
    """Rank that exited, where a launcher had started the ranks. None: the rank that reports this exit."""
    last_lines: tuple[str, ...] = ()
    """The last lines that it wrote, at most 20, at most 4 KiB in all."""

    @property
    def clean(self) -> bool:
        """Whether this rank is done: exit code 0, and no other process still needs it."""
        return self.code == 0 and not self.early

    @property
    def how(self) -> str:
        """`exit 2`, or the signal's name: `SIGKILL`."""
        if self.signal is None:
            return f"exit {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"  # a real-time signal
