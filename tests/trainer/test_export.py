"""A checkpoint as one file: what plain PyTorch makes of it, with nothing of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.trainer.test_job import Counter, alone
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

from ropeteam_trainer.checkpoint import export as exporting
from ropeteam_trainer.checkpoint.export import ExportError, export


def trained(folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two steps with momentum, each saved."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    job = alone(folder, every=1)
    job.restore(model=model, optimizer=optimizer, counter=Counter(7))
    for _ in range(2):
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
        job.report()
    return model, optimizer


@pytest.mark.parametrize("place", ["", "step-2/0.0.1"])
def test_the_newest_checkpoint_as_plain_pytorch_reads_it(tmp_path: Path, place: str) -> None:
    model, optimizer = trained(tmp_path / "ckpt")
    torch.save(export(tmp_path / "ckpt" / place), tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert (found["step"], found["counter"]) == (2, {"value": 7})
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    fresh.load_state_dict(found["model"])
    assert all(
        torch.equal(a, b)
        for a, b in zip(fresh.state_dict().values(), model.state_dict().values(), strict=True)
    )
    again = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    set_optimizer_state_dict(fresh, again, found["optimizer"])
    assert again.param_groups[0]["lr"] == 0.1
    first, second = (each.state[next(iter(each.state))]["exp_avg"] for each in (optimizer, again))
    assert torch.equal(first, second)


def test_an_older_one_is_taken_by_its_folder(tmp_path: Path) -> None:
    trained(tmp_path)
    assert export(tmp_path / "step-1" / "0.0.1")["step"] == 1


def test_an_invalid_checkpoint_is_refused_with_the_missing_part(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="holds no checkpoint; name one"):
        export(tmp_path)
    with pytest.raises(ExportError, match="not a usable checkpoint: "):
        export(tmp_path / "step-1" / "0.0.1")


def test_a_damaged_one_is_not_exported(tmp_path: Path) -> None:
    trained(tmp_path)
    place = tmp_path / "step-2" / "0.0.1"
    data = bytearray((place / "__0_0.distcp").read_bytes())
    data[-1] ^= 1
    (place / "__0_0.distcp").write_bytes(data)
    with pytest.raises(ExportError, match=r"is damaged: __0_0\.distcp is damaged or altered"):
        export(tmp_path)


def test_the_command_prints_its_output_file_or_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "ckpt")
    monkeypatch.setattr("sys.argv", ["export", str(tmp_path / "ckpt"), str(tmp_path / "model.pt")])
    assert exporting.main() == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/model.pt: step 2, with counter, model, optimizer\n"
    monkeypatch.setattr("sys.argv", ["export", str(tmp_path), str(tmp_path / "model.pt")])
    assert exporting.main() == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["export"])
    assert exporting.main() == 2
