"""Journal of a run: the committed checkpoints, the pruned ones, and the world that may commit and prune.

    <directory>/run-<job's UID>/journal/
        claim-<world>-<pod>             this world may write from now on; those of lower numbers may no more
        claim-<world>-<pod>.adopts      checkpoints that it found committed after that, one per line
        step-<N>.<world>.commit         a committed checkpoint: its reference and its parent's, signed
        step-<N>.<world>.pruning-<...>  the same, while that world considers deleting its files
        step-<N>.<world>.pruned         the same, files deleted: descent stays provable

Pure: each function is a generator (`Steps`) that yields operations on the disk, receives the result of each
by send(), and returns its own result. Each operation is atomic at the server. agent/checkpoints.py executes
them; tests/agent/test_claims.py interleaves those of several worlds in all orders.
Promises, for any process cut off from operator and coordinator, suspended or killed, at any point:
  - a checkpoint that an older world commits after a newer one has claimed the run never counts
  - a checkpoint that a newer world counts is never deleted by an older one
Proof: a world lists the checkpoints that it adopts after it has created its claim; a pruner lists the claims
after it has renamed, a commit after its entry. One sees the other. Each listing follows a change by the same
client in the same folder, so no cached one answers it (NFS: the reply to the change drops that).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ropeteam_trainer.checkpoint.decisions.manifest import JOURNAL
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.errors import RopeteamError
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.seals import Keys
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

T = TypeVar("T")
Refs = tuple[CheckpointRef, ...]
MAX_PRUNED = 10_000
"""Number of "pruned" entries that stay, 0.3 KB each: more than are written between two backups of etcd."""


class CheckpointKey(NamedTuple):
    """Key of a checkpoint in its run. Ordered: newer ones come later."""

    world_id: WorldId
    step: int

    def __str__(self) -> str:
        return f"step-{self.step}.{self.world_id}"


# ---- operations


@dataclass(frozen=True)
class List:
    """List the names in the journal. Result: an iterable of names."""


@dataclass(frozen=True)
class Create:
    """Create an empty file of the journal. Durable. An existing file is no error, and stays."""

    name: str


@dataclass(frozen=True)
class Write:
    """Write a file of the journal, whole or not at all. Durable."""

    name: str
    text: str


@dataclass(frozen=True)
class ReadEntry:
    """Read a file of the journal. Result: its text; "": it does not exist (any more)."""

    name: str


@dataclass(frozen=True)
class Rename:
    """Rename a file of the journal. Durable. Result: whether it existed."""

    name: str
    to: str


@dataclass(frozen=True)
class Remove:
    """Remove a file of the journal."""

    name: str


@dataclass(frozen=True)
class Folders:
    """List the checkpoints that have a folder in that of the run, committed or not. Result: their keys."""


@dataclass(frozen=True)
class Delete:
    """Delete a checkpoint's folder, with its content, as far as possible."""

    key: CheckpointKey
    outside_run: bool = False
    """The folder is in the checkpoint directory itself. Deleted only if its manifest is of the run's job."""


@dataclass(frozen=True)
class WriteManifest:
    """Write a manifest. Durable. Result: its reference, without run for files in the directory itself."""

    grant: Grant


Operation = List | Create | Write | ReadEntry | Rename | Remove | Folders | Delete | WriteManifest
Steps = Generator[Operation, Any, T]


# ---- names and entries


@dataclass(frozen=True)
class JournalEntry:
    """Content of a checkpoint's file in the journal. One without the required signature proves nothing: it
    has neither digest nor parent then."""

    ref: CheckpointRef
    parent: CheckpointRef | None

    @classmethod
    def parse(cls, text: str, keys: Keys) -> JournalEntry:
        """Inverse of to_text(). Without digest and parent if there are keys and none has signed it. Raises
        DecodeError."""
        entry = codec.decode(cls, text)
        trusted = not keys or seals.is_valid(JOURNAL, text.encode(), keys)
        return entry if trusted else cls(replace(entry.ref, digest=""), None)

    def to_text(self, keys: Keys) -> str:
        """JSON, signed if there are keys."""
        return seals.signed(JOURNAL, codec.encode(self), keys).decode()


class Claim(NamedTuple):
    world_id: WorldId
    pod: str
    """UID of the pod: no two pods claim for one world, unless a coordinator has used its number twice."""

    @property
    def name(self) -> str:
        return f"claim-{self.world_id}-{self.pod}"

    @property
    def adopts(self) -> str:
        """Name of the file that lists the adopted checkpoints."""
        return f"{self.name}.adopts"

    def pruning(self, key: CheckpointKey) -> str:
        """Name of a checkpoint's entry while this world prunes it."""
        return f"{key}.pruning-{self.world_id}-{self.pod}"


class Superseded(RopeteamError):
    """Error: a newer world has claimed the run; this one may neither save nor prune any more."""

    def __init__(self, by: WorldId) -> None:
        super().__init__(
            f"superseded by term {by.term}: world {by} of this job has claimed the checkpoint folder, so "
            "this older world may not save or delete checkpoints any more"
        )
        self.by = by


@dataclass(frozen=True)
class Held:
    """Claim of this world on the run, and the checkpoints that it may restore from and prune."""

    claim: Claim
    adopted: frozenset[CheckpointKey]

    def counts(self, key: CheckpointKey) -> bool:
        """Whether this world counts the checkpoint: it has adopted it, or saved it itself."""
        return key in self.adopted or key.world_id == self.claim.world_id


_WORLD = r"(\d+\.\d+\.\d+)"
_CLAIM = re.compile(rf"claim-{_WORLD}-([^.]+)(\.adopts)?")
_ENTRY_NAME = re.compile(rf"step-(\d+)\.{_WORLD}\.(commit|pruned|pruning-.+)")


@dataclass
class _Listing:
    """Parsed listing of the journal. A checkpoint whose entry is renamed meanwhile may be listed under both
    names; it then counts as being pruned, not as committed."""

    claims: list[Claim] = field(default_factory=list)
    adopting: list[Claim] = field(default_factory=list)
    """Claims of worlds that have listed their adopted checkpoints."""
    committed: set[CheckpointKey] = field(default_factory=set)
    pruning: dict[CheckpointKey, str] = field(default_factory=dict)
    """Name of the entry by checkpoint."""
    pruned: set[CheckpointKey] = field(default_factory=set)
    names: dict[CheckpointKey, str] = field(default_factory=dict)
    """Name of the entry of each checkpoint, in any of the three states."""

    def require_newest(self, claim: Claim) -> None:
        """Raise Superseded if a newer world has claimed the run, or another pod for the same world."""
        rivals = [each for each in self.claims if each.world_id >= claim.world_id and each != claim]
        if rivals:
            raise Superseded(max(rivals).world_id)


def _parse_listing(names: Iterable[str]) -> _Listing:
    """Listing of files of these names. Other names are ignored."""
    seen = _Listing()
    for name in sorted(names):  # commit < pruned < pruning
        if found := _CLAIM.fullmatch(name):
            claim = Claim(WorldId.parse(found[1]), found[2])
            (seen.adopting if found[3] else seen.claims).append(claim)
        elif found := _ENTRY_NAME.fullmatch(name):
            key = CheckpointKey(WorldId.parse(found[2]), int(found[1]))
            seen.names[key] = name
            if found[3] == "commit":
                seen.committed.add(key)
            elif found[3] == "pruned":
                seen.pruned.add(key)
            else:
                seen.pruning[key] = name
    seen.committed -= seen.pruned | set(seen.pruning)
    return seen


def key_of(ref: CheckpointRef) -> CheckpointKey:
    return CheckpointKey(ref.world_id, ref.step)


# ---- actions of a world


def claim(me: Claim) -> Steps[Held]:
    """Claim the run, before anything is committed by this claim. Returns it, and the adopted checkpoints.
    Idempotent. Raises Superseded.

    Order: create the claim -> list -> write the adoptions -> list again. Adopted are the committed
    checkpoints that the newest older world with adoptions had adopted, or has committed itself; all older
    ones if there is no such world. An older world that has claimed and has not written its adoptions yet
    finds this claim in its second listing, and does not begin.
    """
    yield Create(me.name)
    seen = _parse_listing((yield List()))
    seen.require_newest(me)
    counted = {key for key in seen.committed if key.world_id < me.world_id}
    previous = max((each for each in seen.adopting if each.world_id < me.world_id), default=None)
    if previous is not None:
        listed = set((yield ReadEntry(previous.adopts)).split())
        counted = {key for key in counted if str(key) in listed or key.world_id == previous.world_id}
    yield Write(me.adopts, "\n".join(sorted(map(str, counted))))
    _parse_listing((yield List())).require_newest(me)
    return Held(me, frozenset(counted))


def lineage(held: Held, named: Refs, keys: Keys = ()) -> Steps[Refs]:
    """Lineage to restore from, newest first. `named`: checkpoints that the job's status names; those without
    digest were granted, and are not known to be written.

    With digests in `named`: the adopted checkpoints that descend from one of these, then these. Without: all
    adopted ones; those whose entry is not signed have no digest then, and the restoring rank verifies them.

    Descent is followed from entry to entry, up to a named checkpoint. The one that the run began from is
    another run's and has no entry here: its child names it as parent.
    """
    names = _parse_listing((yield List())).names
    wanted = {key_of(ref): ref for ref in named if ref.digest}
    entries: dict[CheckpointKey, JournalEntry | None] = {}
    found = []
    for key in sorted(held.adopted, reverse=True):
        mine = yield from _entry(key, names, entries, keys)
        if key in wanted and not (mine and mine.ref.digest):
            mine = JournalEntry(wanted[key], None)
        ref, passed = mine.ref if mine else None, set[CheckpointKey]()
        # follow parents up to a named checkpoint; None: this one does not descend from any
        while ref and wanted and wanted.get(key_of(ref)) != ref:
            passed.add(key_of(ref))
            entry = yield from _entry(key_of(ref), names, entries, keys)
            ref = entry.parent if entry and ref.digest in ("", entry.ref.digest) else None
            if ref and key_of(ref) in passed:  # a cycle: none is its own ancestor, so an entry is forged
                ref = None
        if mine and ref:
            found.append(mine.ref)
    return (*found, *(ref for ref in named if ref.digest and ref not in found))


def ancestors(refs: Refs, keys: Keys = ()) -> Steps[tuple[Refs, ...]]:
    """Ancestors of each of `refs` among the others, in the order of `refs`, each newest first.

    A chain is followed by step and world, from entry to entry. It ends at an entry that is missing, not
    signed, or not older than its child (a forged one), and below the oldest step of `refs`. One of `refs` is
    left out if its child's entry names another digest; the chain continues past it. Other digests are not
    compared: nothing but `refs` is returned, and those are what lineage() has found.
    """
    names = _parse_listing((yield List())).names
    known, oldest = {key_of(ref): ref for ref in refs}, min((ref.step for ref in refs), default=0)
    entries: dict[CheckpointKey, JournalEntry | None] = {}
    found = []
    for ref in refs:
        past = []
        entry = yield from _entry(key_of(ref), names, entries, keys)
        while entry and entry.parent and oldest <= entry.parent.step < entry.ref.step:
            above = known.get(key_of(entry.parent))
            if above and above.digest == entry.parent.digest:
                past.append(above)
            entry = yield from _entry(key_of(entry.parent), names, entries, keys)
        found.append(tuple(past))
    return tuple(found)


def _entry(
    key: CheckpointKey,
    names: dict[CheckpointKey, str],
    known: dict[CheckpointKey, JournalEntry | None],
    keys: Keys,
) -> Steps[JournalEntry | None]:
    """Entry of a checkpoint. None: there is none, it cannot be parsed, or it is of another checkpoint.
    `known`: the entries read so far; each is read once and added there."""
    if key not in known:
        text = (yield ReadEntry(names[key])) if key in names else ""
        try:
            entry = JournalEntry.parse(text, keys)
            known[key] = entry if key_of(entry.ref) == key else None
        except codec.DecodeError:
            known[key] = None
    return known[key]


def commit(held: Held, grant: Grant, keys: Keys = ()) -> Steps[CheckpointRef]:
    """Commit a granted checkpoint: manifest, then entry. Raises Superseded: newer worlds may not count it."""
    _parse_listing((yield List())).require_newest(held.claim)
    ref: CheckpointRef = yield WriteManifest(grant)
    yield Write(f"{key_of(ref)}.commit", JournalEntry(ref, grant.parent).to_text(keys))
    _parse_listing((yield List())).require_newest(held.claim)
    return ref


def prune(held: Held, keep: Refs) -> Steps[tuple[CheckpointKey, ...]]:
    """Delete checkpoints that are not in `keep` (not empty), of no higher step than its first, and of no
    newer world. Returns them. Raises Superseded; each entry that it has renamed becomes "commit" again then,
    even if it was another world's "pruning".

    Order: rename the entry of each to "pruning" -> list the claims -> rename it to "pruned" -> delete its
    folder. A newer world that does not see the first rename is seen in the listing. A folder outside of the
    run's is deleted before the last rename, too: a "pruned" entry does not lead to it. Also deleted: folders
    whose entry is missing, "pruned" or not adopted: no world will count them; the oldest over MAX_PRUNED.
    """
    retained, newest = {key_of(ref) for ref in keep}, keep[0].step
    folders = set((yield Folders()))
    seen = _parse_listing((yield List()))
    seen.require_newest(held.claim)
    outside = yield from _outside_run_folder(seen, retained | folders)
    found = (outside | folders) - retained
    old = sorted(key for key in found if key.step <= newest and key.world_id <= held.claim.world_id)
    mine = []  # those whose entry this world has renamed
    for key in old:
        name = f"{key}.commit" if key in seen.committed else seen.pruning.get(key)
        if name and held.counts(key) and (yield Rename(name, held.claim.pruning(key))):
            mine.append(key)
    try:
        _parse_listing((yield List())).require_newest(held.claim)
    except Superseded:
        for key in mine:
            yield Rename(held.claim.pruning(key), f"{key}.commit")
        raise
    for key in mine:
        if key in outside:
            yield Delete(key, outside_run=True)
        yield Rename(held.claim.pruning(key), f"{key}.pruned")
    gone = [key for key in old if key in mine or _is_leftover(held, seen, key)]
    for key in gone:
        yield Delete(key, key in outside)
    for key in sorted(seen.pruned)[:-MAX_PRUNED]:
        yield Remove(f"{key}.pruned")
    return tuple(gone)


def _outside_run_folder(seen: _Listing, others: set[CheckpointKey]) -> Steps[set[CheckpointKey]]:
    """Checkpoints of this run that are in the checkpoint directory itself, where a library writes that is
    older than folders of runs. Of the folders there only those are this run's that its journal names.
    `others`: not to be looked up."""
    entries: dict[CheckpointKey, JournalEntry | None] = {}
    found = set()
    for key in sorted((seen.committed | set(seen.pruning)) - others):
        entry = yield from _entry(key, seen.names, entries, ())
        if entry and not entry.ref.run:
            found.add(key)
    return found


def _is_leftover(held: Held, seen: _Listing, key: CheckpointKey) -> bool:
    """Whether no world will ever count this: shards never committed or adopted, or the rest of a deletion."""
    return not held.counts(key) or (key not in seen.committed and key not in seen.pruning)
