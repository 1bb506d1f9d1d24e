"""`.metadata` of checkpoints: pickles of somebody.

A case is a true one that is damaged, a true one of which operations are others, or operations that fit their
stack more or less; gadgets are among them. It is read as a restore reads it, from its folder: what it says,
or ValueError. Meanwhile the interpreter's audit hook sees that nothing is imported, opened beside
that file, run or called in the operating system.
Limits: what is known to take long (tuples in tuples, hashed) is not made; memory is limited to 2 GiB.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import pickletools
import resource
import struct
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import METADATA
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

_PERMITTED = frozenset(
    {"pickle.find_class", "object.__getattr__", "object.__setattr__", "open", "sys.excepthook"}
)
"""The last: Python prints a SystemError of its own where it finds no room for a bytearray."""
_MOST = 2 << 30
REF, FOLDER = CheckpointRef(5, WorldId(1, 0, 2)), "step-5/1.0.2"
_DCP = "torch.distributed.checkpoint"
NAMES = (
    *(
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("builtins", "exec"),
    ),
    *(
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("builtins", "open"),
        ("os", "open"),
        ("nt", "system"),
    ),
    *(
        ("torch", "load"),
        ("torch", "hub.load"),
        ("torch", "_dynamo"),
        ("torch", "float32"),
        ("torch", "Size"),
    ),
    *(("importlib", "import_module"), ("socket", "create_connection"), ("functools", "partial"), ("", "")),
    *((f"{_DCP}.metadata", "Metadata"), (f"{_DCP}.metadata", "TensorProperties"), ("operator", "attrgetter")),
    *(
        (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}.filesystem", "_StorageInfo"),
        ("copyreg", "_reconstructor"),
    ),
)
TEXTS = (
    "touch /tmp/canary",
    "__class__",
    "__globals__",
    "storage_data",
    "state_dict_metadata",
    "0",
    "x" * 300,
)


@cache
def true_ones() -> tuple[bytes, ...]:
    """Metadata as DCP writes it, in each protocol that can."""
    size, properties = torch.Size((2, 3)), TensorProperties(torch.float32)
    chunk = ChunkStorageMetadata(torch.Size((0, 0)), size)
    about: dict[str, Any] = {
        name: TensorStorageMetadata(properties, size, [chunk]) for name in ("a.weight", "b")
    }
    stored = {
        MetadataIndex(name, torch.Size((0, 0))): _StorageInfo("__0_0.distcp", 9 * n, 9)
        for n, name in enumerate(about)
    }
    whole = Metadata(about, planner_data=None, storage_data=stored)
    written = (pickle.dumps(whole, protocol) for protocol in (2, 3, 4, 5))
    return tuple(each for each in written if b"getattr" not in each)  # Python < 3.11.4 has it for enums in 2


def operations(data: bytes) -> list[bytes]:
    begins = [place for _, _, place in pickletools.genops(data) if place is not None]
    return [data[begin:end] for begin, end in zip(begins, [*begins[1:], len(data)], strict=True)]


def _text(chance: Random) -> bytes:
    text = chance.choice(TEXTS).encode()
    return b"X" + struct.pack("<I", len(text)) + text


def _name(chance: Random) -> bytes:
    module, name = (each.encode() for each in chance.choice(NAMES))
    if chance.random() < 0.5:
        return b"c" + module + b"\n" + name + b"\n"
    return b"".join((*(b"\x8c" + bytes((len(each),)) + each for each in (module, name)), b"\x93"))


_MAKE: tuple[Callable[[Random], bytes], ...] = (
    _text,
    _name,
    _name,
    lambda chance: b"K" + bytes((chance.randrange(256),)),
    lambda chance: chance.choice((b"N", b"\x88", b")", b"}", b"]", b"\x8f", b"(")),
    lambda chance: chance.choice(
        (b"R", b"o", b"\x81", b"b", b"s", b"a", b"u", b"e", b"t", b"\x85", b"\x86", b"\x87", b"Q")
    ),
    lambda chance: chance.choice((b"0", b"1", b"2", b"\x94", b"\x90", b"\x92", b"\x98", b"\x97")),
    lambda chance: chance.choice((b"q", b"h")) + bytes((chance.randrange(4),)),
    lambda chance: b"J" + chance.randbytes(4),
    lambda chance: b"\x8a" + bytes((chance.randrange(20),)) + chance.randbytes(chance.randrange(20)),
    lambda chance: b"P" + chance.choice(TEXTS).encode() + b"\n",
    lambda chance: b"\x82" + bytes((chance.randrange(3),)),
    lambda chance: b"i" + b"\n".join(each.encode() for each in chance.choice(NAMES)) + b"\n",
    lambda chance: b"T" + struct.pack("<I", chance.choice((0, 1, 2**31 - 1))),
    lambda chance: (
        chance.choice((b"\x8d", b"\x8e", b"\x96", b"\x95"))
        + struct.pack("<Q", chance.choice((0, 9, 2**40, 2**63)))
    ),
    lambda chance: b"I" + chance.choice((b"0", b"01", b"9" * 5000, b"x")) + b"\n",
)


def draw(chance: Random) -> bytes:
    odds = chance.random()
    whole = chance.choice(true_ones())
    if odds < 0.3:
        return mutations.damaged(chance, whole)
    if odds < 0.6:
        found = operations(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(1, len(found))
            made = [chance.choice(_MAKE)(chance)]
            match chance.choice(("instead", "before", "away", "again", "swapped")):
                case "instead":
                    found[place : place + 1] = made
                case "before":
                    found[place:place] = made
                case "away":
                    del found[place]
                case "again":
                    found[place:place] = [found[place]] * chance.choice((1, 3))
                case _:
                    found[place - 1 : place + 1] = reversed(found[place - 1 : place + 1])
        return b"".join(found)
    made = [chance.choice(_MAKE)(chance) for _ in range(chance.choice((3, 8, 30)))]
    return b"\x80" + bytes((chance.choice((2, 4, 5)),)) + b"".join(made) + b"."


class Audit:
    """Audit events of this thread in a block, but for those that a reader needs. Threads of other tests may
    run beside it; a thread that the block starts is seen when it is started."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._watching = str(folder), 0
        self._seen = list[str]()
        sys.addaudithook(self._look)  # which stays for the life of the process

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if self._watching != threading.get_ident():
            return
        if event not in _PERMITTED or (event == "open" and self._elsewhere(args[0])):
            self._seen.append(f"{event}{args!r}"[:200])

    def _elsewhere(self, path: object) -> bool:
        return isinstance(path, str) and "/" in path and not path.startswith(self._folder)

    @contextmanager
    def nothing_done(self) -> Iterator[None]:
        self._watching = threading.get_ident()
        try:
            yield
        finally:
            self._watching = 0
        assert not self._seen, f"it made the interpreter do {self._seen}"


@contextmanager
def limited_memory() -> Iterator[None]:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + _MOST, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@asynccontextmanager
async def _metadata() -> AsyncIterator[Attempt]:
    with tempfile.TemporaryDirectory() as name, limited_memory(), redirect_stderr(io.StringIO()):
        directory = Path(name)
        (directory / FOLDER).mkdir(parents=True)
        audit = Audit(directory)

        async def attempt(case: bytes) -> list[str]:
            (directory / FOLDER / METADATA).write_bytes(case)
            mine = ShardFile(METADATA, len(case), hashlib.sha256(case).hexdigest())
            files = (mine, ShardFile("__0_0.distcp", 99, "f" * 64))
            with audit.nothing_done():
                try:
                    reader.load_metadata(directory, REF, files)
                except ValueError:
                    return ["refused"]
            return ["taken"]

        for each in true_ones():
            assert await attempt(each) == ["taken"]
        yield attempt


CAMPAIGNS = (Campaign("metadata", "pickles", 100_000, draw, _metadata),)
