"""Planted contents of checkpoint files, whose manifest has the right hashes."""

from __future__ import annotations

import copy
import io
import pickle
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.trainer.planted import (
    RANK,
    STATE,
    TENSORS,
    Case,
    Gadget,
    OfAScript,
    checkpoints,
    halved,
    saved,
    written,
)
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA

WEIGHT = "model.weight"
Entries = list[tuple[str, bytes]]
Make = Callable[[Path, torch.Size], Any]


def changed(change: Callable[[Metadata], None]) -> Callable[[Path], None]:
    """`.metadata` with other values."""

    def act(place: Path) -> None:
        about = pickle.loads((place / METADATA).read_bytes())
        change(about)
        (place / METADATA).write_bytes(pickle.dumps(about))

    return act


def pointing(**fields: Any) -> Callable[[Path], None]:
    """Where `.metadata` says that a tensor lies."""

    def change(about: Metadata) -> None:
        for info in about.storage_data.values():
            for name, value in fields.items():
                object.__setattr__(info, name, value)

    return changed(change)


def gadget(*arguments: str) -> Callable[[Path], bytes]:
    """A pickle in text. `{}`: what is to be run."""
    return lambda place: "".join(arguments).replace("{}", Gadget(place).command).encode()


def laid_out(place: Path, about: Metadata, make: Make) -> None:
    """Replace each block by what `make` returns, with a matching `.metadata`."""
    about.storage_data = {}
    with (place / TENSORS).open("wb") as file:
        for name, tensor in about.state_dict_metadata.items():
            for chunk in tensor.chunks:
                block = io.BytesIO()
                torch.save(make(place, chunk.sizes), block)
                where = _StorageInfo(TENSORS, file.tell(), len(block.getvalue()))
                about.storage_data[MetadataIndex(name, chunk.offsets)] = where
                file.write(block.getvalue())
    (place / METADATA).write_bytes(pickle.dumps(about))


def tensors(make: Make) -> Callable[[Path], None]:
    return lambda place: laid_out(place, pickle.loads((place / METADATA).read_bytes()), make)


def split_blocks(
    *blocks: tuple[tuple[int, int], tuple[int, int]], in_one_place: bool = False
) -> Callable[[Path], None]:
    """The weight has these, of zeros: offsets and sizes."""

    def act(place: Path) -> None:
        about = pickle.loads((place / METADATA).read_bytes())
        chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in blocks]
        about.state_dict_metadata[WEIGHT].chunks = chunks
        laid_out(place, about, lambda _, sizes: torch.zeros(sizes))
        if in_one_place:
            places = [MetadataIndex(WEIGHT, chunk.offsets) for chunk in chunks]
            about.storage_data |= dict.fromkeys(places, about.storage_data[places[0]])
            (place / METADATA).write_bytes(pickle.dumps(about))

    return act


def about_weight(**fields: Any) -> Callable[[Path], None]:
    """Change the entry of the weight in `.metadata`."""

    def change(about: Metadata) -> None:
        for name, value in fields.items():
            object.__setattr__(about.state_dict_metadata[WEIGHT], name, value)

    return changed(change)


def named(name: Any) -> Callable[[Path], None]:
    """The weight has another name."""

    def change(about: Metadata) -> None:
        about.state_dict_metadata[name] = about.state_dict_metadata.pop(WEIGHT)
        about.storage_data = {
            MetadataIndex(name if index.fqn == WEIGHT else index.fqn, index.offset): info
            for index, info in about.storage_data.items()
        }

    return changed(change)


def shaped(*sizes: int) -> Callable[[Path], None]:
    """Change the blocks that `.metadata` lists."""

    def change(about: Metadata) -> None:
        for tensor in about.state_dict_metadata.values():
            for chunk in tensor.chunks:
                chunk.sizes = torch.Size(sizes)

    return changed(change)


def with_state(**fields: Any) -> Callable[[Path], None]:
    """None: without."""

    def act(place: Path) -> None:
        tree = torch.load(place / STATE, weights_only=True)
        remaining = {name: value for name, value in tree.items() if name not in fields}
        torch.save(
            remaining | {name: value for name, value in fields.items() if value is not None}, place / STATE
        )

    return act


def repacked(
    name: str, change: Callable[[Entries], Entries], way: int = zipfile.ZIP_STORED
) -> Callable[[Path], None]:
    """The archive has other files."""

    def act(place: Path) -> None:
        with zipfile.ZipFile(place / name) as archive:
            files = [(each, archive.read(each)) for each in archive.namelist()]
        with warnings.catch_warnings(), zipfile.ZipFile(place / name, "w", way) as archive:
            warnings.simplefilter("ignore")  # of two files of one name
            for each, content in change(files):
                archive.writestr(each, content)

    return act


def replaced(end: str, content: bytes) -> Callable[[Entries], Entries]:
    """The file whose name ends so has this content."""
    return lambda files: [(name, content if name.endswith(end) else each) for name, each in files]


def many_in_one(place: Path) -> None:
    """A thousand files of an archive are the same bytes of it."""
    with zipfile.ZipFile(place / RANK, "a") as archive:
        for number in range(1000):
            another = copy.copy(archive.getinfo("archive/data/0"))
            another.filename = f"archive/data/{number + 1}"
            archive.filelist.append(another)
        archive.writestr("archive/data/other", b"")


def without_a_directory(place: Path) -> None:
    content = (place / STATE).read_bytes()
    (place / STATE).write_bytes(content.replace(b"PK\1\2", b"PK\1\3"))


def behind_the_old_format(place: Path) -> bytes:
    old = io.BytesIO()
    torch.save(Gadget(place), old, _use_new_zipfile_serialization=False)
    return old.getvalue() + (place / STATE).read_bytes()


class Calls:
    """To be pickled as a call of what torch allows."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def larger_than_its_storage() -> Calls:
    storage = torch.zeros(1)._typed_storage()
    return Calls(torch._utils._rebuild_tensor_v2, storage, 0, (1 << 33,), (1,), False, {})


def optimizer(tensors: Any = None, **values: Any) -> Callable[[Path], None]:
    part = {"groups": [{"names": ["weight"], "values": values}], "tensors": tensors or {}, "values": {}}
    return with_state(optimizers={"optimizer": part})


def generators(**states: Any) -> Callable[[Path], None]:
    """Of a rank."""
    ours = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return saved(RANK, lambda _: {"rng": ours | states, "own": {}})


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _fields(**values: bytes) -> bytes:
    return b"}" + b"".join(_text(name) + value + b"s" for name, value in values.items())


def endless() -> bytes:
    """Pickle in which the class of a block is an iterator too, whose items are of that class, and have all
    that a block has."""
    module = b"ctorch.distributed.checkpoint.metadata\n"
    kind, itself = module + b"ChunkStorageMetadata\n", module + b"_MEM_FORMAT_ENCODING\n"
    methods = {"__iter__": itself, "__next__": kind}
    arguments = {"offsets": b")", "sizes": b")", "fqn": _text(WEIGHT), "offset": b")"}
    info = _fields(relative_path=_text(TENSORS), offset=b"K\0", length=b"K\1")
    properties = module + b"TensorProperties\n)\x81ctorch\nfloat32\n\x85b"
    tensor = _fields(size=b")", properties=properties, chunks=kind + b")\x81")
    made = kind + b")\x81"
    root = _fields(
        storage_data=b"}" + made + made + info + b"bs",
        state_dict_metadata=b"}" + _text(WEIGHT) + made + tensor + b"bs",
    )
    return b"\x80\x02" + kind + b"N" + _fields(**methods, **arguments) + b"\x86b0" + made + root + b"b."


def growing(level: bytes) -> bytes:
    """A pickle that does so again and again, from the empty tuple in place 0 of the memo on, and makes a dict
    of which what is there in the end is the key."""
    return b"\x80\x02})q\0" + b"0" + 100 * level + b"h\0Ns."


def sets_in_sets() -> bytes:
    """Two that are equal, which to find out takes for ever: of pairs of one such set and a number."""
    pairs = [
        b"(" + b"".join(b"h" + bytes([place]) + b"K" + n + b"\x86" for n in (b"\0", b"\1"))
        for place in (0, 1)
    ]
    level = b"".join(pair + b"\x91q" + bytes([place]) + b"0" for place, pair in enumerate(pairs))
    return b"\x80\x04}(\x91q\x000(\x91q\x010" + 100 * level + b"(h\0Nh\1Nu."


def of_another_model(place: Path) -> None:
    """A state of ours, of a script that has been changed since."""
    saver, _ = checkpoints(place / "elsewhere", torch.nn.Linear(5, 2))
    saver.save(3, None)
    saver.close()
    for file in (place / "elsewhere" / "step-3").glob("*/*"):
        if file.name != MANIFEST:
            file.rename(place / file.name)
    shutil.rmtree(place / "elsewhere")


_CLASS = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
_FIELD = _fields(x=b"K\1")
_ZEROS = "archive/data/7", bytes(1 << 26)
MALFORMED = (
    Case("a global", written(METADATA, lambda place: pickle.dumps(Gadget(place), 0))),
    Case("a stack global", written(METADATA, lambda place: pickle.dumps(Gadget(place), 4))),
    Case("an instance", written(METADATA, gadget("(S'{}'\nios\nsystem\n."))),
    Case("an object", written(METADATA, gadget("(cos\nsystem\nS'{}'\no."))),
    Case("a persistent id", written(METADATA, gadget("P{}\n."))),
    Case("an extension", written(METADATA, b"\x80\x02\x82\x01.")),
    Case("getattr", written(METADATA, b"\x80\x02cbuiltins\ngetattr\n" + _CLASS + b"X\x04\0\0\0nope\x86R.")),
    Case("a file above the folder", pointing(relative_path="../../step-3/1.0.1/" + TENSORS)),
    Case("a file that no manifest names", pointing(relative_path="other.distcp")),
    Case("an end behind the file's", pointing(length=1 << 40)),
    Case("a begin before the file's", pointing(offset=-8)),
    Case("blocks without a shape", shaped()),
    Case("blocks that are too large", shaped(3, 4)),
    Case("state: a list", saved(STATE, lambda _: [1, 2])),
    Case("state: without others", with_state(others=None)),
    Case("state: a position that is none", with_state(data={"epoch": "first"})),
    Case("state: a model that is none", with_state(models={"model": 3})),
    Case("state: an optimizer that is none", with_state(optimizers={"optimizer": {"groups": [{}]}})),
    Case("state: a gadget", saved(STATE, Gadget)),
    Case("state: a bare pickle", written(STATE, lambda place: pickle.dumps(Gadget(place)))),
    Case("state: in the old format", saved(STATE, Gadget, _use_new_zipfile_serialization=False)),
    Case("rank: a gadget", saved(RANK, Gadget)),
    Case("rank: no generators", saved(RANK, lambda _: {"rng": {}})),
    Case("tensors: a gadget", tensors(lambda place, _: Gadget(place))),
    Case("tensors: none", tensors(lambda *_: {})),
    Case("tensors: of another shape", tensors(lambda *_: torch.ones(7))),
    Case("an empty .metadata", written(METADATA, b"")),
    Case("half a .metadata", halved(METADATA)),
    Case("eval", written(METADATA, gadget('cbuiltins\neval\n(S\'__import__("os").system("{}")\'\ntR.'))),
    Case("a file named by a number", pointing(relative_path=5)),
    Case("a begin that is a text", pointing(offset="0")),
    Case("state: empty", written(STATE, b"")),
    Case("state: a half", halved(STATE)),
    Case("rank: a bare pickle", written(RANK, lambda place: pickle.dumps(Gadget(place)))),
    Case("rank: a half", halved(RANK)),
    Case("tensors: a half", halved(TENSORS)),
    Case("a method written into a class", written(METADATA, endless())),
    Case(
        "a value written into a dtype", written(METADATA, b"\x80\x02ctorch\nfloat32\nN" + _FIELD + b"\x86b.")
    ),
    Case("a frame of 2^62 bytes", written(METADATA, b"\x80\x04\x95\0\0\0\0\0\0\0\x40N.")),
    Case("tuples twice in tuples", written(METADATA, growing(b"h\0h\0\x86q\x000"))),
    Case("tuples twice in tuples, copied", written(METADATA, growing(b"h\x002\x86q\x000"))),
    Case("tuples twice in shapes", written(METADATA, growing(b"ctorch\nSize\n(h\0h\0l\x85Rq\x000"))),
    Case("sets twice in sets", written(METADATA, sets_in_sets())),
    Case("a tuple a million deep", written(METADATA, b"\x80\x02})" + (1 << 20) * b"\x85" + b"Ns.")),
    Case("a memo of 2^31 places", written(METADATA, b"\x80\x02Nr\xff\xff\xff\x7f.")),
    Case("bytes of which 2^36 are not there", written(METADATA, b"\x80\5\x96\0\0\0\0\x10\0\0\0.")),
    Case("a tensor of no blocks", about_weight(chunks=[])),
    Case("blocks over each other, and a gap of that size", split_blocks(((0, 0), (2, 2)), ((0, 1), (2, 1)))),
    Case(
        "blocks in one place of a file", split_blocks(((0, 0), (1, 3)), ((1, 0), (1, 3)), in_one_place=True)
    ),
    Case("a tensor of 5,000 digits", about_weight(size=(10**5000, 3), chunks=[])),
    Case("a tensor named by a number", named(5)),
    Case("a tensor of a type that is a text", about_weight(properties=TensorProperties("float32"))),  # type: ignore[arg-type]
    Case("a block that is nowhere", changed(lambda about: about.storage_data.clear())),
    Case("tensors: of another type", tensors(lambda _, sizes: torch.zeros(sizes, dtype=torch.int8))),
    Case("tensors: without memory", tensors(lambda _, sizes: torch.zeros(sizes, device="meta"))),
    Case("tensors: sparse", tensors(lambda _, sizes: torch.zeros(sizes).to_sparse())),
    Case("tensors: of one number", tensors(lambda _, sizes: torch.zeros(1).expand(sizes))),
    Case("state: tensors that .metadata lacks", optimizer({"weight": ["exp_avg"]})),
    Case("state: a rate of 2^40 numbers", optimizer(lr=torch.zeros(1).expand(1 << 40))),
    Case("state: a tensor larger than its memory", with_state(others={"x": larger_than_its_storage()})),
    Case("state: behind the old format", written(STATE, behind_the_old_format)),
    Case("archive: empty", repacked(STATE, lambda _: [])),
    Case("archive: without a directory", without_a_directory),
    Case("archive: files above it", repacked(STATE, lambda files: [*files, ("../../x", b""), ("/x", b"")])),
    Case("archive: two of one name", repacked(STATE, lambda files: files + files)),
    Case("archive: of TorchScript", repacked(STATE, lambda files: [*files, ("archive/constants.pkl", b"")])),
    Case("archive: of no order of bytes", repacked(STATE, replaced("byteorder", b"x"))),
    Case("archive: a thousand files in one", many_in_one),
    Case("archive: half a tensor", repacked(RANK, replaced("data/0", b"x" * 7))),
    Case(
        "archive: no tensor",
        repacked(RANK, lambda files: [file for file in files if "/data/" not in file[0]]),
    ),
    Case("rank: generators of no Python", generators(python=())),
    Case("rank: generators of half a Python", generators(python=(3, (1, 2), None))),
    Case("rank: generators that are text", generators(python=(*random.getstate()[:2], "x"))),
    Case("rank: generators of floats", generators(torch=torch.zeros(3))),
    Case("rank: generators of no NumPy", generators(numpy=3)),
)
"""Contents that no script and no torch would read, with the right hashes: the job resumes from the valid
one."""
UNCLEAR = (
    Case("a method of a class", written(METADATA, b"\x80\x04\x8c\x08builtins\x8c\x0bint.__add__\x93.")),
    Case("a name of some torch", written(METADATA, b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.")),
    Case("state: a class of some script", saved(STATE, lambda _: OfAScript())),
    Case("tensors: a class of some script", tensors(lambda *_: OfAScript())),
    Case("another model", of_another_model),
    Case("a tensor named with half a letter", named("model.\ud800\n")),
    Case("state: of a later torch", repacked(STATE, replaced("/version", b"99\n"))),
    Case(
        "state: packed, with 2^26 zeros",
        repacked(STATE, lambda files: [*files, _ZEROS], zipfile.ZIP_DEFLATED),
    ),
    Case("state: more than there is memory", with_state(others={"x": Calls(bytearray, 1 << 36)})),
    Case("rank: generators of another torch", generators(torch=torch.zeros(3, dtype=torch.uint8))),
)
"""Perhaps the script or the image has changed, and an older checkpoint would be a loss: the job ends."""
