"""Only proof calls a file malformed: not what this script, this torch or this machine is short of."""

from __future__ import annotations

import errno
import io
import pickle
import resource
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from lab.ranks.forkserver import forkserver
from tests.trainer.planted import RANK, STATE, Gadget, OfAScript, checkpoints

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.restore import Inspection
from ropeteam_trainer.checkpoint.format import contents
from ropeteam_trainer.checkpoint.format.contents import MalformedCheckpoint
from ropeteam_trainer.system.folders import Folder

_forks = forkserver("tests.trainer.planted")
TIMEOUT_SECONDS = 120


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_class_that_the_script_declares_is_loaded_and_without_it_nothing_is_proved() -> None:
    content = saved({"others": OfAScript()})
    with torch.serialization.safe_globals([OfAScript]):
        assert isinstance(contents.load(STATE, content)["others"], OfAScript)
    with pytest.raises(pickle.UnpicklingError, match="OfAScript"):
        contents.load(STATE, content)


def test_a_name_of_another_torch_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def _rebuild_tensor_v9() -> None: ...

    _rebuild_tensor_v9.__module__ = "torch._utils"
    _rebuild_tensor_v9.__qualname__ = "_rebuild_tensor_v9"
    monkeypatch.setattr(torch._utils, "_rebuild_tensor_v9", _rebuild_tensor_v9, raising=False)
    with pytest.raises(pickle.UnpicklingError, match="_rebuild_tensor_v9"):
        contents.load(STATE, saved({"others": _rebuild_tensor_v9}))


def test_a_pickle_that_runs_code_is_proof_whatever_is_beside_it(tmp_path: Path) -> None:
    with pytest.raises(MalformedCheckpoint, match=r"torch refuses state\.pt"):
        contents.load(STATE, saved([OfAScript(), Gadget(tmp_path)]))


def too_little(content: bytes, answer: Path) -> None:
    """In a process of its own."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + (8 << 20), resource.RLIM_INFINITY))
    try:
        contents.load(STATE, content)
    except Exception as error:
        answer.write_text(f"{type(error).__name__} {error}")


def test_want_of_memory_proves_nothing(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    process = _forks.Process(target=too_little, args=(saved(torch.zeros(16 << 20)), answer))
    process.start()
    process.join(TIMEOUT_SECONDS)
    process.kill()
    answered = answer.read_text()
    assert answered.split()[0] in ("RuntimeError", "MemoryError"), answered


def test_a_script_that_maps_its_files_makes_no_checkpoint_malformed() -> None:
    with torch.utils.serialization.config.patch("load.mmap", True):  # type: ignore[attr-defined]
        assert torch.equal(contents.load(STATE, saved(torch.ones(3))), torch.ones(3))


def test_an_error_of_the_storage_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _ = checkpoints(tmp_path)
    saver.save(3, None)
    saver.close()
    (ref,) = reader.find_checkpoints(tmp_path)
    seen = reader.inspect_manifest(tmp_path, ref)
    assert seen.manifest is not None
    files = seen.manifest.files
    assert [reader.validate_content(tmp_path, ref, files, file, lambda _: None) for file in files] == [
        Inspection(None)
    ] * 4

    def broken(_: Folder, name: str) -> BinaryIO:
        raise OSError(errno.EIO, "Input/output error", name)

    monkeypatch.setattr(Folder, "open", broken)
    looks = [reader.validate_content(tmp_path, ref, files, file, lambda _: None) for file in files]
    assert all(look.unsure and "Input/output error" in look.fault for look in looks)


def test_malformed_content_is_reported_with_the_name_of_its_file() -> None:
    with pytest.raises(MalformedCheckpoint, match=r"rank-0\.pt is not a file of torch\.save"):
        contents.load(RANK, b"PK")
    with pytest.raises(MalformedCheckpoint, match=r"state\.pt: the state that ranks share is incomplete"):
        contents.check_shared_state(STATE, {"data": None, "others": {}, "models": {}})
