"""Content of a checkpoint's files, and the proof that no rank of ours has written them.

Promise: nothing that they name is executed (torch.load with weights_only). MalformedCheckpoint is proof,
whatever script, torch or Python reads them. All other errors prove nothing and are raised as they come: a
class that the script once registered with torch, a name that another torch writes, too little memory.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import random
import re
import struct
import zipfile
from collections.abc import Callable, Collection
from typing import Any

import torch

from ropeteam_trainer.checkpoint.format.names import state_name
from ropeteam_trainer.contract.errors import StorageError


class MalformedCheckpoint(StorageError, ValueError):
    """Content that no rank of ours has written."""


_PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    struct.error,
)
"""Errors of a pickle that is none of ours. Not OSError, MemoryError, nor torch's RuntimeError, which may have
other causes."""
_EVERY_TORCH = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage"
)
"""Names in our pickles that every torch knows: if a pickle has no others, no other version would read it."""
_RUNS_CODE = re.compile(
    r"(os|posix|nt|sys|subprocess|pty|runpy|importlib|ctypes|shutil|socket|code|pdb|timeit)(\..*)? .*"
    r"|(builtins|__builtin__) (eval|exec|execfile|compile|open|__import__|input|breakpoint)"
)
"""Names that no state contains. They are not called in any case, with or without this list."""


_SKIP_ADVICE = "To skip this checkpoint, delete its folder"
_BAD_ARCHIVE = re.compile(r"PytorchStreamReader failed|record size|Trying to resize storage")
"""Beginnings of torch's RuntimeErrors about an archive, in memory, that has no record that it lists."""


def runs_code(module: str, name: str) -> bool:
    """Whether this name proves that a pickle is no training state, for any reader."""
    return _RUNS_CODE.fullmatch(f"{module} {name}") is not None


def load(name: str, content: bytes) -> Any:
    """Load a file of torch.save, on the CPU. `name`: for errors. Raises MalformedCheckpoint (proof);
    ValueError for a compressed file; MemoryError, RuntimeError and the errors of pickles, as torch raises
    them, where they prove nothing."""
    _check_archive(name, content)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True, mmap=False)
    except MemoryError:
        raise MemoryError(f"{name} needs more memory than the pod has. {_SKIP_ADVICE}") from None
    except (RuntimeError, *_PICKLE_ERRORS) as error:
        text = f"torch refuses {name}: {_last_line(error)}"
        if _is_proof(error, content):
            raise MalformedCheckpoint(text) from None
        if isinstance(error, pickle.UnpicklingError):  # torch advises to load it without weights_only
            raise pickle.UnpicklingError(f"{text} {_SKIP_ADVICE}") from None
        raise


def _check_archive(name: str, content: bytes) -> None:
    """Raise MalformedCheckpoint for an archive that no torch.save writes, and ValueError for a compressed
    one: no torch.save that we know compresses, but another might."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, *_PICKLE_ERRORS):
        raise MalformedCheckpoint(f"{name} is not a file of torch.save") from None
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError(
            f"{name} is compressed, which torch.save does not do: it could fill the memory. {_SKIP_ADVICE}"
        )
    names = {entry.filename for entry in entries}
    top = min(names, default="").partition("/")[0]
    is_ours = (
        content.startswith(b"PK\3\4")  # else torch takes it for its legacy format
        and {f"{top}/data.pkl", f"{top}/constants.pkl"} & names == {f"{top}/data.pkl"}  # no TorchScript
        and all(each.startswith(f"{top}/") for each in names)
        and len(names) == len(entries)
        and sum(entry.file_size for entry in entries) <= len(content)
    )
    if not is_ours:
        raise MalformedCheckpoint(f"{name} is an archive, but not one of torch.save")


def _is_proof(error: Exception, content: bytes) -> bool:
    """Whether this error of torch.load would occur under any torch and any script. A pickle error would, if
    the pickle has a name that no state has, or only names that every torch knows."""
    if isinstance(error, RuntimeError):
        return _BAD_ARCHIVE.match(str(error)) is not None
    names = _globals_in(content)
    if any(_RUNS_CODE.fullmatch(name) for name in names):
        return True
    return all(_EVERY_TORCH.fullmatch(name) for name in names)


def _globals_in(content: bytes) -> set[str]:
    """`module name` of each global in the pickle, as far as it can be read."""
    found: set[str] = set()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            inner = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            for code, argument, _ in pickletools.genops(archive.read(inner)):
                if code.name == "GLOBAL":
                    found.add(str(argument))
    except (zipfile.BadZipFile, StopIteration, *_PICKLE_ERRORS):
        pass  # torch has refused it, so it may be cut off
    return found


def _last_line(error: Exception) -> str:
    """Last line of an error of torch: the lines before it advise to load without weights_only."""
    lines = [line for line in str(error).splitlines() if line.strip() and "docs" not in line]
    return f"{type(error).__name__}: {lines[-1].strip()[:200] if lines else ''}"


def load_block(name: str, content: bytes, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Load a tensor, or a block of one, that torch.save has written. Raises MalformedCheckpoint if it is none
    of this size and dtype, and as load() does."""
    found = load(name, content)
    if (
        not isinstance(found, torch.Tensor)
        or not _owns_its_memory(found)
        or tuple(found.shape) != sizes
        or found.dtype != dtype
    ):
        raise MalformedCheckpoint(f"{name} holds something else than the tensors that .metadata lists")
    return found


def check_shared_state(name: str, tree: Any) -> None:
    """Raise MalformedCheckpoint if state.pt, the state that ranks share, has not the form that
    Checkpoints.save() writes."""
    is_ours = (
        isinstance(tree, dict)
        and (tree.get("data", ()) is None or _is_map(tree.get("data"), lambda value: type(value) is int))
        and _is_map(tree.get("others"))
        and _is_map(tree.get("models"), _is_map)
        and _is_map(tree.get("optimizers"), _is_optimizer_part)
    )
    if not is_ours:
        raise MalformedCheckpoint(f"{name}: the state that ranks share is incomplete, or has another form")


def check_optimizer_tensors(name: str, tree: Any, tensors: Collection[str]) -> None:
    """Raise MalformedCheckpoint if a tensor of an optimizer in state.pt is missing in `.metadata`. `tree` has
    passed check_shared_state()."""
    for optimizer, part in tree["optimizers"].items():
        for parameter, keys in part["tensors"].items():
            for key in keys:
                if state_name(optimizer, parameter, key) not in tensors:
                    raise MalformedCheckpoint(
                        f"{name} lists tensors of {optimizer} that .metadata does not have"
                    )


def check_rank_state(name: str, tree: Any) -> None:
    """Raise MalformedCheckpoint if rank-<r>.pt, a rank's own state, has not the form that Checkpoints.save()
    writes. An earlier release wrote no `own`."""
    rng = tree.get("rng") if isinstance(tree, dict) else None
    is_ours = (
        isinstance(rng, dict)
        and _is_python_state(rng.get("python"))
        and isinstance(rng.get("torch"), torch.Tensor)
        and rng["torch"].dtype is torch.uint8
        and isinstance(rng.get("numpy", ()), tuple)
        and _is_map(tree.get("own", {}))
    )
    if not is_ours:
        raise MalformedCheckpoint(f"{name} holds no states of random generators")


def _is_python_state(found: Any) -> bool:
    """Whether this is a result of random.getstate(). That of another Python may have another version, and is
    then checked by its form alone."""
    if not isinstance(found, tuple) or len(found) != 3 or type(found[0]) is not int:
        return False
    try:
        if found[0] == random.Random.VERSION:
            random.Random().setstate(found)
    except (TypeError, ValueError, OverflowError):
        return False
    return isinstance(found[2], float | None)


def _owns_its_memory(found: Any) -> bool:
    """False: a tensor with more elements than its memory has, such as an expanded one, which could fill the
    memory of the rank that copies it. We write copies, which never are (snapshot.py). True for values that
    are no tensors, and for tensors of other classes."""
    if type(found) not in (torch.Tensor, torch.nn.Parameter):
        return True
    plain = found.layout is torch.strided and not found.is_meta
    return plain and found.untyped_storage().nbytes() >= found.nbytes


def _is_optimizer_part(part: Any) -> bool:
    """Whether this is the part of an optimizer (optimizers.py)."""
    return (
        isinstance(part, dict)
        and isinstance(part.get("groups"), list)
        and all(_is_group(group) for group in part["groups"])
        and _is_map(part.get("tensors"), lambda keys: isinstance(keys, list))
        and _is_map(part.get("values"), lambda values: isinstance(values, dict))
    )


def _is_group(group: Any) -> bool:
    """Whether this is a group in the part of an optimizer: names of parameters, and hyperparameters."""
    return (
        isinstance(group, dict)
        and isinstance(group.get("names"), list)
        and all(isinstance(name, str) for name in group["names"])
        and isinstance(group.get("values"), dict)
        and all(_owns_its_memory(value) for value in group["values"].values())
    )


def _is_map(found: Any, of: Callable[[Any], bool] = lambda _: True) -> bool:
    """Whether this is a dict with keys that are strings, and values for which `of` holds."""
    return isinstance(found, dict) and all(isinstance(key, str) and of(value) for key, value in found.items())
