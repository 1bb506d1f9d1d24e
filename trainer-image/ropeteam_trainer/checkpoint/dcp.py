"""One save of all ranks together, in the format of torch.distributed.checkpoint (DCP).

    1. each rank plans its blocks     2. rank 0 assigns each block to one rank (replicas are written once)
    3. each rank writes its file      4. rank 0 writes the index of all blocks: `.metadata`

DCP does the four steps; an error on one rank in any of them is the same error on all ranks, so that none is
left waiting in the next. This module is only the difference to its defaults: blocks instead of tensors, plain
values that are sent with the plans into rank 0's state.pt, files that are hashed. Import it in the
background: that costs a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict  # save() warns in a world of one
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA, STATE
from ropeteam_trainer.checkpoint.files import HashedStream, new_file, write_tree
from ropeteam_trainer.checkpoint.objects import stateful
from ropeteam_trainer.checkpoint.objects.tensorshard import TensorShard
from ropeteam_trainer.contract.world import ShardFile
from ropeteam_trainer.system.folders import Folder, Location


@dataclass(frozen=True)
class RankContent:
    """Content of one rank for a checkpoint."""

    shards: Mapping[str, TensorShard]
    buffers: list[str]
    """Names of shards that may differ between ranks: the lowest rank's is saved."""
    shared: stateful.Shared
    files: Mapping[str, Any]
    """This rank's own small files; on rank 0 also state.pt, to which `shared` of all ranks is added."""


def save(
    directory: Location, place: str, content: RankContent, group: dist.ProcessGroup | None
) -> tuple[ShardFile, ...]:
    """Write this rank's files; together with all ranks of `group`, or alone (None). Durable when it returns.
    Returns the files of this rank with their hashes. `place`: the checkpoint's folder, below the directory.

    Raises RuntimeError on all ranks if one of them fails, and removes the written files of this rank then.
    Also raises errors of torch.distributed (a peer is lost), and OSError if a file cannot be removed.
    """
    planner, disk = _Planner(content), _CheckpointFolder(directory, place)
    storage = _Storage(disk, content, planner)
    try:
        _save_state_dict({}, storage, group, no_dist=group is None, planner=planner)
    except BaseException as error:
        disk.remove_written()
        if isinstance(error, CheckpointException):  # no Exception, by its class
            faults = (f"rank {rank}: {fault[0]}" for rank, fault in sorted(error.failures.items()))
            raise RuntimeError("; ".join(faults)) from None
        raise
    finally:
        disk.close()
    return tuple(disk.written.values())


class _Planner(DefaultSavePlanner):
    """Planner of DCP that plans blocks of tensors, and collects the plain values of all ranks on rank 0."""

    def __init__(self, content: RankContent) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._content = content
        self.shared: stateful.Shared | None = None
        """Plain values of all ranks. Set on rank 0 only, by create_global_plan()."""

    def create_local_plan(self) -> SavePlan:
        """Plan of this rank's blocks. Its `planner_data` carry plain values to rank 0."""
        items = [_write_item(name, shard) for name, shard in self._content.shards.items()]
        self.plan = SavePlan(items, planner_data=(self._content.buffers, self._content.shared))
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Plans of all ranks without replicas, by rank, and the index. DCP calls it on rank 0, with the plans
        by rank, before any rank writes."""
        self.shared = stateful.merge(plan.planner_data[1] for plan in all_plans)
        buffers = {name for plan in all_plans for name in plan.planner_data[0]}
        return super().create_global_plan(_plans_without_buffer_replicas(all_plans, buffers))

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """Block to write: the copy in CPU memory."""
        return self._content.shards[write_item.index.fqn].local


def _plans_without_buffer_replicas(plans: list[SavePlan], buffers: set[str]) -> list[SavePlan]:
    """Plans in which only the lowest rank that has a buffer writes it. `plans`: one for each rank, by rank.
    `buffers`: names. Drops `planner_data`, which create_global_plan() has read."""
    taken: set[MetadataIndex] = set()
    reduced = []
    for plan in plans:
        items = [item for item in plan.items if item.index not in taken]
        taken.update(item.index for item in items if item.index.fqn in buffers)
        reduced.append(replace(plan, items=items, planner_data=None))
    return reduced


def _write_item(name: str, shard: TensorShard) -> WriteItem:
    """DCP's request to write one block."""
    chunk = ChunkStorageMetadata(torch.Size(shard.offsets), shard.local.shape)
    about = TensorWriteData(chunk, TensorProperties.create_from_tensor(shard.local), torch.Size(shard.shape))
    return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=about)


class _Storage(FileSystemWriter):
    """Writer of DCP's files and of our small ones. DCP calls the methods in the order in which they are
    here."""

    def __init__(self, disk: _CheckpointFolder, content: RankContent, planner: _Planner) -> None:
        super().__init__(Path(), sync_files=False, per_thread_copy_ahead=0)  # our disk syncs; no CUDA here
        self.fs = self.disk = disk
        self._content, self._planner = content, planner
        self._is_rank_0 = False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Note whether this is rank 0, which DCP calls the coordinator."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._is_rank_0 = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Open the folder before anything is written. On rank 0 it removes files that would make it a
        checkpoint."""
        self.disk.open_folders()
        if self._is_rank_0:
            for stale in (MANIFEST, METADATA):  # of another job that used this folder before
                self.disk.rm_file(stale)
        return plan

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write and sync the blocks, then the small files, then the names of all (fsync of the folders).
        Returns DCP's results for the blocks, already set."""
        written: Future[list[WriteResult]] = Future()
        if plan.items:
            written = super().write_data(plan, planner)  # done when it returns: DCP writes in this thread
        else:
            written.set_result([])
        for name, tree in self._content.files.items():
            self.disk.write_tree(
                name, tree | self._planner.shared if name == STATE and self._planner.shared else tree
            )
        for folder in self.disk.folders[:-4:-1]:  # run, step, world: open_folders() may have created them
            folder.sync()
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `.metadata`, on rank 0, after all ranks have written."""
        super().finish(metadata, results)
        self.disk.folders[-1].sync()

    def storage_meta(self) -> None:
        """Return None instead of a StorageMeta: that would hold the path, which may change."""


class _CheckpointFolder(FileSystem):
    """DCP's interface to a file system, for the folder of one checkpoint: of a path only the last name
    counts. Records the files that were written."""

    def __init__(self, directory: Location, place: str) -> None:
        self._directory, self._place = directory, place
        self.folders: list[Folder] = []
        """Open folders, from the directory down to the checkpoint's own."""
        self.written: dict[str, ShardFile] = {}
        """Files of this rank, by name."""

    def open_folders(self) -> None:
        """Open the folders, and create missing ones. close() closes them."""
        self.folders = [Folder.at(self._directory, make=True)]
        for name in self._place.split("/"):
            self.folders.append(self.folders[-1].open_folder(name, make=True))

    def close(self) -> None:
        for folder in self.folders:
            folder.close()

    def remove_written(self) -> None:
        """Remove all written files: this frees the space of a full disk. Raises OSError."""
        for name in self.written:
            self.rm_file(name)

    def write_tree(self, name: str, tree: Any) -> None:
        self.written[name] = write_tree(self.folders[-1], name, tree)

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[HashedStream]:  # type: ignore[override]
        """Stream of a new file, which is synced and recorded at the end of the `with`."""
        assert mode == "wb"
        name = Path(path).name
        with new_file(self.folders[-1], name) as stream:
            yield stream
        self.written[name] = stream.described_as(name)

    def exists(self, path: Any) -> bool:
        return Path(path).name in self.folders[-1].names()

    def rm_file(self, path: Any) -> None:
        self.folders[-1].remove(Path(path).name)

    def rename(self, path: Any, new_path: Any) -> None:
        name, new = Path(path).name, Path(new_path).name
        self.folders[-1].rename(name, new)
        self.written[new] = replace(self.written.pop(name), name=new)
