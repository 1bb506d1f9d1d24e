"""Names of what is saved, and what happens where they do not fit. In one process."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA, Manifest
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointNotFound
from ropeteam_trainer.checkpoint.format import metadata, names
from ropeteam_trainer.checkpoint.objects import optimizers
from ropeteam_trainer.checkpoint.objects.stateful import SavedObjects
from ropeteam_trainer.checkpoint.objects.tensorshard import overlap
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.job import Job
from ropeteam_trainer.joining import create_job
from ropeteam_trainer.rank.world import World

ALONE = World(0, 1, torch.device("cpu"))


def job_in(folder: Path, n: int = 1) -> Job:
    plan = RankPlan(f"0.0.{n}", (), False, CheckpointConfig(str(folder), 1), Resume.LATEST, None, "", "")
    return create_job(ALONE, plan, {})


def save(folder: Path, **objects: Any) -> Path:
    """One step is done; where it was saved."""
    job = job_in(folder)
    job.restore(**objects)
    job.report()
    return folder / "step-1" / "0.0.1"


def restore(folder: Path, **objects: Any) -> None:
    assert job_in(folder, 2).restore(**objects) == 1


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return optimizer


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Wrapped(nn.Module):
    """A part of it happens to be called `module`."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.module = wrap(nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def test_wrappers_leave_no_trace_in_names(tmp_path: Path) -> None:
    """Nor does a part that is called like what DDP adds lose its name."""
    plain = Wrapped(lambda part: part)
    place = save(tmp_path, model=plain, optimizer=trained(plain, torch.optim.AdamW(plain.parameters())))
    saved = metadata.parse((place / METADATA).read_bytes())
    parameters = ("module.weight", "module.bias")
    keys = ("exp_avg", "exp_avg_sq", "step")
    assert set(saved) == {f"model.{p}" for p in parameters} | {
        f"optimizer.state.{p}.{key}" for p in parameters for key in keys
    }
    for wrap in (checkpoint_wrapper, partial(torch.compile, backend="eager")):
        other = Wrapped(wrap)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(other.parameters())
        restore(tmp_path, model=other, optimizer=optimizer)
        assert all(map(torch.equal, other.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adafactor(p, lr=0.1),
        lambda p: torch.optim.LBFGS(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    ],
    ids=["amsgrad", "momentum", "no state", "adafactor", "lbfgs", "tensor lr"],
)
def test_an_optimizer_goes_on_to_the_last_bit(
    tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, other = net(), net()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().sum()
            loss.backward()
            return loss.item()

        optimizer.step(closure)

    optimizer, again = make(model.parameters()), make(other.parameters())
    step(model, optimizer)
    rate = again.param_groups[0]["lr"]
    save(tmp_path, model=model, optimizer=optimizer)
    step(other, again)  # what it has from before is forgotten
    restore(tmp_path, model=other, optimizer=again)
    for _ in range(2):
        step(model, optimizer)
        step(other, again)
    assert same([*model.parameters()], [*other.parameters()])
    assert same(optimizer.state_dict(), again.state_dict())
    assert again.param_groups[0]["lr"] is rate or not isinstance(rate, torch.Tensor), "compiled code holds it"


def test_an_optimizer_that_had_not_stepped_forgets_what_it_has(tmp_path: Path) -> None:
    model, other = net(), net()
    save(tmp_path, model=model, optimizer=torch.optim.Adam(model.parameters()))
    again = trained(other, torch.optim.Adam(other.parameters()))
    restore(tmp_path, model=other, optimizer=again)
    assert not again.state


def test_groups_may_be_split_otherwise_if_their_values_agree(tmp_path: Path) -> None:
    model, other = net(), net()
    first, second = model[0].parameters(), model[1].parameters()
    groups = [{"params": [*second], "lr": 0.5}, {"params": [*first], "lr": 0.5}]
    optimizer = trained(model, torch.optim.Adam(groups, lr=0.1))
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.25
    save(tmp_path, model=model, optimizer=optimizer)
    again = torch.optim.Adam(other.parameters())
    restore(tmp_path, model=other, optimizer=again)
    assert again.param_groups[0]["lr"] == 0.25
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert same(optimizer.state[mine], again.state[theirs])
    optimizer.param_groups[0]["lr"] = 0.1
    save(tmp_path / "mixed", model=model, optimizer=optimizer)
    with pytest.raises(ValueError, match="joins parameters that were saved with different 'lr'"):
        restore(tmp_path / "mixed", model=other, optimizer=again)


def test_a_model_that_has_changed_is_named_with_what_to_do(tmp_path: Path) -> None:
    model = net()
    save(tmp_path, model=model, optimizer=trained(model, torch.optim.AdamW(model.parameters())))
    deeper = nn.Sequential(*net(), nn.Linear(3, 3))
    missing = r"does not fit: it does not have model\.2\.bias, model\.2\.weight\. .*start again"
    with pytest.raises(KeyError, match=missing):
        restore(tmp_path, model=deeper)
    with pytest.raises(KeyError, match=r"nothing here uses its model\.1\.bias, model\.1\.weight"):
        restore(tmp_path, model=net()[:1])
    wider = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))
    with pytest.raises(KeyError, match=r"model.0.bias has shape \[4\] in it and \[5\] here"):
        restore(tmp_path, model=wider)
    frozen = net()
    with pytest.raises(KeyError, match=r"nothing here uses its optimizer: 1\.bias, optimizer: 1\.weight"):
        restore(tmp_path, model=frozen, optimizer=torch.optim.AdamW(frozen[0].parameters()))
    restore(tmp_path, model=net())  # without its optimizer, to evaluate


def test_parts_of_a_model_are_one_model(tmp_path: Path) -> None:
    whole = net()
    save(tmp_path, model=whole, critic=nn.Linear(2, 2), optimizer=torch.optim.SGD(whole.parameters(), 0.1))
    first, second = nn.Module(), nn.Module()
    first.add_module("0", nn.Linear(3, 4))
    second.add_module("1", nn.Linear(4, 3))
    parts, critic = (first, second), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], 0.2)
    restore(tmp_path, model=parts, critic=critic, optimizer=optimizer)
    assert same([p for part in parts for p in part.parameters()], [*whole.parameters()])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_what_could_not_be_loaded_again_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"'model' has two tensors called weight.*names that they have in"):
        SavedObjects({"model": [nn.Linear(1, 1), nn.Linear(1, 1)]})
    stray = nn.Parameter(torch.zeros(7))
    with pytest.raises(
        ValueError, match=r"'optimizer' trains a parameter of shape \(7,\) \(group 0\) that is"
    ):
        SavedObjects({"model": net(), "optimizer": torch.optim.SGD([stray], 0.1)})
    fsdp_1 = type("FullyShardedDataParallel", (nn.Linear,), {})
    with pytest.raises(TypeError, match="use fully_shard"):
        SavedObjects({"model": nn.Sequential(fsdp_1(1, 1))})
    with pytest.raises(ValueError, match="two parameters have the same name"):
        SavedObjects({"model": nn.ModuleDict({"critic": nn.Linear(1, 1)}), "critic": nn.Linear(1, 1)})


class Remembers(nn.Linear):
    """A module with state that is no tensor."""

    seen = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def test_a_modules_own_values_come_back(tmp_path: Path) -> None:
    inside, again = Remembers(1, 1), Remembers(1, 1)
    inside.seen = 3
    save(tmp_path, model=nn.Sequential(inside))
    restore(tmp_path, model=nn.Sequential(again))
    assert again.seen == 3


def test_a_checkpoint_of_the_previous_format_is_not_used(tmp_path: Path) -> None:
    place = save(tmp_path, model=net())
    manifest = codec.decode(Manifest, (place / MANIFEST).read_bytes())
    old = replace(manifest, files=tuple(f for f in manifest.files if f.name in ("state.pt", "rank-0.pt")))
    (place / MANIFEST).write_bytes(old.to_bytes())
    assert "format of an earlier Ropeteam" in reader.inspect_manifest(tmp_path, old.ref).fault
    assert reader.inspect_manifest(tmp_path, old.ref).manifest == old, "its parent may be used"
    plan = RankPlan("0.0.2", (), False, CheckpointConfig(str(tmp_path)), Resume.STEP, 1, "", "")
    with pytest.raises(CheckpointNotFound, match="earlier Ropeteam"):
        create_job(ALONE, plan, {}).restore(model=net())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: os.truncate(path, 100)])
def test_damaged_metadata_makes_it_go_on_from_the_parent(
    tmp_path: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    job, model, other = job_in(tmp_path), nn.Linear(3, 3), nn.Linear(3, 3)
    job.restore(model=model)
    job.report()
    weights = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    job.report()
    damage(tmp_path / "step-2" / "0.0.1" / METADATA)
    restore(tmp_path, model=other)
    assert torch.equal(other.weight, weights)
    assert "checkpoint step-2/0.0.1 is not used: .metadata" in capfd.readouterr().err


class Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return warnings.warn, ("executed",)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (pickle.dumps(Foreign()), "it names _warnings.warn, which no checkpoint needs"),
        (pickle.dumps(Metadata({}, Foreign(), {})), "it names _warnings.warn"),
        (pickle.dumps(Metadata({}, None, {0: Path("x")})), "it names pathlib.PosixPath"),
        (pickle.dumps(_StorageInfo("__0_0.distcp", 0, 1)), "has no attribute"),
        (pickle.dumps(Metadata({}, None, {}))[:-9], "not enough data|but only|exhausted"),
        (b"", "exhausted"),
    ],
)
def test_metadata_that_names_anything_else_is_refused(content: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        metadata.parse(content)


class _Attribute:
    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (TensorProperties, "create_from_tensor")


def test_an_attribute_of_anything_but_the_one_enum_is_refused() -> None:
    with pytest.raises(ValueError, match="it requests an attribute, which no checkpoint needs"):
        metadata.parse(pickle.dumps(Metadata({}, _Attribute(), {})))


def test_members_of_enums_are_read_as_any_version_of_python_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11.9 writes a call of getattr; others write the class and the value."""
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    about = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [chunk])
    stored = {MetadataIndex("model.w", torch.Size([0])): _StorageInfo("__0_0.distcp", 0, 8)}
    written = Metadata({"model.w": about}, None, stored)
    plain = metadata.parse(pickle.dumps(written))
    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, _: (getattr, (type(member), member.name))
    )
    assert b"getattr" in pickle.dumps(written)
    assert metadata.parse(pickle.dumps(written)) == plain
    assert plain["model.w"].shape == (2,)


blocks = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=3)


@given(a=blocks, b=blocks)
def test_the_overlap_of_two_blocks_is_what_both_have(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    a, b = a[: len(b)], b[: len(a)]
    whole = torch.arange(10 ** len(a)).reshape([10] * len(a))
    blocks = [whole[tuple(slice(at, at + size) for at, size in block)] for block in (a, b)]
    both = set(blocks[0].flatten().tolist()) & set(blocks[1].flatten().tolist())
    found = overlap(*(tuple(part) for block in (a, b) for part in zip(*block, strict=True)))
    if found is None:
        assert both == set()
    else:
        assert torch.equal(blocks[0][found[0]], blocks[1][found[1]])
        assert set(blocks[0][found[0]].flatten().tolist()) == both


def test_parts_of_optimizers_are_joined_once() -> None:
    one = {"groups": [{"names": ["a", "b"], "values": {"lr": 1}}], "tensors": {"a": ["m"]}, "values": {}}
    two = {"groups": [{"names": ["b"], "values": {"lr": 1}}, {"names": ["c"], "values": {"lr": 2}}]}
    whole = optimizers.merge([one, {**two, "tensors": {"c": ["m"]}, "values": {"c": {"k": None}}}])
    assert whole["groups"] == [
        {"names": ["a", "b"], "values": {"lr": 1}},
        {"names": ["c"], "values": {"lr": 2}},
    ]
    assert (whole["tensors"], whole["values"]) == ({"a": ["m"], "c": ["m"]}, {"c": {"k": None}})
    assert optimizers.parameter_names(whole) == {"a", "b", "c"}


def test_many_names_are_shortened() -> None:
    assert names.shortened("gfedcba") == "a, b, c, d and 3 more"
    assert names.misfit((), (), ()) == ""
